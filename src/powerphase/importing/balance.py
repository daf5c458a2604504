"""Whether the powers, voltages and angles of a source fit the grid: signs and units by the balance.

The AC equations give the consumption of a bus from the voltages and angles around it. If another
sign, another unit or another order of the columns explains the source far better than what was
stated, the statement is wrong, and an import stops.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float
from scipy.sparse import csr_array

from powerphase.axes import THETA, P, Q, V
from powerphase.errors import RecordError
from powerphase.grid.admittance import admittance_matrix, consumption_mva
from powerphase.grid.case import PD, PG, Grid
from powerphase.importing.draft import Draft

SAMPLED_STEPS = 200
"""Steps of the record that are compared, evenly spread."""

WRONG = 0.05
"""A residual above this share of the powers needs an explanation."""

EXPLAINED = 0.2
"""An explanation leaves less than this share of the residual."""

OPPOSED = -0.5
"""A correlation with the loads and generators of the case below this has the opposite sign."""

State = tuple[
    Float[np.ndarray, "S N"],
    Float[np.ndarray, "S N"],
    Float[np.ndarray, "S N"],
    Float[np.ndarray, "S N"],
]


@dataclass(frozen=True)
class Suspicion:
    """A statement about a source that may be wrong, and what would follow if it is."""

    text: str
    advice: str
    corrected: Callable[[State], State]


def _scaled(kind: int, factor: float) -> Callable[[State], State]:
    def corrected(state: State) -> State:
        parts = list(state)
        parts[kind] = factor * parts[kind]
        return tuple(parts)  # type: ignore[return-value]

    return corrected


def _units(kind: int, name: str) -> Iterator[Suspicion]:
    for factor in (1e-3, 1e3, 1e-6, 1e6):
        yield Suspicion(
            f"{name} is {1 / factor:g} times as large as V and theta imply",
            f"check the unit of {name}",
            _scaled(kind, factor),
        )


SUSPICIONS = (
    Suspicion("P has the opposite sign", "change the sign of P", _scaled(P, -1.0)),
    Suspicion("Q has the opposite sign", "change the sign of Q", _scaled(Q, -1.0)),
    Suspicion(
        "P and Q have the opposite sign",
        "change the signs of P and Q",
        lambda state: (-state[P], -state[Q], state[V], state[THETA]),
    ),
    Suspicion(
        "P and Q are swapped",
        "exchange their columns",
        lambda state: (state[Q], state[P], state[V], state[THETA]),
    ),
    *_units(P, "P"),
    *_units(Q, "Q"),
    Suspicion(
        "P and Q are 1000 times as large as V and theta imply",
        "check the units of P and Q",
        lambda state: (1e-3 * state[P], 1e-3 * state[Q], state[V], state[THETA]),
    ),
    Suspicion("theta is in degrees", "state its unit", _scaled(THETA, np.pi / 180)),
    Suspicion("theta is in rad, not in degrees", "state its unit", _scaled(THETA, 180 / np.pi)),
)


def check_balance(draft: Draft) -> None:
    """Raise if another sign, unit or order of columns explains the source far better."""
    grid = draft.grid
    if grid is None:
        return
    check_direction(draft, grid)
    steps = np.linspace(0, draft.n_steps - 1, min(SAMPLED_STEPS, draft.n_steps)).astype(int)
    state = tuple(draft.values[steps][..., kind] for kind in (P, Q, V, THETA))
    ybus = admittance_matrix(grid)
    known = known_points(draft.values[steps], ybus)
    for kinds in ((P, Q), (P,), (Q,)):  # the powers that are given
        compared = known & ~np.isnan([state[kind] for kind in kinds]).any(axis=0)
        if compared.any():
            break
    else:
        return
    stated = _residual(grid, ybus, state, compared, kinds)
    if stated <= WRONG:
        return
    residuals = [
        _residual(grid, ybus, suspicion.corrected(state), compared, kinds)
        if _applies(suspicion, kinds)
        else np.inf
        for suspicion in SUSPICIONS
    ]
    best = int(np.argmin(residuals))
    if residuals[best] < EXPLAINED * stated:
        suspicion = SUSPICIONS[best]
        raise RecordError(
            f"{draft.source}: {suspicion.text}: the power balance is {stated:.3g} times the power "
            f"as stated, and {residuals[best]:.3g} otherwise; {suspicion.advice}"
        )


def _applies(suspicion: Suspicion, kinds: tuple[int, ...]) -> bool:
    """Whether a suspicion is about powers that are given."""
    words = suspicion.text.split(":")[0]
    return len(kinds) == 2 or (" and Q" not in words and not words.startswith("PQ"[1 - kinds[0]]))


def known_points(values: Float[np.ndarray, "S N 4"], ybus: csr_array) -> Bool[np.ndarray, "S N"]:
    """Where V and θ of a bus and of all its neighbours are known."""
    unknown = np.isnan(values[..., [V, THETA]]).any(axis=-1)
    pattern = abs(ybus) > 0
    return np.asarray((pattern @ unknown.T.astype(np.float64)).T == 0)


def implied_mva(
    grid: Grid, ybus: csr_array, v: Float[np.ndarray, "S N"], theta: Float[np.ndarray, "S N"]
) -> Complex[np.ndarray, "S N"]:
    """The consumption that follows from voltages and angles; unknown ones are taken as 1 and 0."""
    voltage = np.nan_to_num(v, nan=1.0) * np.exp(1j * np.nan_to_num(theta))
    return consumption_mva(ybus, grid.base_mva, voltage)


def _residual(
    grid: Grid,
    ybus: csr_array,
    state: State,
    compared: Bool[np.ndarray, "S N"],
    kinds: tuple[int, ...],
) -> float:
    """The mean size of the residual, as a share of the mean size of the implied power.

    Of the implied power and of that stated the smaller one counts, so that no unit can hide.
    """
    implied = implied_mva(grid, ybus, state[V], state[THETA])
    parts = {P: implied.real, Q: implied.imag}
    worst = 0.0
    for kind in kinds:
        stated, given = state[kind][compared], parts[kind][compared]
        size = min(np.abs(stated).mean(), np.abs(given).mean()) + 1e-3
        worst = max(worst, float(np.abs(stated - given).mean() / size))
    return worst


def check_direction(draft: Draft, grid: Grid) -> None:
    """Raise if P runs against the loads and generators of the case: its sign is wrong."""
    case = grid.bus[:, PD].copy()
    np.subtract.at(case, grid.generator_row[grid.generator_on], grid.gen[grid.generator_on, PG])
    buses = np.flatnonzero(draft.given[:, P] & (case != 0))
    if len(buses) < 3 or draft.given[:, [V, THETA]].all():  # then the balance itself tells
        return
    mean = np.nanmean(draft.values[:, buses, P], axis=0)
    norm = np.linalg.norm(mean) * np.linalg.norm(case[buses])
    if norm > 0 and float(mean @ case[buses]) / norm < OPPOSED:
        raise RecordError(
            f"{draft.source}: P has the opposite sign: its mean at {len(buses)} buses runs against "
            f"the loads and generators of grid {grid.name!r}; change the sign of P"
        )
