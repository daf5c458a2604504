"""The certificate of a data set, computed from its stored bytes alone.

Every stored state is inserted into the AC equations, with an admittance matrix built anew from the
stored branches. Rounding to float32 leaves a mismatch, whose size is bounded bus by bus from the
admittances: a state passes exactly if float32 rounding can explain its mismatch.

Of imported data, the content is checked and the residual of the power balance stated. Measured
states satisfy the AC equations only roughly. How roughly is stated bus by bus: a bus whose residual
is far above those of the others has a bad sensor, or the grid is wrong around it.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from powerphase.axes import KINDS, STEPS_PER_DAY, THETA, VARIABLES, P, Q, V
from powerphase.dataset.layout import AS_IMPORTED, PROVENANCE, STATE, largest_power
from powerphase.dataset.recipe import ImportRecipe, SegmentDigest
from powerphase.dataset.store import Store, open_store
from powerphase.grid.admittance import admittance_matrix, consumption_mva
from powerphase.grid.case import PD, PV, QD, QMAX, QMIN, Grid
from powerphase.grid.limits import limits_of


class ReactiveLimits:
    """The reactive limits of the generators of a grid, bus by bus.

    The generator of data sets fixes the voltage at PV buses and solves for Q, without limits: a
    limit that is enforced would turn a PV bus into a PQ bus, and change its voltage by a jump. What
    that costs in realism is counted here. A stored Q is the net consumption of a bus, so it shows
    the generators' Q only where the load does not vary: at PV buses without active load.
    """

    def __init__(self, grid: Grid) -> None:
        on = grid.generator_on
        lowest, highest = np.zeros(grid.n_buses), np.zeros(grid.n_buses)
        np.add.at(lowest, grid.generator_row[on], grid.gen[on, QMIN])
        np.add.at(highest, grid.generator_row[on], grid.gen[on, QMAX])
        # A bus whose limits are missing or contradict each other has none that it could leave.
        is_known = (grid.bus_type == PV) & (grid.bus[:, PD] == 0) & (lowest <= highest)
        self.buses = np.flatnonzero(is_known)
        """The buses at which the generators' Q is known, as positions in the case file."""
        self._load_mvar = grid.bus[self.buses, QD]
        self._lowest, self._highest = lowest[self.buses], highest[self.buses]

    def outside(self, state: Float[np.ndarray, "S C"]) -> Bool[np.ndarray, "S buses"]:
        """Where the generators of a bus give more or take more Q than they can."""
        produced = self._load_mvar - state[:, Q::KINDS][:, self.buses].astype(np.float64)
        return (produced < self._lowest) | (produced > self._highest)


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
        residuals = []
        for bus in np.flatnonzero(self._count):
            part = sampled[:, bus][~np.isnan(sampled[:, bus, 0])]
            inner = np.quantile(part, LEVELS[:-1], axis=0) if len(part) else np.full((2, 2), np.nan)
            levels = np.concatenate([inner, self._largest[bus][None]])
            p_mw, q_mvar = (
                dict(zip(LEVELS, map(float, levels[:, k]), strict=True)) for k in (0, 1)
            )
            time = str(store.time[self._when[bus]].astype("datetime64[m]"))
            number = int(store.bus_id[bus])
            residuals.append(BusResidual(number, int(self._count[bus]), p_mw, q_mvar, time))
        return tuple(sorted(residuals, key=lambda residual: -residual.largest))


QUANTILES = (0.5, 0.99, 0.999)
HALF_ULP = 2.0**-24
"""Largest relative error of rounding to float32."""

SOLVER_MVA = 1e-6
"""Allowance for the solver's tolerance and for float64 arithmetic."""

MAX_THREADS = 4
"""Each keeps a block in memory; more would wait for the disk."""


@dataclass(frozen=True)
class Mismatch:
    """Mismatch of the worst bus of each step: largest over the record, and quantiles over steps."""

    largest: float
    quantiles: dict[float, float]


