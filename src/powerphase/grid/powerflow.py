"""AC power flow of many steps at once: the chord method first, lightsim2grid's Newton for the rest.

The solver gets the network at bus level: one load per bus, which can draw or inject power, and one
idle generator per voltage-controlled bus. It then solves exactly what a data set stores, the net
consumption of each bus, and MATPOWER's definition holds where the solver's importer departs from it
(a generator at a PQ bus injects P and Q and controls no voltage).

Steps that Newton does not solve are tried again in a fixed order (`solve_with_rescue`), and each is
marked with the method that solved it. First comes Iwamoto's damped Newton, which solves steps that
Newton merely missed. Then comes back-off: all injections of the step are scaled down by 2 % at a
time. Steps that remain unsolved are left to the caller, which knows the state before them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Int, UInt8
from lightsim2grid.injectionSweep import InjectionSweepCPP
from lightsim2grid.lightsim2grid_cpp import RefactorPolicyType, ScalingPolicyType
from lightsim2grid.network import init_from_matpower

from powerphase.errors import PowerFlowError
from powerphase.grid.admittance import admittance_matrix
from powerphase.grid.case import (
    BASE_KV,
    BUS_I,
    BUS_TYPE,
    GEN_BUS,
    GEN_STATUS,
    MBASE,
    PD,
    PMAX,
    PQ,
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
"""The sweep takes its tolerance in MVA: 1e-10 p.u. on a base of 100 MVA."""

ANCHOR_LEVELS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
"""Multiples of the typical injections at which the chord method's Jacobians are frozen."""

MAX_ITERATIONS = 20
"""Near the limit of feasibility, 15 iterations miss solutions that 20 find."""

REFACTOR_EVERY = 3
"""Iterations per factorisation in Newton: saves a fifth to a third of the time, same result."""

NEWTON, IWAMOTO, BACKED_OFF, CARRIED = range(4)
"""How a step was solved; the state of a `CARRIED` step is carried forward from another step."""

BACKOFF_SCALES = tuple(round(1 - 0.02 * k, 2) for k in range(1, 16))
"""0.98, 0.96, ... 0.70."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Voltages of many steps; rows that did not converge are zero."""

    voltage: Complex[np.ndarray, "S N"]
    converged: Bool[np.ndarray, " S"]
    iterations: Int[np.ndarray, " S"]

    @classmethod
    def empty(cls, n_steps: int, n_buses: int) -> "Solution":
        """A solution in which no step has converged."""
        voltage = np.zeros((n_steps, n_buses), dtype=np.complex128)
        return cls(voltage, np.zeros(n_steps, dtype=bool), np.zeros(n_steps, dtype=np.int64))

    def update(self, rows: Int[np.ndarray, " n"], part: "Solution") -> None:
        """Replace the steps `rows` with those of another attempt."""
        self.voltage[rows] = part.voltage
        self.converged[rows] = part.converged
        self.iterations[rows] = part.iterations


