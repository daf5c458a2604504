"""Newton's method with a frozen Jacobian: each step of the record costs a few triangular solves.

Newton factorises one Jacobian per iteration and step, which is nearly all of its cost. The steps
of a record lie close to a few states, and with the Jacobian of a nearby state the iteration (the
chord method) still converges: about ten cheap iterations instead of four expensive ones. Both
methods stop at the same tolerance and so reach the same state; steps too far from any anchor are
left to Newton.

Voltages are rectangular, V = e + jf, which makes the equations quadratic and avoids sines. The
factors are float32: a frozen Jacobian is approximate anyway, and memory bandwidth is the limit.
Sixteen steps share each pass through the factors, one per vector lane. Lanes are independent: the
bits of a step do not depend on the steps in other lanes.
"""

from typing import Any, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Complex, Float, Int
from numba import njit
from scipy.sparse import block_array, csr_array, diags_array, tril, triu
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import SuperLU, splu

from powerphase.grid.case import PQ, SLACK, Grid

LANES = 16
MAX_ITERATIONS = 40
DIVERGED = 1e6
"""Mismatch [p.u.] beyond which a step counts as diverged."""

PIVOT_THRESHOLD = 1e-3
"""Low, to keep the factors sparse; a frozen Jacobian does not need their last digits."""


class Equations(NamedTuple):
    """The admittance matrix by rows, and the equations of each bus whose voltage is free."""

    start: np.ndarray
    bus: np.ndarray
    g: np.ndarray
    b: np.ndarray
    free: np.ndarray
    v_squared: np.ndarray
    """Fixed V² of a voltage-controlled bus; NaN at a PQ bus."""
    row: np.ndarray
    """Row of LU of each equation, those of P first."""


class Factors(NamedTuple):
    """The strict triangles of L and U by columns, and the inverse of U's diagonal."""

    l_start: np.ndarray
    l_row: np.ndarray
    l_value: np.ndarray
    u_start: np.ndarray
    u_row: np.ndarray
    u_value: np.ndarray
    u_inverse: np.ndarray
    column: np.ndarray
    """Column of LU of each unknown, those of f first."""


class Chord:
    """The equations of one grid with the Jacobian frozen at `anchor`, a solved state.

    Slack and PV buses keep the anchor's voltage magnitudes.
    """

    def __init__(
        self, grid: Grid, ybus: csr_array, anchor: Complex[np.ndarray, " N"], tolerance_pu: float
    ) -> None:
        self._base_mva = grid.base_mva
        self._tolerance = tolerance_pu
        # Neighbours in the network become neighbours in memory.
        self._order = reverse_cuthill_mckee(ybus, symmetric_mode=True).astype(np.int64)
        ybus = ybus[self._order][:, self._order].tocsr()
        anchor, bus_type = anchor[self._order], grid.bus_type[self._order]
        self._anchor = np.stack([anchor.real, anchor.imag], axis=1)
        free = np.flatnonzero(bus_type != SLACK)
        holds_v = (bus_type != PQ)[free]
        factors = splu(
            _jacobian(ybus, anchor, free, holds_v).tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=PIVOT_THRESHOLD,
            options={"SymmetricMode": True},
        )
        self._equations = Equations(
            start=ybus.indptr,
            bus=ybus.indices.astype(np.uint32),
            g=ybus.data.real.copy(),
            b=ybus.data.imag.copy(),
            free=free,
            v_squared=np.where(holds_v, np.abs(anchor[free]) ** 2, np.nan),
            row=factors.perm_r.astype(np.int64),
        )
        self._factors = _to_columns(factors)

    def solve(
        self, p_mw: Float[np.ndarray, "S N"], q_mvar: Float[np.ndarray, "S N"]
    ) -> tuple[Complex[np.ndarray, "S N"], Int[np.ndarray, " S"]]:
        """Voltages and iterations of each step for its net consumption; 0 iterations: failed."""
        # Rows are buses in cache order, columns are steps: a lane reads and writes one column.
        p_pu, q_pu = (x.T[self._order] / -self._base_mva for x in (p_mw, q_mvar))
        e, f = np.zeros(p_pu.shape), np.zeros(p_pu.shape)
        iterations = np.zeros(len(p_mw), dtype=np.int64)
        _solve_all(
            self._equations, self._factors, self._anchor, self._tolerance,
            p_pu, q_pu, e, f, iterations,
        )  # fmt: skip
        voltage = np.empty(p_mw.shape, dtype=np.complex128)
        voltage.real[:, self._order], voltage.imag[:, self._order] = e.T, f.T
        return voltage, iterations


