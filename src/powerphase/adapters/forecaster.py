"""A forecaster of the whole grid made from a model of single series.

Over channels, the model forecasts every channel that varies. Over factors, it forecasts the few
series that drive the grid, and FactorForge's loadings and noise turn them into channels.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from powerphase.adapters.answers import STAND_IN
from powerphase.adapters.runner import Estimate, Failure, SeriesRunner, varies
from powerphase.adapters.running import reason_of
from powerphase.adapters.series import SeriesModel, SeriesRecord
from powerphase.errors import ConfigError, ForecastError, TrainingError
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.fitted import FittedFactorForge, channel_blocks
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.base import Prediction
from powerphase.scenarios import Context, Scenarios, Training

On = Literal["channels", "factors"]
FACTORS: On = "factors"

CHANNELS_AT_ONCE = 1024
"""Channels whose scenarios are made and returned at a time."""

MAX_FAILED = 0.1
"""The largest share of the varying channels of a window that may fail."""

Progress = Callable[[int, int], None]


class SeriesForecaster:
    """A model of single series as a forecaster; `from_callable` and the like make it.

    Args:
        model: the model.
        on: `channels`, or `factors` for at most twelve series instead of all channels.
        scenarios: the number of joint scenarios over factors; over channels there are as many as
            the model answers.
        seed: fixes random answers, and the factors and their noise.
        workers: the number of processes over channels.
        rearrange: whether quantiles that cross are sorted; otherwise such a series has failed.
        on_progress: called with the number of channels forecast and of all, in each window.
        on_estimate: called once with what the forecast will take, before its first channel.
    """

    def __init__(
        self,
        model: SeriesModel,
        *,
        on: On = "channels",
        scenarios: int = 100,
        seed: int = 42,
        workers: int = 1,
        rearrange: bool = False,
        on_progress: Progress | None = None,
        on_estimate: Callable[[Estimate], None] | None = None,
    ) -> None:
        if on not in get_args(On):
            raise ConfigError(f"on must be one of {', '.join(get_args(On))}, found {on!r}")
        if scenarios < 2 or workers < 1:
            raise ConfigError(
                "scenarios must be 2 or more and workers 1 or more, found "
                f"{scenarios} and {workers}"
            )
        self.model, self.on, self.n_scenarios, self.workers = model, on, scenarios, workers
        self.rearrange = rearrange
        self.on_progress, self.on_estimate = on_progress, on_estimate
        self.name = model.name
        self.seed = seed if model.is_random or on == FACTORS else 0
        self._forge: FittedFactorForge | None = None
        self._runner: SeriesRunner | None = None
        self.failed: dict[str, Any] = {}
        """The series that failed since the fit, by window, and what they have instead."""
        self._step_s: int | None = None

    @property
    def variant(self) -> str | None:
        """`factors`, if it is these that the model forecasts."""
        return FACTORS if self.on == FACTORS else None

    @property
    def joint_scenarios(self) -> bool:
        """Whether a scenario is one future: over channels, each is forecast by itself."""
        return self.on == FACTORS

    @property
    def config(self) -> dict[str, Any]:
        """What identifies the results, as JSON can hold it."""
        facts = {**self.model.config, "on": self.on, "rearrange": self.rearrange}
        return facts | {"scenarios": self.n_scenarios} if self.on == FACTORS else facts

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The series that failed since the fit, each once; they have `STAND_IN` instead."""
        return tuple(
            Failure(window, series, reason)
            for window, reasons in self.failed.get("series", {}).items()
            for series, reason in reasons.items()
        )

    def fit(self, train: Training) -> None:
        """Find the factors if they are forecast, and fit a model that learns from the record."""
        self._forge = self._runner = factors = None
        self.failed = {"instead": STAND_IN, "series": {}}
        if self.on == FACTORS:
            forge = FactorForge(FactorForgeConfig(informed=False), seed=self.seed)
            forge.fit(train)
            self._forge, factors = forge.fitted, forge.series
        self._step_s = train.step_s
        record = SeriesRecord(train, None if factors is None else factors.astype(np.float32))
        try:
            self.model.fit(record)
        except Exception as error:  # foreign code may raise anything
            raise TrainingError(f"{self.name} cannot be fitted: {reason_of(error)}") from error
        workers = 1 if self.on == FACTORS else self.workers
        self._runner = SeriesRunner(self.model, self.seed, workers, self.rearrange)

    def predict(self, context: Context) -> Prediction:
        """The scenarios of these windows: joint ones at once, others in blocks of channels."""
        runner, forge = self._fitted, self._forge
        if context.step_s != self._step_s:
            raise ForecastError(
                f"{self.name} was fitted with steps of {self._step_s} s, and the context has "
                f"{context.step_s} s; fit it on a record with the same step"
            )
        if self.on_estimate is not None:
            self.on_estimate(self.estimate(context))
            self.on_estimate = None
        if forge is not None:
            return self._over_factors(context, runner, forge)
        return self._over_channels(context, runner)

    def estimate(self, context: Context) -> Estimate:
        """The time that a window will take, from a short timing of the fitted model."""
        runner = self._fitted
        return runner.estimate(self._series(context)[0], context.time[0])

    @property
    def _fitted(self) -> SeriesRunner:
        if self._runner is None:
            raise ForecastError(f"{self.name} is not fitted; call fit first")
        return self._runner

    def _over_factors(
        self, context: Context, runner: SeriesRunner, forge: FittedFactorForge
    ) -> Prediction:
        """Scenarios from draws of the factors, all of which must be forecast."""
        quantiles = []
        for past, time in zip(self._series(context), context.time, strict=True):
            names = [f"factor {k + 1}" for k in range(len(past))]
            marginals, failures = runner.forecast(past, time, names)
            self._note_failures(failures, 0)
            quantiles.append(marginals.quantiles(self.n_scenarios))
        ascending = torch.stack(quantiles).to(context.past)
        make = partial(forge.draws_with, ascending, context.future_time[:, 0], self.seed)
        size = (len(ascending) * self.n_scenarios, context.horizon, context.layout.n_channels)
        blocks = channel_blocks(*size)
        return make() if len(blocks) == 1 else ((block, make(block)) for block in blocks)

    def _over_channels(
        self, context: Context, runner: SeriesRunner
    ) -> Iterator[tuple[slice, Scenarios]]:
        pasts, n_channels = self._series(context), context.layout.n_channels
        allowed = int(MAX_FAILED * sum(int(varies(past).sum()) for past in pasts))
        failures: list[Failure] = []
        for first in range(0, n_channels, CHANNELS_AT_ONCE):
            channels = slice(first, min(first + CHANNELS_AT_ONCE, n_channels))
            names = [context.layout.name_of(k) for k in range(channels.start, channels.stop)]
            windows = []
            for past, time in zip(pasts, context.time, strict=True):
                marginals, failed = runner.forecast(past[channels], time, names, first)
                windows.append(marginals.scenarios())
                failures += failed
            self._note_failures(failures, allowed)
            if self.on_progress is not None:
                self.on_progress(channels.stop, n_channels)
            values, weights = (
                torch.cat([getattr(window, name) for window in windows]).to(context.past)
                for name in ("values", "weights")
            )
            yield channels, Scenarios(values, weights)

    def _series(self, context: Context) -> list[Float32[np.ndarray, "X T"]]:
        """The series of each window, one in each row."""
        past: Tensor = context.past if self._forge is None else self._forge.factors.of(context.past)
        return [window.T.float().cpu().contiguous().numpy() for window in past]

    def _note_failures(self, failures: Sequence[Failure], allowed: int) -> None:
        """Add them to those before; raise if more series of a forecast have failed than allowed."""
        for failure in failures:
            self.failed["series"].setdefault(failure.window, {})[failure.series] = failure.reason
        if len(failures) > allowed:
            first = failures[0]
            raise ForecastError(
                f"{self.name} failed on {len(failures)} series, and {allowed} may fail; the first "
                f"is {first.series}: {first.reason}"
            )