@dataclass(frozen=True)
class Certificate:
    """The results of `verify`."""

    complete: bool
    damaged: list[str]
    """Arrays, blocks and claims that differ from the manifest."""
    p_mw: Mismatch
    q_mvar: Mismatch
    largest_share: float
    """Largest mismatch as a share of what float32 rounding can explain; NaN if not checked."""
    inconsistent_steps: list[int]
    """Steps whose mismatch is larger than float32 rounding can explain."""
    provenance: list[int]
    solver_mismatch_pu: float
    """Largest mismatch before rounding, as the generator recorded it."""
    branches: tuple[int, int]
    """Branches in service, and how many of them have a rating A."""
    generator_buses: int
    """PV buses without load, at which the reactive power of the generators is known."""
    outside_reactive: tuple[float, float]
    """Share of steps and such buses at which it is outside the generators' limits, and share of
    steps with any such bus; NaN if not checked. No limit is enforced, so both are facts about the
    realism of a data set, not faults."""
    kind: str = "simulated"
    """`measured` states need not satisfy the AC equations: their residual is stated instead."""
    residuals: tuple[BusResidual, ...] = ()
    """Of the buses of measured data, the largest first."""
    observed_share: float = 1.0
    """The share of the states that are observed; imported data have others, which were filled."""

    @property
    def valid(self) -> bool:
        """Whether the data set is finished and undamaged, and satisfies what its kind claims."""
        fits = self.kind == "measured" or not self.inconsistent_steps
        return self.complete and not self.damaged and fits


class AcCheck:
    """The AC equations of one grid, and the mismatch that float32 rounding can cause.

    With u the largest relative rounding error, the power at bus i changes by at most
    u V_i Σ_j |Y_ij| V_j (2 + |θ_i| + |θ_j|), to first order in u.
    """

    def __init__(self, grid: Grid) -> None:
        self._base_mva = grid.base_mva
        self._ybus = admittance_matrix(grid)
        self._size = abs(self._ybus)

    def mismatch(
        self, state: Float32[np.ndarray, "S C"]
    ) -> tuple[Float[np.ndarray, "S 2"], Float[np.ndarray, " S"]]:
        """Largest |ΔP| [MW] and |ΔQ| [MVAr] of each step, and the worst share of its bound."""
        values = state.astype(np.float64).reshape(len(state), -1, len(VARIABLES))
        error, allowed = self.errors(values)
        # NaN counts as a violation; a maximum would hide it.
        share = np.nan_to_num(error / allowed, nan=np.inf).max(axis=(1, 2))
        return error.max(axis=1), share

    def errors(
        self, values: Float[np.ndarray, "S N 4"]
    ) -> tuple[Float[np.ndarray, "S N 2"], Float[np.ndarray, "S N 2"]]:
        """|ΔP| [MW] and |ΔQ| [MVAr] of each bus, and how much of them rounding can explain."""
        v, theta = values[..., V], values[..., THETA]
        solved_mva = consumption_mva(self._ybus, self._base_mva, v * np.exp(1j * theta))
        size = (self._size @ v.T).T
        size_theta = (self._size @ (v * abs(theta)).T).T
        bound = self._base_mva * HALF_ULP * v * ((2 + abs(theta)) * size + size_theta)
        stored = values[..., [P, Q]]
        error = abs(np.stack([solved_mva.real, solved_mva.imag], axis=-1) - stored)
        return error, bound[..., None] + HALF_ULP * abs(stored) + SOLVER_MVA


@dataclass(frozen=True, eq=False)
class _BlockCheck:
    """The check of one block; arrays that could not be read are empty."""

    damaged: list[str]
    largest: Float[np.ndarray, "checked 2"]
    share: Float[np.ndarray, " checked"]
    mismatch: Float32[np.ndarray, " readable"]
    provenance: Int[np.ndarray, " 5"]
    n_outside: Int[np.ndarray, " counted"]
    """Generator buses outside their reactive limits, in each step."""


