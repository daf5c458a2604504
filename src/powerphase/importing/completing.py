"""What a source does not have, and the grid determines: solved, with what is observed by it.

Two things may be missing. If V and θ of all buses are known, P and Q follow from them. Otherwise
the power flow gives V and θ from what the types of buses need: P and Q at PQ buses, P and V at PV
buses, V at the slack. Given values stay as they are.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float
from scipy.sparse import csr_array, diags_array, hstack, vstack
from scipy.sparse.linalg import splu

from powerphase.axes import KINDS, THETA, VARIABLES, P, Q, V
from powerphase.errors import PowerFlowError, RecordError
from powerphase.grid.admittance import admittance_matrix, consumption_mva
from powerphase.grid.case import PD, PQ, PV, QD, SLACK, Grid
from powerphase.grid.powerflow import PowerFlow
from powerphase.importing.balance import known_points
from powerphase.importing.cleaning import fill_gaps
from powerphase.importing.draft import Draft

SOLVED_SHARE = 0.95
"""Of all steps; a record of which less can be solved has wrong units, signs or another grid."""

HELD_PU = 1e-9
"""A voltage that varies by less is held."""

TOLERANCE_PU = 1e-10
MAX_ITERATIONS = 30


@dataclass(frozen=True, eq=False)
class Completion:
    """Which points are observed, and how the rest came about."""

    observed: Bool[np.ndarray, "S N 4"]
    """Given, or solved from values of the step that are all given."""
    solved: list[str]
    """The variables that were solved at some bus."""
    mismatch: Float[np.ndarray, " S"]
    """Largest mismatch of the solved steps [p.u.]; NaN where nothing was solved."""


def complete(draft: Draft, past: Float[np.ndarray, "T N 4"] | None = None) -> Completion:
    """Fill gaps and solve what is missing, in place; raise if the source does not suffice."""
    observed = ~np.isnan(draft.values)
    unsolved = np.full(draft.n_steps, np.nan)
    if draft.grid is None:
        fill_gaps(draft, past)
        _hold_absent(draft)
        return Completion(observed, [], unsolved)
    _add_known(draft, draft.grid, observed)
    given = draft.given.copy()
    solved = [name for kind, name in enumerate(VARIABLES) if not given[:, kind].all()]
    fill_gaps(draft, past)
    if not given[:, [V, THETA]].all():
        unsolved = _solve_voltages(draft, draft.grid, observed, past)
    if not given[:, [P, Q]].all():
        _solve_powers(draft, draft.grid, observed)
    return Completion(observed, solved, unsolved)


def _hold_absent(draft: Draft) -> None:
    """Give channels that the source lacks, without a grid, a constant that is never observed."""
    for kind, constant in ((P, 0.0), (Q, 0.0), (V, 1.0), (THETA, 0.0)):
        absent = ~draft.given[:, kind]
        draft.values[:, absent, kind] = constant
        if absent.any():
            draft.notes.append(
                f"{VARIABLES[kind]} of {int(absent.sum()):,} buses is unknown: held at {constant:g}"
                " and never scored"
            )


def _add_known(draft: Draft, grid: Grid, observed: Bool[np.ndarray, "S N 4"]) -> None:
    """What the case knows: powers of buses without load and generator, and held voltages."""
    has_generator = np.zeros(grid.n_buses, dtype=bool)
    has_generator[grid.generator_row[grid.generator_on]] = True
    is_idle = ~has_generator & (grid.bus[:, PD] == 0) & (grid.bus[:, QD] == 0)
    is_idle &= ~draft.given[:, [P, Q]].any(axis=1)
    if not draft.given[:, [V, THETA]].all() and is_idle.any():
        for kind in (P, Q):
            _give(draft, observed, is_idle, kind, 0.0)
        draft.notes.append(f"P and Q of {int(is_idle.sum()):,} buses without load and generator: 0")
    holds = (grid.bus_type != PQ) & ~draft.given[:, V]
    if holds.any() and draft.given[:, P].any():
        _give(draft, observed, holds, V, grid.setpoint_pu[holds])
        draft.notes.append(f"V of {int(holds.sum()):,} slack and PV buses: the case's set-points")


def _give(
    draft: Draft,
    observed: Bool[np.ndarray, "S N 4"],
    buses: Bool[np.ndarray, " N"],
    kind: int,
    value: "float | np.ndarray",
) -> None:
    draft.values[:, buses, kind] = value
    draft.given[buses, kind] = True
    observed[:, buses, kind] = True


def _solve_powers(draft: Draft, grid: Grid, observed: Bool[np.ndarray, "S N 4"]) -> None:
    """P and Q from V and θ, observed where those of the bus and its neighbours are."""
    ybus = admittance_matrix(grid)
    seen = np.where(observed, 0.0, np.nan)
    known = known_points(seen, ybus)
    voltage = draft.values[..., V] * np.exp(1j * draft.values[..., THETA])
    power = consumption_mva(ybus, grid.base_mva, voltage)
    for kind, part in ((P, power.real), (Q, power.imag)):
        missing = ~draft.given[:, kind]
        draft.values[:, missing, kind] = part[:, missing]
        observed[:, missing, kind] = known[:, missing]
        draft.given[missing, kind] = True


def _solve_voltages(
    draft: Draft,
    grid: Grid,
    observed: Bool[np.ndarray, "S N 4"],
    past: Float[np.ndarray, "T N 4"] | None,
) -> Float[np.ndarray, " S"]:
    """V and θ, and the powers that follow, from the power flow; returns its mismatch."""
    _check_sufficient(draft, grid)
    types = grid.bus_type
    needed = np.zeros((grid.n_buses, KINDS), dtype=bool)
    needed[types != SLACK, P] = needed[types == PQ, Q] = needed[types != PQ, V] = True
    values, missing = draft.values, ~draft.given
    angle = values[:, types == SLACK, THETA][:, 0] if not missing[types == SLACK, THETA][0] else 0.0
    voltage, mismatch = _power_flow(draft, grid)
    voltage = voltage * np.exp(1j * np.broadcast_to(angle, len(voltage)))[:, None]
    power = consumption_mva(admittance_matrix(grid), grid.base_mva, voltage)
    has_all = observed[:, needed].all(axis=1) & ~np.isnan(mismatch)
    parts = (power.real, power.imag, np.abs(voltage), np.angle(voltage))
    for kind, part in enumerate(parts):
        values[:, missing[:, kind], kind] = part[:, missing[:, kind]]
        observed[:, missing[:, kind], kind] = has_all[:, None]
    n_unsolved = int(np.isnan(mismatch).sum())
    if n_unsolved:
        draft.notes.append(f"{n_unsolved:,} steps have no power flow: solved values filled")
        fill_gaps(draft, past, missing)
    draft.given |= missing
    return mismatch


def _check_sufficient(draft: Draft, grid: Grid) -> None:
    """Raise if some bus lacks what its type needs, naming the first."""
    needs = {PQ: (P, Q), PV: (P, V), SLACK: (V,)}
    for bus, kind in enumerate(grid.bus_type.tolist()):
        lacking = [variable for variable in needs[kind] if not draft.given[bus, variable]]
        if lacking:
            title = {PQ: "PQ", PV: "PV", SLACK: "slack"}[kind]
            names = " and ".join(VARIABLES[variable] for variable in lacking)
            count = int(
                sum(
                    not draft.given[other, list(needs[code])].all()
                    for other, code in enumerate(grid.bus_type.tolist())
                )
            )
            raise RecordError(
                f"{draft.source}: {names} of {title} bus {draft.places.label(bus)} is missing "
                f"({count} buses lack something); the grid needs P and Q of PQ buses, P and V of "
                "PV buses and V of the slack, or V and theta of all"
            )


def _power_flow(
    draft: Draft, grid: Grid
) -> tuple[Complex[np.ndarray, "S N"], Float[np.ndarray, " S"]]:
    """The voltages of each step, with angle 0 at the slack, and the mismatch; NaN if unsolved."""
    types, values = grid.bus_type, draft.values
    p_mw, q_mvar = np.nan_to_num(values[..., P]), np.nan_to_num(values[..., Q])
    p_mw[:, types == SLACK] = 0.0
    q_mvar[:, types != PQ] = 0.0
    held = np.where(types == PQ, 1.0, np.nan_to_num(values[..., V], nan=1.0))
    mean = held.mean(axis=0)
    try:
        flow = PowerFlow(grid, mean, p_mw.mean(axis=0), q_mvar.mean(axis=0))
    except PowerFlowError as error:
        raise RecordError(
            f"{draft.source}: the mean of its powers has no power flow in grid {grid.name!r}; "
            "check units, signs and the grid"
        ) from error
    if np.ptp(held, axis=0).max() <= HELD_PU:
        solution = flow.solve(p_mw, q_mvar)
        voltage, converged = solution.voltage.copy(), solution.converged
        rest = np.flatnonzero(~converged)
        if rest.size:
            damped = flow.newton(p_mw[rest], q_mvar[rest], iwamoto=True)
            voltage[rest[damped.converged]] = damped.voltage[damped.converged]
            converged[rest] = damped.converged
    else:
        voltage, converged = _newton(grid, flow, p_mw, q_mvar, held)
    if converged.mean() < SOLVED_SHARE:
        step = int(np.flatnonzero(~converged)[0])
        raise RecordError(
            f"{draft.source}: {1 - converged.mean():.0%} of the steps have no power flow in grid "
            f"{grid.name!r}, first {draft.time[step]}; check units, signs and the grid"
        )
    deviation = consumption_mva(flow.ybus, grid.base_mva, voltage) - (p_mw + 1j * q_mvar)
    size = np.maximum(
        np.abs(deviation.real[:, types != SLACK]).max(axis=1, initial=0.0),
        np.abs(deviation.imag[:, types == PQ]).max(axis=1, initial=0.0),
    )
    voltage[~converged] = np.nan
    return voltage, np.where(converged, size / grid.base_mva, np.nan)


def _newton(
    grid: Grid,
    flow: PowerFlow,
    p_mw: Float[np.ndarray, "S N"],
    q_mvar: Float[np.ndarray, "S N"],
    held: Float[np.ndarray, "S N"],
) -> tuple[Complex[np.ndarray, "S N"], Bool[np.ndarray, " S"]]:
    """The voltages of steps whose set-points vary, each from the step before it."""
    voltage = np.zeros(p_mw.shape, dtype=np.complex128)
    converged = np.zeros(len(p_mw), dtype=bool)
    start = flow.start
    power_pu = -(p_mw + 1j * q_mvar) / grid.base_mva
    for step, target in enumerate(power_pu):
        angle = np.angle(start)
        size = np.where(grid.bus_type == PQ, np.abs(start), held[step])
        voltage[step], converged[step] = _newton_step(grid, flow.ybus, size, angle, target)
        start = voltage[step] if converged[step] else flow.start
    return voltage, converged


def _newton_step(
    grid: Grid,
    ybus: csr_array,
    size: Float[np.ndarray, " N"],
    angle: Float[np.ndarray, " N"],
    power_pu: Complex[np.ndarray, " N"],
) -> tuple[Complex[np.ndarray, " N"], bool]:
    """Newton's method in polar coordinates for the power that each bus injects."""
    free = np.flatnonzero(grid.bus_type != SLACK)
    loads = np.flatnonzero(grid.bus_type == PQ)
    for _ in range(MAX_ITERATIONS):
        voltage = size * np.exp(1j * angle)
        current = ybus @ voltage
        error = voltage * current.conj() - power_pu
        residual = np.concatenate([error.real[free], error.imag[loads]])
        if np.abs(residual).max(initial=0.0) < TOLERANCE_PU:
            return voltage, True
        if not np.isfinite(residual).all():
            break
        unit, diagonal = diags_array(voltage / size), diags_array(voltage)
        by_size = diagonal @ (ybus @ unit).conj() + diags_array(current.conj()) @ unit
        by_angle = 1j * diagonal @ (diags_array(current) - ybus @ diagonal).conj()
        by_angle, by_size = by_angle.tocsr(), by_size.tocsr()
        jacobian = vstack(
            [
                hstack([by_angle.real[free][:, free], by_size.real[free][:, loads]]),
                hstack([by_angle.imag[loads][:, free], by_size.imag[loads][:, loads]]),
            ]
        )
        try:
            change = splu(jacobian.tocsc()).solve(residual)
        except RuntimeError:  # singular
            break
        angle, size = angle.copy(), size.copy()
        angle[free] -= change[: len(free)]
        size[loads] -= change[len(free) :]
    return size * np.exp(1j * angle), False