def _jacobian(
    ybus: csr_array,
    state: Complex[np.ndarray, " N"],
    free: Int[np.ndarray, " free"],
    holds_v: Bool[np.ndarray, " free"],
) -> csr_array:
    """Derivatives of P, then of Q (V² at voltage-controlled buses), by f, then by e.

    From S = V conj(YV). P depends mostly on f and Q on e, so this order makes the diagonal large.
    """
    current = diags_array((ybus @ state).conj())
    product = diags_array(state) @ ybus.conj()
    by_e, by_f = (current + product).tocsr(), (1j * (current - product)).tocsr()
    by_e, by_f = by_e[free][:, free], by_f[free][:, free]
    pq, pv = diags_array((~holds_v).astype(float)), diags_array(holds_v.astype(float))
    v = state[free]
    q_by_f = pq @ by_f.imag + pv @ diags_array(2 * v.imag)
    q_by_e = pq @ by_e.imag + pv @ diags_array(2 * v.real)
    return block_array([[by_f.real, by_e.real], [q_by_f, q_by_e]], format="csr")


def _to_columns(factors: SuperLU) -> Factors:
    lower, upper = tril(factors.L, -1).tocsc(), triu(factors.U, 1).tocsc()
    return Factors(
        l_start=lower.indptr,
        l_row=lower.indices.astype(np.uint32),
        l_value=lower.data.astype(np.float32),
        u_start=upper.indptr,
        u_row=upper.indices.astype(np.uint32),
        u_value=upper.data.astype(np.float32),
        u_inverse=(1 / factors.U.diagonal()).astype(np.float32),
        column=factors.perm_c.astype(np.int64),
    )


# The kernels work on arrays (buses, 2 x LANES): e in the first lanes of a row, f in the others.
# Their innermost loops have a short, fixed length, which compiles to vector instructions.
# Columns are copied by loops, because assigned slices take seconds to compile.


@njit(cache=True, nogil=True, error_model="numpy")
@no_type_check  # numba cannot compile the wrapper of a type checker
def _solve_all(
    equations: Any, factors: Any, anchor: Any, tolerance: float,
    p_all: Any, q_all: Any, e_all: Any, f_all: Any, iterations: Any,
) -> None:  # fmt: skip
    """Solve every column; a lane that has finished a step starts on the next waiting one.

    Where a step does not converge, `iterations` and the voltages stay 0.
    """
    n_buses, n_steps = p_all.shape
    p, q = np.zeros((n_buses, LANES)), np.zeros((n_buses, LANES))
    state = np.empty((n_buses, 2 * LANES))
    step = np.empty((2 * equations.free.size, LANES), dtype=np.float32)
    active, worst = np.zeros(LANES), np.empty(LANES)
    column, count = np.full(LANES, -1), np.zeros(LANES, dtype=np.int64)
    waiting = 0
    for m in range(LANES):
        waiting = _start_lane(m, waiting, n_steps, anchor, p_all, q_all, p, q, state, column, count)
    while (column >= 0).any():
        _mismatch(equations, p, q, state, step, worst)
        for m in range(LANES):
            active[m] = 0.0
            if column[m] < 0:
                continue
            count[m] += 1
            converged = worst[m] <= tolerance
            if converged:
                iterations[column[m]] = count[m]
                for i in range(n_buses):
                    e_all[i, column[m]], f_all[i, column[m]] = state[i, m], state[i, m + LANES]
            if converged or not worst[m] < DIVERGED or count[m] == MAX_ITERATIONS:
                waiting = _start_lane(
                    m, waiting, n_steps, anchor, p_all, q_all, p, q, state, column, count
                )
            else:
                active[m] = 1.0
        _substitute(factors, step)
        _advance(equations.free, factors.column, step, active, state)