class PowerFlow:
    """The power flow of a grid at fixed set-points, for any number of steps.

    Several threads may use it at once.

    Args:
        grid: the network.
        setpoint_pu: voltage of each slack and PV bus [p.u.]; values at PQ buses are ignored.
        p_mw: typical net consumption of each bus. It must be solvable: Newton starts from its
            solution, and the chord method from the solutions of its multiples.
        q_mvar: typical reactive net consumption of each bus.
    """

    def __init__(
        self,
        grid: Grid,
        setpoint_pu: Float[np.ndarray, " N"],
        p_mw: Float[np.ndarray, " N"],
        q_mvar: Float[np.ndarray, " N"],
    ) -> None:
        # The solver would ignore values that are not finite and keep its old ones.
        if not np.isfinite([p_mw, q_mvar, np.where(grid.bus_type == PQ, 1.0, setpoint_pu)]).all():
            raise PowerFlowError(
                f"grid {grid.name!r}: its mean injections or set-points contain non-finite numbers"
            )
        self._network = init_from_matpower(bus_level_case(grid, setpoint_pu))
        # Every bus has one load, so the sweep's columns are bus rows.
        for row in range(grid.n_buses):
            self._network.change_p_load(row, p_mw[row])
            self._network.change_q_load(row, q_mvar[row])
        self._start = self._solve_typical(grid, setpoint_pu)
        self._typical_mw = p_mw
        self.ybus = admittance_matrix(grid)
        self._levels, self._chords = self._make_chords(grid, p_mw, q_mvar)

    def _solve_typical(
        self, grid: Grid, setpoint_pu: Float[np.ndarray, " N"]
    ) -> Complex[np.ndarray, " N"]:
        flat = np.where(grid.bus_type == PQ, 1.0, setpoint_pu).astype(np.complex128)
        # The solver keeps the slack bus at its initial angle, which must be 0 for either start.
        angle_deg = grid.bus[:, VA] - grid.bus[grid.bus_type == SLACK, VA]
        from_file = grid.bus[:, VM] * np.exp(1j * np.deg2rad(angle_deg))
        for start in (flat, from_file):
            solution = np.array(self._network.ac_pf(start, 50, TOLERANCE_MVA))
            if solution.size:
                return solution
        raise PowerFlowError(
            f"grid {grid.name!r}: the power flow at its mean injections and these set-points does "
            "not converge; try another setpoint, e.g. the case file's (setpoint 'case')"
        )

    def _make_chords(
        self, grid: Grid, p_mw: Float[np.ndarray, " N"], q_mvar: Float[np.ndarray, " N"]
    ) -> tuple[Float[np.ndarray, " levels"], list[Chord]]:
        """The levels at which the typical injections are solvable, and a chord for each."""
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
        """Solve every step for its net consumption; failed steps are marked and raise nothing.

        Each step goes to the chord of the nearest load level; Newton solves the rest.
        """
        solution = Solution.empty(*p_mw.shape)
        with np.errstate(invalid="ignore"):  # a row that is not finite fails later, by itself
            level = (p_mw * self._typical_mw).sum(axis=1) / ((self._typical_mw**2).sum() or 1.0)
        nearest = np.abs(level[:, None] - self._levels).argmin(axis=1)
        for index, chord in enumerate(self._chords):
            rows = np.flatnonzero(nearest == index)
            if rows.size:
                voltage, iterations = chord.solve(p_mw[rows], q_mvar[rows])
                solution.update(rows, Solution(voltage, iterations > 0, iterations))
        rest = np.flatnonzero(~solution.converged)
        if rest.size:
            solution.update(rest, self.newton(p_mw[rest], q_mvar[rest]))
        return solution

    def newton(
        self,
        p_mw: Float[np.ndarray, "S N"],
        q_mvar: Float[np.ndarray, "S N"],
        iwamoto: bool = False,
    ) -> Solution:
        """Solve every step by Newton's method; failed rows are zero.

        `iwamoto` damps each iteration by Iwamoto's multiplier and factorises at every iteration.
        """
        # A new sweep each time: reusing one, or its base case, changes the last bits of results.
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
    bus[:, BUS_TYPE] = grid.bus_type
    bus[:, [PD, QD]] = 1.0  # a bus without demand would get no load; the values are set later
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


@dataclass(frozen=True, eq=False)
class RescuedSolution:
    """Voltages and the injections that they solve; `CARRIED` rows are unsolved and hold NaN."""

    voltage: Complex[np.ndarray, "S N"]
    p_mw: Float[np.ndarray, "S N"]
    q_mvar: Float[np.ndarray, "S N"]
    provenance: UInt8[np.ndarray, " S"]
    backoff: Float[np.ndarray, " S"]
    """Scale of the injections: 1 except for backed-off steps; NaN where every attempt failed."""
    iterations: Int[np.ndarray, " S"]
    """Iterations of the successful attempt; 0 where every attempt failed."""


def solve_with_rescue(
    flow: PowerFlow, p_mw: Float[np.ndarray, "S N"], q_mvar: Float[np.ndarray, "S N"]
) -> RescuedSolution:
    """Solve every step, by Newton where possible, and record how each was solved."""
    first = flow.solve(p_mw, q_mvar)
    n_steps = len(p_mw)
    open_rows = np.flatnonzero(~first.converged)
    if open_rows.size:  # their injections will change; the caller's arrays must not
        p_mw, q_mvar = p_mw.copy(), q_mvar.copy()
    result = RescuedSolution(
        voltage=first.voltage,
        p_mw=p_mw,
        q_mvar=q_mvar,
        provenance=np.full(n_steps, NEWTON, dtype=np.uint8),
        backoff=np.ones(n_steps),
        iterations=first.iterations,
    )
    if not open_rows.size:
        return result
    attempt = flow.newton(p_mw[open_rows], q_mvar[open_rows], iwamoto=True)
    open_rows = _enter_solved(result, open_rows, attempt, IWAMOTO, 1.0)
    for scale in BACKOFF_SCALES:
        if not open_rows.size:
            break
        attempt = flow.solve(scale * p_mw[open_rows], scale * q_mvar[open_rows])
        open_rows = _enter_solved(result, open_rows, attempt, BACKED_OFF, scale)
    result.provenance[open_rows] = CARRIED
    for values in (result.voltage, result.p_mw, result.q_mvar, result.backoff):
        values[open_rows] = np.nan
    result.iterations[open_rows] = 0
    return result


def _enter_solved(
    result: RescuedSolution,
    rows: Int[np.ndarray, " open"],
    attempt: Solution,
    provenance: int,
    scale: float,
) -> Int[np.ndarray, " still_open"]:
    """Enter the rows that the attempt solved; return the rows that are still open."""
    solved = rows[attempt.converged]
    result.voltage[solved] = attempt.voltage[attempt.converged]
    result.iterations[solved] = attempt.iterations[attempt.converged]
    result.provenance[solved] = provenance
    result.backoff[solved] = scale
    if scale != 1.0:
        result.p_mw[solved] *= scale
        result.q_mvar[solved] *= scale
    return rows[~attempt.converged]
