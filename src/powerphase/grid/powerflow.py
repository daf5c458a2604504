"""AC power flow of many steps at once: the chord method first, lightsim2grid's Newton for the rest.

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
from powerphase.grid.admittance import admittance
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
from powerphase.grid.chord import Chord

TOLERANCE_MVA = 1e-8
"""The sweep's tolerance is in MVA: this is 1e-10 p.u. on a base of 100 MVA."""

ANCHOR_LEVELS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
"""Multiples of the typical injections at which the chord method's Jacobians are frozen."""

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

    @classmethod
    def empty(cls, n_steps: int, n_buses: int) -> "Solution":
        """Room for so many steps, none of them solved."""
        voltage = np.zeros((n_steps, n_buses), dtype=np.complex128)
        return cls(voltage, np.zeros(n_steps, dtype=bool), np.zeros(n_steps, dtype=np.int64))

    def accept(self, rows: Int[np.ndarray, " n"], part: "Solution") -> None:
        """Take over what another attempt found for the given rows."""
        self.voltage[rows] = part.voltage
        self.converged[rows] = part.converged
        self.iterations[rows] = part.iterations


class PowerFlow:
    """A grid at fixed set-points, ready to be solved for any number of steps.

    It may be used by several threads at once.

    Args:
        grid: the network.
        setpoint_pu: voltage of each slack and PV bus [p.u.]; values at PQ buses are ignored.
        p_mw: a typical net consumption of each bus, which must be solvable: Newton starts from its
            solution, and the chord method from those of its multiples.
        q_mvar: its reactive part.
    """

    def __init__(
        self,
        grid: Grid,
        setpoint_pu: Float[np.ndarray, " N"],
        p_mw: Float[np.ndarray, " N"],
        q_mvar: Float[np.ndarray, " N"],
    ) -> None:
        # The solver would pass over what is not a number and keep what it had.
        if not np.isfinite([p_mw, q_mvar, np.where(grid.bus_type == PQ, 1.0, setpoint_pu)]).all():
            raise PowerFlowError(
                f"grid {grid.name!r}: its mean injections or set-points are not all finite numbers"
            )
        self._network = init_from_matpower(bus_level_case(grid, setpoint_pu))
        # Every bus owns a load, so columns of the sweep are bus rows.
        for row in range(grid.n_buses):
            self._network.change_p_load(row, p_mw[row])
            self._network.change_q_load(row, q_mvar[row])
        self._start = self._solve_typical(grid, setpoint_pu)
        self._typical_mw = p_mw
        self.ybus = admittance(grid)
        self._levels, self._chords = self._anchored(grid, p_mw, q_mvar)

    def _solve_typical(
        self, grid: Grid, setpoint_pu: Float[np.ndarray, " N"]
    ) -> Complex[np.ndarray, " N"]:
        flat = np.where(grid.bus_type == PQ, 1.0, setpoint_pu).astype(np.complex128)
        # The solver keeps the slack bus at the angle it starts from; ours is 0, whichever start.
        angle_deg = grid.bus[:, VA] - grid.bus[grid.bus_type == SLACK, VA]
        file = grid.bus[:, VM] * np.exp(1j * np.deg2rad(angle_deg))
        for start in (flat, file):
            solution = np.array(self._network.ac_pf(start, 50, TOLERANCE_MVA))
            if solution.size:
                return solution
        raise PowerFlowError(
            f"grid {grid.name!r}: no power flow at its mean injections and these set-points; "
            "try another setpoint, e.g. the case file's own (setpoint 'case')"
        )

    def _anchored(
        self, grid: Grid, p_mw: Float[np.ndarray, " N"], q_mvar: Float[np.ndarray, " N"]
    ) -> tuple[Float[np.ndarray, " levels"], list[Chord]]:
        """The levels whose multiple of the typical injections solves, and the chords there."""
        levels = np.array(ANCHOR_LEVELS)
        anchors = self.newton(np.outer(levels, p_mw), np.outer(levels, q_mvar))
        tolerance_pu, solved = TOLERANCE_MVA / grid.base_mva, anchors.converged
        chords = [Chord(grid, self.ybus, v, tolerance_pu) for v in anchors.voltage[solved]]
        return levels[solved], chords

    @property
    def start(self) -> Complex[np.ndarray, " N"]:
        """The solution at typical injections, from which Newton starts."""
        return self._start

    def solve(self, p_mw: Float[np.ndarray, "S N"], q_mvar: Float[np.ndarray, "S N"]) -> Solution:
        """Solve every step for the given net consumption; failed rows are marked, never raised.

        Each step goes to the chord of the nearest load level; Newton takes what it leaves.
        """
        found = Solution.empty(*p_mw.shape)
        with np.errstate(invalid="ignore"):  # a row that is not finite fails later, alone
            level = (p_mw * self._typical_mw).sum(axis=1) / ((self._typical_mw**2).sum() or 1.0)
        nearest = np.abs(level[:, None] - self._levels).argmin(axis=1)
        for index, chord in enumerate(self._chords):
            rows = np.flatnonzero(nearest == index)
            if rows.size:
                found.voltage[rows], found.iterations[rows] = chord.solve(p_mw[rows], q_mvar[rows])
        found.converged[:] = found.iterations > 0
        rest = np.flatnonzero(~found.converged)
        if rest.size:
            found.accept(rest, self.newton(p_mw[rest], q_mvar[rest]))
        return found

    def newton(
        self,
        p_mw: Float[np.ndarray, "S N"],
        q_mvar: Float[np.ndarray, "S N"],
        iwamoto: bool = False,
    ) -> Solution:
        """Solve every step by Newton's method; failed rows hold zeros.

        `iwamoto` damps each step by Iwamoto's multiplier and refactors always.
        """
        # A new object each time: a used one changes the last bits of later results, and its base
        # case, if it is kept, does too.
        sweep = InjectionSweepCPP(self._network)
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
