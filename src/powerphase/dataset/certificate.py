"""The certificate of a data set: what its stored bytes prove, recomputed from nothing but them.

Every stored state is put into the AC equations with an admittance matrix that is built anew from
the stored branches. Rounding to float32 alone leaves a mismatch, and how much it can leave is not a
matter of taste: it is bounded bus by bus from the admittances, so a state passes exactly if float32
rounding can explain it.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int

from powerphase.axes import STEPS_PER_DAY, THETA, VARIABLES, P, Q, V
from powerphase.dataset.layout import STATE
from powerphase.dataset.recipe import Recipe
from powerphase.dataset.store import Store, largest_power, open_store
from powerphase.grid.admittance import admittance, consumption_mva
from powerphase.grid.case import Grid

QUANTILES = (0.5, 0.99, 0.999)
HALF_ULP = 2.0**-24
"""Largest relative error of rounding to float32."""

SOLVER_MVA = 1e-6
"""What the solver's tolerance and our own float64 arithmetic may add."""

MAX_THREADS = 4
"""Each holds a block in memory; more would wait for the disk."""


@dataclass(frozen=True)
class Mismatch:
    """The worst bus of each step: its maximum over the record, and its quantiles over steps."""

    largest: float
    quantiles: dict[float, float]


@dataclass(frozen=True)
class Certificate:
    """What `verify` found."""

    complete: bool
    damaged: list[str]
    """Arrays and blocks whose bytes are not what the manifest says."""
    p_mw: Mismatch
    q_mvar: Mismatch
    largest_share: float
    """Largest mismatch as a share of what float32 rounding can explain; NaN if not checked."""
    inconsistent_steps: list[int]
    """Steps whose mismatch is more than float32 rounding can explain."""
    provenance: list[int]
    solver_mismatch_pu: float
    """Largest mismatch before rounding, as the generator recorded it."""

    @property
    def valid(self) -> bool:
        """Whether the data set is finished, undamaged, and within float32 of the AC equations."""
        return self.complete and not self.damaged and not self.inconsistent_steps


class AcCheck:
    """The AC equations of one grid, and how far float32 rounding can move a state off them.

    With u the largest relative rounding error, the power at bus i moves by at most
    u V_i Σ_j |Y_ij| V_j (2 + |θ_i| + |θ_j|), to first order in u.
    """

    def __init__(self, grid: Grid) -> None:
        self._base_mva = grid.base_mva
        self._ybus = admittance(grid)
        self._size = abs(self._ybus)

    def excess(
        self, state: Float32[np.ndarray, "S C"]
    ) -> tuple[Float[np.ndarray, "S 2"], Float[np.ndarray, " S"]]:
        """Largest |ΔP| [MW] and |ΔQ| [MVAr] of each step, and the worst share of its bound."""
        values = state.astype(np.float64).reshape(len(state), -1, len(VARIABLES))
        v, theta = values[..., V], values[..., THETA]
        found = consumption_mva(self._ybus, self._base_mva, v * np.exp(1j * theta))
        size = (self._size @ v.T).T
        size_theta = (self._size @ (v * abs(theta)).T).T
        bound = self._base_mva * HALF_ULP * v * ((2 + abs(theta)) * size + size_theta)
        largest, share = [], np.zeros(len(state))
        for specified, calculated in ((values[..., P], found.real), (values[..., Q], found.imag)):
            off = abs(calculated - specified)
            largest.append(off.max(axis=1))
            allowed = bound + HALF_ULP * abs(specified) + SOLVER_MVA
            # A NaN anywhere must count as a violation, not vanish in a maximum.
            share = np.maximum(share, np.nan_to_num(off / allowed, nan=np.inf).max(axis=1))
        return np.stack(largest, axis=1), share


@dataclass(frozen=True, eq=False)
class _Findings:
    """What one block showed; arrays are empty where it could not be read."""

    damaged: list[str]
    largest: Float[np.ndarray, "checked 2"]
    share: Float[np.ndarray, " checked"]
    mismatch: Float32[np.ndarray, " readable"]
    provenance: Int[np.ndarray, " 4"]


