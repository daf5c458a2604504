"""Boosting: quantiles of the factors by gradient-boosted trees, coupled into joint scenarios.

For each factor and each level, LightGBM fits trees to how far the factor is from what the calendar
expects, with FactorForge's inputs. The quantiles of a window are put together in the rank order of
FactorForge's errors on held-out days; loadings and noise are FactorForge's.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from powerphase.errors import ConfigError, TrainingError
from powerphase.models.anchors.factor_record import (
    CONFIG,
    FactorAnchor,
    scenario_blocks,
)
from powerphase.models.factorforge import (
    day_features,
    deviation_inputs,
    normal_quantiles,
)
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.seeds import stream


@dataclass(frozen=True)
class BoostingConfig:
    """The quantiles, the trees and the number of scenarios."""

    quantiles: int = 10
    """How many quantiles are fitted, at the levels (m − ½)/M."""
    trees: int = 100
    leaves: int = 8
    learning_rate: float = 0.05
    least_samples: int = 500
    """Samples in a leaf; a sample is one step of one window. A leaf of a short record may have
    fewer, down to a fiftieth of all."""
    scenarios: int = 100

    def __post_init__(self) -> None:
        for name in ("trees", "least_samples", "scenarios"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, found {getattr(self, name)}")
        for name in ("quantiles", "leaves"):
            if getattr(self, name) < 2:
                raise ConfigError(f"{name} must be 2 or more, found {getattr(self, name)}")
        if not 0 < self.learning_rate <= 1:
            raise ConfigError(
                f"learning_rate must be above 0 and at most 1, found {self.learning_rate}"
            )


class Boosting(FactorAnchor[BoostingConfig]):
    """Forecasts quantiles of the factors by boosted trees and maps them to every channel."""

    name = "boosting"
    config_type = BoostingConfig

    def __init__(self, config: BoostingConfig | None = None, *, seed: int = 42) -> None:
        super().__init__(config, seed=seed)
        self._boosters: list[list[Any]] = []
        """Trees by factor and level."""

    def fit(self, train: Training) -> None:
        """Find the factors of the record, and fit trees to each of them."""
        library = _lightgbm()
        record = self._fit_record(train)
        steps = record.origins[:, None] + np.arange(-record.n_past, record.horizon)
        deviation = record.deviation[steps]
        inputs = self._inputs(deviation[:, : record.n_past], record.time[steps])
        samples = inputs.reshape(-1, inputs.shape[-1])
        targets = deviation[:, record.n_past :].reshape(len(samples), -1)
        self._boosters = [self._fit_levels(library, samples, target) for target in targets.T]

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """Joint scenarios, in blocks of channels."""
        record = self.record
        quantiles = self.factor_quantiles(context)
        days = [self._draw_days(str(time[0])) for time in context.future_time]
        paths = [self._couple(*both) for both in zip(quantiles, days, strict=True)]
        factors, starts = torch.stack(paths).to(context.past), record.origins[np.stack(days)]
        return scenario_blocks(record, self.train, factors, starts)

    def factor_quantiles(self, context: Context) -> Float64[np.ndarray, "B levels H K"]:
        """The quantiles of the factors, ascending."""
        record = self.record
        record.check(context)
        inputs = self._inputs(record.past_deviation(context), context.time)
        samples = inputs.reshape(-1, inputs.shape[-1])
        by_factor = [[booster.predict(samples) for booster in row] for row in self._boosters]
        values = np.sort(by_factor, axis=1)  # levels are fitted one by one and may cross
        shape = (*values.shape[:2], *inputs.shape[:2])
        expected = record.forecaster.expected(context.future_time)[:, None]
        return values.reshape(shape).transpose(2, 1, 3, 0) + expected

    def _inputs(
        self, past: Float64[np.ndarray, "B T K"], time: Any
    ) -> Float32[np.ndarray, "B H F"]:
        """FactorForge's inputs, the step, the last deviation, and what the calendar expects."""
        record = self.record
        future = time[:, record.n_past :]
        forecaster = record.forecaster
        features = day_features(
            future, forecaster.seasons, CONFIG.festive_weekends, forecaster.local
        )
        inputs = deviation_inputs(past, features, CONFIG, forecaster.step_s)
        step = np.broadcast_to(np.arange(record.horizon)[:, None], (*inputs.shape[:2], 1))
        last = np.broadcast_to(past[:, -1:], (*inputs.shape[:2], past.shape[-1]))
        parts = [inputs, step, last, forecaster.expected(future)]
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def _fit_levels(
        self, library: Any, samples: Float32[np.ndarray, "n F"], target: Float64[np.ndarray, " n"]
    ) -> list[Any]:
        """The trees of one factor, for each level."""
        config = self.config
        options = {
            "objective": "quantile",
            "num_leaves": config.leaves,
            "learning_rate": config.learning_rate,
            "min_data_in_leaf": min(config.least_samples, max(1, len(samples) // 50)),
            "num_threads": torch.get_num_threads(),
            "deterministic": True,
            "force_row_wise": True,
            "verbose": -1,
        }
        data = library.Dataset(samples, target, params=options, free_raw_data=False)
        return [
            library.train({**options, "alpha": level}, data, config.trees)
            for level in (np.arange(config.quantiles) + 0.5) / config.quantiles
        ]

    def _draw_days(self, name: str) -> Int[np.ndarray, " M"]:
        """Random past days, all different if there are enough."""
        n_days = len(self.record.origins)
        order = stream(self.seed, self.name, name).permutation(n_days)
        return np.resize(order, self.config.scenarios)

    def _couple(
        self, quantiles: Float64[np.ndarray, "levels H K"], days: Int[np.ndarray, " M"]
    ) -> Float64[Tensor, "M H K"]:
        """Joint paths of the factors: quantiles in the rank order of errors on held-out days."""
        errors = self.record.forecaster.errors[days]
        ranks = errors.argsort(axis=0, kind="stable").argsort(axis=0)
        ascending = interpolate_quantiles(quantiles, len(days))
        return torch.from_numpy(np.take_along_axis(ascending, ranks, axis=0))


def interpolate_quantiles(
    quantiles: Float64[np.ndarray, "levels ..."], count: int
) -> Float64[np.ndarray, "count ..."]:
    """Quantiles at the levels (m − ½)/count from fewer at such levels.

    A quantile is linear in that of the standard normal distribution between two levels, and beyond
    the outer ones, so that the quantiles of a Gaussian remain its quantiles.
    """
    known, asked = (normal_quantiles(n).numpy() for n in (len(quantiles), count))
    left = np.clip(np.searchsorted(known, asked) - 1, 0, len(known) - 2)
    part = (asked - known[left]) / (known[left + 1] - known[left])
    part = part.reshape(-1, *np.ones(quantiles.ndim - 1, dtype=int))
    return quantiles[left] + part * (quantiles[left + 1] - quantiles[left])


def _lightgbm() -> Any:
    try:
        return importlib.import_module("lightgbm")
    except ImportError as error:
        raise TrainingError(
            "boosting needs LightGBM, which is not installed; run `pip install "
            "'powerphase[boosting]'`"
        ) from error
