"""What the anchors take over from FactorForge: factors, the calendar's expectation, and noise.

An anchor forecasts a few factors in its own way. The factors, what the calendar expects of them,
and the map from factors to channels with their noise are FactorForge's, so that a difference in
scores is one of the forecast.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int, Shaped
from torch import Tensor

from powerphase.errors import ForecastError, TrainingError
from powerphase.models.factorforge import (
    FactorForecaster,
    FactorForgeConfig,
    Factors,
    find_factors,
    fit_factor_forecaster,
    moved_days,
    window_origins,
)
from powerphase.resolution import time_of_day
from powerphase.scenarios import Context, Scenarios, Training

CONFIG = FactorForgeConfig()

F = TypeVar("F")
C = TypeVar("C")
"""The config of an anchor."""


def fitted(state: F | None, model: str) -> F:
    """The fitted state of a model; raise if there is none."""
    if state is None:
        raise ForecastError(f"{model} is not fitted; call fit first")
    return state


@dataclass(frozen=True, eq=False)
class FactorRecord:
    """The factors of a training record, and the windows in it."""

    model: str
    """The name of the anchor, for errors."""
    factors: Factors
    series: Float64[np.ndarray, "S K"]
    time: Shaped[np.ndarray, " S"]
    forecaster: FactorForecaster
    """FactorForge's own forecaster: its calendar, and its errors on held-out windows."""
    expected: Float64[np.ndarray, "S K"]
    """The factors that the calendar expects."""
    origins: Int[np.ndarray, " B"]
    """First steps of the training windows, one a day."""
    n_past: int
    horizon: int
    n_channels: int
    origin_s: int
    """The time of day at which windows start, in seconds, UTC."""

    @property
    def per_day(self) -> int:
        """How many steps a day has."""
        return len(self.forecaster.calendar)

    @cached_property
    def deviation(self) -> Float64[np.ndarray, "S K"]:
        """The factors less what the calendar expects."""
        return self.series - self.expected

    def check(self, context: Context) -> None:
        """Raise if the context is not of the kind that the model was fitted for."""
        size = (context.past.shape[1], context.horizon, context.layout.n_channels)
        fitted = (self.n_past, self.horizon, self.n_channels)
        if (*size, context.steps_per_day) != (*fitted, self.per_day):
            raise ForecastError(
                f"{self.model} was fitted for {fitted[0]} past steps, {fitted[1]} steps to "
                f"forecast and {fitted[2]} channels, {self.per_day} steps a day; found {size}, "
                f"{context.steps_per_day} steps a day; fit it for such windows"
            )
        if context.layout.calendar != self.forecaster.local:
            raise ForecastError(
                f"{self.model} was fitted with the calendar {self.forecaster.local}, but the "
                f"context has {context.layout.calendar}; fit it with this one"
            )
        for window, moment in enumerate(context.future_time[:, 0]):
            if time_of_day(moment) != self.origin_s:
                raise ForecastError(
                    f"{self.model} was fitted for windows that start {self.origin_s / 3600:g} h "
                    f"after midnight UTC, but one starts at {moment}; fit it for such windows",
                    window=window,
                )

    def past_deviation(self, context: Context) -> Float64[np.ndarray, "B T K"]:
        """The factors of the context less what the calendar expects."""
        past = self.factors.of(context.past).double().cpu().numpy()
        return past - self.forecaster.expected(context.time[:, : self.n_past])


class FactorAnchor(Generic[C]):
    """What the anchors in factor space share: a config, a seed, and the record that was fitted.

    Args:
        config: all options.
        seed: fixes the random directions of the search for factors, and whatever is drawn.
    """

    name: ClassVar[str]
    config_type: type[C]
    joint_scenarios = True

    def __init__(self, config: C | None = None, *, seed: int = 42) -> None:
        self.config: C = self.config_type() if config is None else config
        self.seed = seed
        self._fitted: tuple[FactorRecord, Training] | None = None

    @property
    def record(self) -> FactorRecord:
        """The factors of the record."""
        return fitted(self._fitted, self.name)[0]

    @property
    def train(self) -> Training:
        """The record itself, of which days are read again."""
        return fitted(self._fitted, self.name)[1]

    def _fit_record(self, train: Training) -> FactorRecord:
        """Find the factors."""
        self._fitted = fit_factor_record(train, self.seed, self.name), train
        return self.record


def fit_factor_record(train: Training, seed: int, model: str) -> FactorRecord:
    """The factors of a training record; raise, before it is read, if it is too short."""
    windows, local = train.validation, train.layout.calendar
    size = (windows.context_steps, windows.horizon)
    origins = window_origins(train.time, *size, CONFIG, train.origin_s, model)
    factors, series = find_factors(train, CONFIG, seed)
    if not len(factors):
        raise TrainingError(
            f"{model} needs channels that vary with time, and the training record has none"
        )
    forecaster = fit_factor_forecaster(series, train.time, *size, CONFIG, train.origin_s, local)
    return FactorRecord(
        model=model,
        factors=factors,
        series=series,
        time=train.time,
        forecaster=forecaster,
        expected=forecaster.expected(train.time),
        origins=origins,
        n_past=size[0],
        horizon=size[1],
        n_channels=train.layout.n_channels,
        origin_s=train.origin_s,
    )


def scenario_blocks(
    record: FactorRecord,
    train: Training,
    paths: Float32[Tensor, "B M H K"],
    days: Int[np.ndarray, "B M"],
) -> Iterator[tuple[slice, Scenarios]]:
    """Joint scenarios of all channels from paths of the factors, in blocks of channels.

    What the factors leave of a past day is the noise of a scenario. It belongs together across the
    grid as it did on that day: voltages at both ends of a line keep their difference.

    Args:
        record: the factors.
        train: the record that they were found in.
        paths: scenarios of the factors.
        days: the first step of the past day for each scenario.
    """
    steps = days[..., None] + np.arange(paths.shape[2])
    moves = paths - torch.from_numpy(record.series[steps]).to(paths)
    return moved_days(record.factors, train, moves, days)