def verify(path: str | Path, on_progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Check every stored byte and every stored step of the data set at `path`."""
    store = open_store(path, unfinished_ok=True)
    manifest, damaged = store.manifest, store.damage_outside_blocks()
    blocks = sorted(manifest.blocks)
    has_grid = store.has_grid and not damaged
    ac_check = AcCheck(store.grid) if has_grid and store.kind == "simulated" else None
    reactive = ReactiveLimits(store.grid) if has_grid else None
    checks: list[_BlockCheck] = []
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        results = pool.map(lambda number: _check_block(store, ac_check, reactive, number), blocks)
        for number, block_check in zip(blocks, results, strict=True):
            checks.append(block_check)
            if on_progress:
                on_progress(manifest.steps(number).stop, manifest.n_steps)
    certificate = _make_certificate(store, damaged, checks)
    if not store.is_imported or certificate.damaged or not certificate.complete:
        return certificate
    damaged, residuals, share = examine(store)
    return replace(
        certificate,
        damaged=damaged,
        kind=store.kind,
        residuals=residuals,
        observed_share=share,
    )


def _make_certificate(store: Store, damaged: list[str], checks: list[_BlockCheck]) -> Certificate:
    numbers = sorted(store.manifest.blocks)
    inconsistent = [
        store.manifest.steps(number).start + int(row)
        for number, check in zip(numbers, checks, strict=True)
        for row in np.flatnonzero(check.share > 1)
    ]
    largest = np.concatenate([np.zeros((0, 2)), *(check.largest for check in checks)])
    share = [check.share.max() for check in checks if check.share.size]
    # Steps that were imported as they are may have none, which is NaN.
    mismatch = [np.fmax.reduce(check.mismatch) for check in checks if check.mismatch.size]
    provenance = sum((check.provenance for check in checks), np.zeros(len(PROVENANCE), dtype=int))
    return Certificate(
        complete=store.manifest.complete,
        damaged=damaged + [name for check in checks for name in check.damaged],
        p_mw=_summarise(largest[:, 0]),
        q_mvar=_summarise(largest[:, 1]),
        largest_share=float(max(share, default=np.nan)),
        inconsistent_steps=inconsistent,
        provenance=[
            int(n) for n in (provenance if store.is_imported else provenance[:AS_IMPORTED])
        ],
        solver_mismatch_pu=float(np.fmax.reduce([np.nan, *mismatch])),
        **_grid_facts(store, damaged, np.concatenate([[], *(c.n_outside for c in checks)])),
    )


def _grid_facts(
    store: Store, damaged: list[str], n_outside: Float[np.ndarray, " checked"]
) -> dict[str, Any]:
    """What a certificate says about branches and generators; nothing if the grid is damaged."""
    if damaged or not store.has_grid:
        return {"branches": (0, 0), "generator_buses": 0, "outside_reactive": (np.nan, np.nan)}
    is_rated, buses = limits_of(store.grid).is_rated, len(ReactiveLimits(store.grid).buses)
    shares = (float("nan"), float("nan"))
    if buses and len(n_outside):
        shares = (float(n_outside.mean() / buses), float((n_outside > 0).mean()))
    return {
        "branches": (len(is_rated), int(is_rated.sum())),
        "generator_buses": buses,
        "outside_reactive": shares,
    }


def _check_block(
    store: Store, ac_check: AcCheck | None, reactive: ReactiveLimits | None, number: int
) -> _BlockCheck:
    """Damaged arrays of a block and, where its states can be read, their AC mismatch."""
    intact, broken = store.check_block(number)
    if STATE in intact and largest_power(intact[STATE]) != store.manifest.blocks[number].largest:
        broken.append("manifest (largest P and Q)")
    largest, share, n_outside = np.zeros((0, 2)), np.zeros(0), np.zeros(0, dtype=int)
    if reactive is not None and STATE in intact:
        n_outside = reactive.outside(intact[STATE]).sum(axis=1)
    if ac_check is not None and STATE in intact:
        days = np.split(intact[STATE], range(STEPS_PER_DAY, len(intact[STATE]), STEPS_PER_DAY))
        parts = [ac_check.mismatch(day) for day in days]
        largest, share = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _BlockCheck(
        damaged=[f"{name}, block {number}" for name in broken],
        largest=largest,
        share=share,
        mismatch=intact.get("mismatch", np.zeros(0, dtype=np.float32)),
        provenance=np.bincount(
            intact.get("provenance", np.zeros(0, dtype=int)), minlength=len(PROVENANCE)
        ),
        n_outside=n_outside,
    )


def _summarise(worst: Float[np.ndarray, " S"]) -> Mismatch:
    if not len(worst):
        return Mismatch(float("nan"), dict.fromkeys(QUANTILES, float("nan")))
    levels = np.quantile(worst, QUANTILES)
    return Mismatch(float(worst.max()), dict(zip(QUANTILES, map(float, levels), strict=True)))
