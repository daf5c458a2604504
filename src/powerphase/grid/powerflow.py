"""AC power flow of many steps at once: a thin, careful shell around lightsim2grid's sweep.

The network reaches the solver at bus level: one load per bus that can draw or inject power, one
idle generator per voltage-controlled bus. What is solved is then exactly what is stored, the net
consumption of each bus, and MATPOWER's meaning holds where the solver's own importer departs from
it (a generator at a PQ bus injects P and Q and controls nothing).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from lightsim2grid.injectionSweep import InjectionSweepCPP
from lightsim2grid.lightsim2grid_cpp import RefactorPolicyType, ScalingPolicyType
from lightsim2grid.network import init_from_matpower

from powerphase.errors import PowerFlowError
from powerphase.grid.case import (
    BASE_KV,
    BUS_I,
    BUS_TYPE,
    GEN_BUS,
    GEN_STATUS,
    MATPOWER_PQ,
    MATPOWER_PV,
    MATPOWER_REF,
    MBASE,
    PD,
    PMAX,
    PQ,
    PV,
    QD,
    QMAX,
    QMIN,
    SLACK,
    TAP,
    VA,
    VG,
    VM,
    Grid,
)

TOLERANCE_MVA = 1e-8
"""The sweep's tolerance is in MVA: this is 1e-10 p.u. on a base of 100 MVA."""

MAX_ITERATIONS = 20
"""Near the limit of feasibility 15 miss solutions that 20 find."""

REFACTOR_EVERY = 3
"""Newton keeps a factorisation for three iterations: a fifth to a third less time, same result."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Voltages of many steps; rows that did not converge hold zeros and say so."""

    voltage: Complex[np.ndarray, "S N"]
    converged: Bool[np.ndarray, " S"]
    iterations: Int[np.ndarray, " S"]


class PowerFlow:
    """A grid at fixed set-points, ready to be solved for any number of steps.

    Args:
        grid: the network.
        setpoint_pu: voltage of each slack and PV bus [p.u.]; values at PQ buses are ignored.
        p_mw: a typical net consumption of each bus, which must be solvable: every solve starts
            from its solution. The mean over the record saves a third of the iterations.
        q_mvar: its reactive part.
        threads: how many steps are solved at the same time; no effect on any bit of the result.
    """

    def __init__(
        self,
        grid: Grid,
        setpoint_pu: Float[np.ndarray, " N"],
        p_mw: Float[np.ndarray, " N"],
        q_mvar: Float[np.ndarray, " N"],
        threads: int = 1,
    ) -> None:
        # The solver would pass over what is not a number and keep what it had.
        if not np.isfinite([p_mw, q_mvar, np.where(grid.bus_type == PQ, 1.0, setpoint_pu)]).all():
            raise PowerFlowError(
                f"grid {grid.name!r}: its mean injections or set-points are not all finite numbers"
            )
        self.threads = threads
        self._network = init_from_matpower(bus_level_case(grid, setpoint_pu))
        # Every bus owns a load, so columns of the sweep are bus rows.
        for row in range(grid.n_buses):
            self._network.change_p_load(row, p_mw[row])
            self._network.change_q_load(row, q_mvar[row])
        flat = np.where(grid.bus_type == PQ, 1.0, setpoint_pu).astype(np.complex128)
        # The solver keeps the slack bus at the angle it starts from; ours is 0, whichever start.
        angle_deg = grid.bus[:, VA] - grid.bus[grid.bus_type == SLACK, VA]
        file = grid.bus[:, VM] * np.exp(1j * np.deg2rad(angle_deg))
        for start in (flat, file):
            self._start = np.array(self._network.ac_pf(start, 50, TOLERANCE_MVA))
            if self._start.size:
                return
        raise PowerFlowError(
            f"grid {grid.name!r}: no power flow at its mean injections and these set-points; "
            "try another setpoint, e.g. the case file's own (setpoint 'case')"
        )

    @property
    def start(self) -> Complex[np.ndarray, " N"]:
        """The solution at typical injections, from which every step starts."""
        return self._start

    def solve(
        self,
        p_mw: Float[np.ndarray, "S N"],
        q_mvar: Float[np.ndarray, "S N"],
        iwamoto: bool = False,
    ) -> Solution:
        """Solve every step for the given net consumption; failed rows are marked, never raised.

        `iwamoto` damps each Newton step by Iwamoto's multiplier and refactors always.
        """
        # A new object each time: a used one changes the last bits of later results, and its base
        # case, if it is kept, does too.
        sweep = InjectionSweepCPP(self._network)
        sweep.nb_thread = self.threads
        sweep.reuse_base_case = False
        config = sweep.get_algo_config()
        scaling, refactor, line_search, _ = config.int_params
        if iwamoto:
            scaling = int(ScalingPolicyType.Iwamoto)
        else:
            refactor = int(RefactorPolicyType.EveryN)
        config.int_params = [scaling, refactor, line_search, REFACTOR_EVERY]
        sweep.set_algo_config(config)
        sweep.modify_load_p(np.ascontiguousarray(p_mw))
        sweep.modify_load_q(np.ascontiguousarray(q_mvar))
        sweep.compute(self._start, MAX_ITERATIONS, TOLERANCE_MVA)
        return Solution(
            np.array(sweep.get_voltages()),
            np.array(sweep.converged_mask(), dtype=bool),
            np.array(sweep.get_row_nb_iter(), dtype=np.int64),
        )


def bus_level_case(grid: Grid, setpoint_pu: Float[np.ndarray, " N"]) -> dict[str, object]:
    """The grid with one load per bus and one idle generator per voltage-controlled bus."""
    bus = grid.bus.copy()
    bus[:, BUS_TYPE] = np.select(
        [grid.bus_type == SLACK, grid.bus_type == PV], [MATPOWER_REF, MATPOWER_PV], MATPOWER_PQ
    )
    bus[:, [PD, QD]] = 1.0  # a bus without demand would get no load; values are set later
    bus[:, BASE_KV] = np.where(bus[:, BASE_KV] > 0, bus[:, BASE_KV], 1.0)
    controlled = np.flatnonzero(grid.bus_type != PQ)
    gen = np.zeros((len(controlled), 21))
    gen[:, GEN_BUS] = bus[controlled, BUS_I]
    gen[:, VG] = setpoint_pu[controlled]
    gen[:, [GEN_STATUS, MBASE]] = 1.0, grid.base_mva
    gen[:, [QMIN, QMAX, PMAX]] = -1e9, 1e9, 1e9
    branch = np.zeros((len(grid.branch), 13))
    branch[:, : grid.branch.shape[1]] = grid.branch
    branch[:, TAP] = np.where(branch[:, TAP] == 0, 1.0, branch[:, TAP])
    return {"bus": bus, "gen": gen, "branch": branch, "baseMVA": grid.base_mva}
