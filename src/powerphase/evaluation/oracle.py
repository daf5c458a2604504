"""The oracle: the generator itself, given the true future signals. A reference, not a forecaster.

It draws new noise for every bus and solves the power flow, exactly as the record was made. The
noise cannot be forecast, so in expectation no forecaster has a better CRPS, Brier score or
threshold-weighted CRPS. (Distortion is different: there, a mean beats a sample.) The oracle uses
the future by design and is never ranked.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32

from powerphase.dataset.recipe import Recipe
from powerphase.dataset.solving import StepSolver
from powerphase.dataset.store import Store
from powerphase.errors import ForecastError, PowerFlowError, StoreError
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.synthesis.signals import Signals

ATTEMPTS = 10
"""How often a step that cannot be solved is drawn again."""


@dataclass(frozen=True)
class OracleConfig:
    """The number of futures drawn for each window."""

    samples: int = 100


class Oracle:
    """Samples of what the generator could have made from the true signals.

    Args:
        store: the data set, which holds signals, grid and recipe.
        seed: determines the noise.
        config: the number of samples.
    """

    name = "oracle"
    config_type = OracleConfig
    n_parameters = 0
    joint_scenarios = True

    def __init__(self, store: Store, seed: int = 42, config: OracleConfig | None = None) -> None:
        self.seed = seed
        self.config = config or OracleConfig()
        self._time = store.time
        self._solver = _rebuild_solver(store)

    def fit(self, train: Training) -> None:
        """Learn nothing: the recipe is known."""

    def predict(self, context: Context) -> Scenarios:
        """Equally likely futures of each window, drawn and solved."""
        n_windows, horizon = context.future_time.shape
        shape = (n_windows, self.config.samples, horizon, context.layout.n_channels)
        values = np.empty(shape, dtype=np.float32)
        for window, time in zip(values, context.future_time, strict=True):
            first = int(np.searchsorted(self._time, time[0]))
            if first + horizon > len(self._time):
                raise ForecastError(
                    f"the oracle needs the signals up to {time[-1]}, but the record ends at "
                    f"{self._time[-1]}; use a model instead"
                )
            self._fill(window, slice(first, first + horizon))
        values /= context.layout.scale
        return Scenarios.equal(torch.from_numpy(values).to(context.past.device))

    def _fill(self, values: Float32[np.ndarray, "M H C"], steps: slice) -> None:
        def fill(sample: int) -> None:
            values[sample] = self._sample(steps, sample)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, range(len(values))))

    def _sample(self, steps: slice, sample: int) -> Float32[np.ndarray, "H C"]:
        """One future; only steps that cannot be solved are drawn again."""
        labels = ("oracle", self.seed, sample)
        state = self._solver.solve(steps, labels).state
        for attempt in range(ATTEMPTS):
            unsolved = np.isnan(state).any(axis=1)
            if not unsolved.any():
                return state
            again = self._solver.solve(steps, (*labels, "again", attempt)).state
            state = np.where(unsolved[:, None], again, state)
        raise PowerFlowError(
            f"step {steps.start + int(unsolved.argmax())} could not be solved in {ATTEMPTS} draws; "
            "the loads of this recipe are too high for the grid"
        )


def _rebuild_solver(store: Store) -> StepSolver:
    """The solver that made the data set, rebuilt from its manifest."""
    if store.is_imported:
        raise StoreError(
            f"{store.path}: was imported, so nothing knows how its states came about; the oracle "
            "needs a generated data set"
        )
    recipe, manifest = Recipe(**store.manifest.recipe), store.manifest
    attribution = "; ".join(manifest.attribution)
    signals = Signals(store.time, store.signals_mw, manifest.edition, attribution)
    if signals.sha256 != recipe.signals_sha256:
        raise StoreError(
            f"{store.path}: was made from a part of its signals, so the oracle cannot repeat it; "
            "make the data set without --start and --end"
        )
    return StepSolver(store.grid, signals, recipe)