@njit(cache=True, nogil=True, error_model="numpy")
@no_type_check
def _start_lane(
    m: int, waiting: int, n_steps: int, anchor: Any,
    p_all: Any, q_all: Any, p: Any, q: Any, state: Any, column: Any, count: Any,
) -> int:  # fmt: skip
    """Start lane `m` on the first waiting step, if any; return the next waiting step."""
    for i in range(len(state)):
        state[i, m], state[i, m + LANES] = anchor[i, 0], anchor[i, 1]
    count[m] = 0
    if waiting == n_steps:
        column[m] = -1
        return waiting
    for i in range(len(p)):
        p[i, m], q[i, m] = p_all[i, waiting], q_all[i, waiting]
    column[m] = waiting
    return waiting + 1


@njit(cache=True, nogil=True, error_model="numpy")
@no_type_check
def _mismatch(equations: Any, p: Any, q: Any, state: Any, residual: Any, worst: Any) -> None:
    """Specified minus calculated power, in LU's row order, and its largest size per lane."""
    start, bus, g, b, free, v_squared, row = equations
    n = free.size
    by_g, by_b = np.empty(2 * LANES), np.empty(2 * LANES)
    error = np.empty(2 * LANES)
    worst[:] = 0.0
    for k in range(n):
        i = free[k]
        by_g[:] = 0.0
        by_b[:] = 0.0
        for a in range(start[i], start[i + 1]):
            j, ga, ba = bus[a], g[a], b[a]
            for m in range(2 * LANES):
                by_g[m] += ga * state[j, m]
                by_b[m] += ba * state[j, m]
        for m in range(LANES):
            e, f = state[i, m], state[i, m + LANES]
            current_re, current_im = by_g[m] - by_b[m + LANES], by_g[m + LANES] + by_b[m]
            error[m] = p[i, m] - (e * current_re + f * current_im)
            error[m + LANES] = q[i, m] - (f * current_re - e * current_im)
        if not np.isnan(v_squared[k]):
            for m in range(LANES):
                error[m + LANES] = v_squared[k] - (state[i, m] ** 2 + state[i, m + LANES] ** 2)
        for m in range(LANES):
            residual[row[k], m] = error[m]
            residual[row[n + k], m] = error[m + LANES]
            larger = max(abs(error[m]), abs(error[m + LANES]))
            if not larger <= worst[m]:  # negated, so that NaN counts as larger
                worst[m] = larger


@njit(cache=True, nogil=True, error_model="numpy")
@no_type_check
def _substitute(factors: Any, x: Any) -> None:
    """Solve LUx = x in place."""
    l_start, l_row, l_value, u_start, u_row, u_value, u_inverse, _ = factors
    n = u_inverse.size
    for j in range(n):
        for a in range(l_start[j], l_start[j + 1]):
            i, value = l_row[a], l_value[a]
            for m in range(LANES):
                x[i, m] -= value * x[j, m]
    for j in range(n - 1, -1, -1):
        for m in range(LANES):
            x[j, m] *= u_inverse[j]
        for a in range(u_start[j], u_start[j + 1]):
            i, value = u_row[a], u_value[a]
            for m in range(LANES):
                x[i, m] -= value * x[j, m]


@njit(cache=True, nogil=True, error_model="numpy")
@no_type_check
def _advance(free: Any, column: Any, step: Any, active: Any, state: Any) -> None:
    """Add the step, first f then e, to the active lanes."""
    n = free.size
    for k in range(n):
        i, f_row, e_row = free[k], column[k], column[n + k]
        for m in range(LANES):
            # Not a product with 0 or 1: the step of a lane that just failed may be NaN.
            state[i, m] += step[e_row, m] if active[m] == 1.0 else 0.0
            state[i, m + LANES] += step[f_row, m] if active[m] == 1.0 else 0.0
