"""Steps that Newton does not solve: tried again in a fixed order, and marked by how it ended.

First Iwamoto's damped Newton, which solves what Newton merely missed. Then back-off: the whole
step's injections scaled down by 2 % at a time, which answers a slightly easier question and says
so. What is left unsolved is left to the caller, who alone knows the state before it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex, Float, Int, UInt8

from powerphase.grid.powerflow import PowerFlow, Solution

NEWTON, IWAMOTO, BACKED_OFF, CARRIED = range(4)
PROVENANCE = ("newton", "iwamoto", "backed off", "carried forward")
BACKOFF_SCALES = tuple(round(1 - 0.02 * k, 2) for k in range(1, 16))
"""0.98, 0.96, ... 0.70."""


@dataclass(frozen=True, eq=False)
class RescuedSolution:
    """Voltages and the injections that they solve; `CARRIED` rows are unsolved and hold NaN."""

    voltage: Complex[np.ndarray, "S N"]
    p_mw: Float[np.ndarray, "S N"]
    q_mvar: Float[np.ndarray, "S N"]
    provenance: UInt8[np.ndarray, " S"]
    backoff: Float[np.ndarray, " S"]
    """The scale of the injections: 1 except for steps backed off; NaN where nothing helped."""
    iterations: Int[np.ndarray, " S"]
    """Iterations of the attempt that succeeded; 0 where none did."""


def solve_with_rescue(
    flow: PowerFlow, p_mw: Float[np.ndarray, "S N"], q_mvar: Float[np.ndarray, "S N"]
) -> RescuedSolution:
    """Solve every step, by Newton where it can, and say for each how it was solved."""
    first = flow.solve(p_mw, q_mvar)
    n_steps = len(p_mw)
    open_rows = np.flatnonzero(~first.converged)
    if open_rows.size:  # their injections are about to change, the caller's are not
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
    open_rows = _accept(result, open_rows, attempt, IWAMOTO, 1.0)
    for scale in BACKOFF_SCALES:
        if not open_rows.size:
            break
        attempt = flow.solve(scale * p_mw[open_rows], scale * q_mvar[open_rows])
        open_rows = _accept(result, open_rows, attempt, BACKED_OFF, scale)
    result.provenance[open_rows] = CARRIED
    for unsolved in (result.voltage, result.p_mw, result.q_mvar, result.backoff):
        unsolved[open_rows] = np.nan
    result.iterations[open_rows] = 0
    return result


def _accept(
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
