"""What `verify` says of imported data: their content, what is observed, and the power balance.

Measured states satisfy the AC equations only roughly. How roughly is stated bus by bus: a bus whose
residual is far above those of the others has a bad sensor, or the grid is wrong around it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.dataset.imported import ImportRecipe, SegmentDigest
from powerphase.dataset.store import Store
from powerphase.grid.admittance import admittance_matrix, consumption_mva

LEVELS = (0.5, 0.99, 1.0)
"""The quantiles of a residual over steps; the last is the largest."""

SAMPLED_STEPS = 4096
"""Quantiles come from so many steps at most, evenly spread; the largest is that of all."""


@dataclass(frozen=True)
class BusResidual:
    """How far the stored P and Q of a measured bus are from what V and θ imply [MW, MVAr].

    Only steps count in which its values, and V and θ around it, are observed.
    """

    bus: int
    n_steps: int
    """The steps that count."""
    p_mw: dict[float, float]
    """|ΔP| by quantile; 1 is the largest."""
    q_mvar: dict[float, float]
    largest_time: str
    """When the larger of both is largest, UTC."""

    @property
    def largest(self) -> float:
        """The largest residual."""
        return max(self.p_mw[1.0], self.q_mvar[1.0])


def examine(store: Store) -> tuple[list[str], tuple[BusResidual, ...], float]:
    """Which segments are not those of the recipe, the residuals, and the share that is observed."""
    recipe, manifest = ImportRecipe.from_json(store.manifest.recipe), store.manifest
    channels = slice(0, KINDS * manifest.n_buses)
    balance = _Balance(store) if store.has_grid and store.kind == "measured" else None
    damaged, n_observed, first = [], 0, 0
    for number, segment in enumerate(recipe.segments):
        digest, stop = SegmentDigest(), first + segment.n_steps
        for start in range(first, stop, manifest.block_steps):
            steps = slice(start, min(start + manifest.block_steps, stop))
            states, observed = (
                store.read_states(steps, channels),
                store.read_observed(steps, channels),
            )
            assert observed is not None, "an imported record says what is observed"
            digest.add(states, observed)
            n_observed += int(observed.sum())
            if balance is not None:
                balance.add(start, states, observed)
        if digest.sha256 != segment.sha256:
            damaged.append(f"manifest (content of segment {number} contradicts its recipe)")
        first = stop
    residuals = () if balance is None else balance.residuals(store)
    return damaged, residuals, n_observed / (manifest.n_steps * channels.stop)


class _Balance:
    """The residuals of all buses, step by step."""

    def __init__(self, store: Store) -> None:
        grid = store.grid
        self._ybus, self._base_mva = admittance_matrix(grid), grid.base_mva
        self._pattern = abs(self._ybus) > 0
        self._stride = -(-store.manifest.n_steps // SAMPLED_STEPS)
        self._sampled: list[Float[np.ndarray, "S N 2"]] = []
        self._largest = np.zeros((grid.n_buses, 2))
        self._when = np.zeros(grid.n_buses, dtype=np.int64)
        self._count = np.zeros(grid.n_buses, dtype=np.int64)

    def add(self, start: int, states: np.ndarray, observed: np.ndarray) -> None:
        """Add consecutive steps."""
        values = states.astype(np.float64).reshape(len(states), -1, KINDS)
        seen = observed.reshape(values.shape)
        voltage = values[..., V] * np.exp(1j * values[..., THETA])
        implied = consumption_mva(self._ybus, self._base_mva, voltage)
        hidden = ~(seen[..., V] & seen[..., THETA])
        known = np.asarray((self._pattern @ hidden.T.astype(np.float64)).T == 0)
        known &= seen[..., P] & seen[..., Q]
        error = np.stack([values[..., P] - implied.real, values[..., Q] - implied.imag], axis=-1)
        error = np.where(known[..., None], np.abs(error), np.nan)
        size = np.fmax.reduce(np.nan_to_num(error, nan=-1.0), axis=-1)
        highest, before = size.max(axis=0), self._largest.max(axis=-1)
        self._when = np.where(highest > before, start + size.argmax(axis=0), self._when)
        self._largest = np.maximum(self._largest, np.nan_to_num(np.fmax.reduce(error, axis=0)))
        self._count += known.sum(axis=0)
        self._sampled.append(error[(-start) % self._stride :: self._stride].astype(np.float32))

    def residuals(self, store: Store) -> tuple[BusResidual, ...]:
        """The residual of each bus that has one, the largest first."""
        sampled = np.concatenate(self._sampled)
        found = []
        for bus in np.flatnonzero(self._count):
            part = sampled[:, bus][~np.isnan(sampled[:, bus, 0])]
            inner = np.quantile(part, LEVELS[:-1], axis=0) if len(part) else np.full((2, 2), np.nan)
            levels = np.concatenate([inner, self._largest[bus][None]])
            p_mw, q_mvar = (
                dict(zip(LEVELS, map(float, levels[:, k]), strict=True)) for k in (0, 1)
            )
            time = str(store.time[self._when[bus]].astype("datetime64[m]"))
            number = int(store.bus_id[bus])
            found.append(BusResidual(number, int(self._count[bus]), p_mw, q_mvar, time))
        return tuple(sorted(found, key=lambda residual: -residual.largest))