def verify(path: str | Path, on_progress: Callable[[int, int], None] | None = None) -> Certificate:
    """Check every stored byte and every stored step of the data set at `path`."""
    store = open_store(path, unfinished_ok=True)
    manifest, damaged = store.manifest, _false_claims(store)
    blocks = sorted(manifest.blocks)
    check = None if damaged else AcCheck(store.grid)
    found: list[_Findings] = []
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for number, block in zip(
            blocks, pool.map(lambda n: _check_block(store, check, n), blocks), strict=True
        ):
            found.append(block)
            if on_progress:
                on_progress(manifest.steps(number).stop, manifest.n_steps)
    return _certificate(store, damaged, found)


def _certificate(store: Store, damaged: list[str], found: list[_Findings]) -> Certificate:
    numbers = sorted(store.manifest.blocks)
    bad = [
        store.manifest.steps(number).start + int(row)
        for number, block in zip(numbers, found, strict=True)
        for row in np.flatnonzero(block.share > 1)
    ]
    largest = np.concatenate([np.zeros((0, 2)), *(block.largest for block in found)])
    share = [block.share.max() for block in found if block.share.size]
    mismatch = [block.mismatch.max() for block in found if block.mismatch.size]
    return Certificate(
        complete=store.manifest.complete,
        damaged=damaged + [name for block in found for name in block.damaged],
        p_mw=_summary(largest[:, 0]),
        q_mvar=_summary(largest[:, 1]),
        largest_share=float(max(share, default=np.nan)),
        inconsistent_steps=bad,
        provenance=[int(n) for n in sum((b.provenance for b in found), np.zeros(4, dtype=int))],
        solver_mismatch_pu=float(max(mismatch, default=np.nan)),
    )


def _check_block(store: Store, check: AcCheck | None, number: int) -> _Findings:
    """Damaged arrays of a block and, where its states can be read, their distance from AC."""
    sound, broken = store.checked(number)
    if STATE in sound and largest_power(sound[STATE]) != store.manifest.blocks[number].largest:
        broken.append("manifest (largest P and Q)")
    largest, share = np.zeros((0, 2)), np.zeros(0)
    if check is not None and STATE in sound:
        days = np.split(sound[STATE], range(STEPS_PER_DAY, len(sound[STATE]), STEPS_PER_DAY))
        parts = [check.excess(day) for day in days]
        largest, share = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _Findings(
        damaged=[f"{name}, block {number}" for name in broken],
        largest=largest,
        share=share,
        mismatch=sound.get("mismatch", np.zeros(0, dtype=np.float32)),
        provenance=np.bincount(sound.get("provenance", np.zeros(0, dtype=int)), minlength=4),
    )


def _false_claims(store: Store) -> list[str]:
    """Files that changed, and claims of the manifest that do not follow from its recipe."""
    manifest, damaged = store.manifest, store.static_damage()
    recipe = Recipe(**manifest.recipe)
    days = np.datetime64(recipe.end) - np.datetime64(recipe.start) + 1
    if recipe.fingerprint != manifest.fingerprint:
        damaged.append("manifest (its fingerprint does not follow from its recipe)")
    if manifest.n_steps != days.astype(int) * STEPS_PER_DAY:
        damaged.append("manifest (its number of steps does not follow from its recipe)")
    if not damaged and store.grid.sha256 != recipe.grid_sha256:
        damaged.append("grid (it is not the one that the recipe names)")
    return damaged


def _summary(worst: Float[np.ndarray, " S"]) -> Mismatch:
    if not len(worst):
        return Mismatch(float("nan"), dict.fromkeys(QUANTILES, float("nan")))
    levels = np.quantile(worst, QUANTILES)
    return Mismatch(float(worst.max()), dict(zip(QUANTILES, map(float, levels), strict=True)))
