"""The oracle: the generator itself, given the true future signals. A reference, not a forecaster.

It draws fresh noise for every bus and sends it through the power flow, exactly as the record was
made. Nobody can forecast the noise, so in expectation no forecaster scores a better CRPS, Brier
score or threshold-weighted CRPS than this. (Distortion is another matter: there a mean beats a
sample.) It looks into the future by design and is never ranked.
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
"""How often a step is drawn again that no rescue solves."""


@dataclass(frozen=True)
class OracleConfig:
    """How many futures are drawn for each window."""

    samples: int = 100


class Oracle:
    """Samples of what the generator could have made of the true signals.

    Args:
        store: the data set, which holds signals, grid and recipe.
        seed: fixes the fresh noise.
        config: the number of samples.
    """

    name = "oracle"
    config_type = OracleConfig
    n_parameters = 0

    def __init__(self, store: Store, seed: int = 42, config: OracleConfig | None = None) -> None:
        self.seed = seed
        self.config = config or OracleConfig()
        self._time = store.time
        self._solver = _solver_of(store)

    def fit(self, train: Training) -> None:
        """Nothing to learn: it knows the recipe."""

    def predict(self, context: Context) -> Scenarios:
        """Equally likely futures of one window after another, drawn and solved anew."""
        n_windows, horizon = context.future_time.shape
        shape = (n_windows, self.config.samples, horizon, context.layout.n_channels)
        values = np.empty(shape, dtype=np.float32)
        for window, time in zip(values, context.future_time, strict=True):
            first = int(np.searchsorted(self._time, time[0]))
            if first + horizon > len(self._time):
                raise ForecastError(
                    f"the record ends at {self._time[-1]}, and the oracle needs its signals up to "
                    f"{time[-1]}; ask a model"
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
        """One future; steps that no rescue solves are drawn again, and only they."""
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
            "this grid cannot carry what its recipe asks for"
        )


def _solver_of(store: Store) -> StepSolver:
    """The solver that made the data set, rebuilt from what it says of itself."""
    recipe, manifest = Recipe(**store.manifest.recipe), store.manifest
    attribution = "; ".join(manifest.attribution)
    signals = Signals(store.time, store.signals_mw, manifest.edition, attribution)
    if signals.sha256 != recipe.signals_sha256:
        raise StoreError(
            f"{store.path}: made from a part of its signals, so the oracle cannot repeat it; make "
            "the data set without --start and --end"
        )
    return StepSolver(store.grid, signals, recipe)
