"""Analogs: days of the training record that came after days like those of the context.

A scenario is a whole past day, as it happened: it obeys the AC equations because it was a solution
of them. Similarity is measured in factors, so it concerns the whole grid at once: how far the
factors of the context are from those before the past day, and how far the calendar expects the two
days apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int

from powerphase.clock import same_time_starts
from powerphase.errors import ConfigError, ForecastError
from powerphase.models.anchors.factor_record import FactorAnchor
from powerphase.models.factorforge import read_days
from powerphase.models.factorforge.past_days import CHANNELS_AT_ONCE
from powerphase.scenarios import Context, Scenarios, Training

HOURS = 24


@dataclass(frozen=True)
class AnalogsConfig:
    """Which past days are similar, how many are taken, and how much the best count."""

    analogs: int = 80
    """How many past days, but at most half as many as a short record has."""
    lookback_hours: int = 24
    """The hours before the forecast that are compared."""
    past_weight: float = 1.0
    """The weight of the compared hours; that of the calendar is 1."""
    sharpness: float = 2.0
    """How fast weights fall with the distance: the logarithm by which the weight of a day at the
    mean distance is below that of a day at none. With 0, all days count equally."""

    def __post_init__(self) -> None:
        if self.analogs < 1 or self.lookback_hours < 1:
            raise ConfigError(
                f"analogs and lookback_hours must be 1 or more, found {self.analogs} and "
                f"{self.lookback_hours}"
            )
        if self.past_weight < 0 or self.sharpness < 0:
            raise ConfigError(
                f"past_weight and sharpness must be 0 or more, found {self.past_weight} and "
                f"{self.sharpness}"
            )


class Analogs(FactorAnchor[AnalogsConfig]):
    """Whole past days as scenarios, weighted by their similarity to the day to forecast."""

    name = "analogs"
    config_type = AnalogsConfig

    def fit(self, train: Training) -> None:
        """Find the factors of the record; its days are read again when they are chosen."""
        self._lookback(
            train.validation.context_steps, train.steps_per_day
        )  # raises before the record is read
        self._fit_record(train)

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """The most similar past days, in blocks of channels."""
        record, train = self.record, self.train
        record.check(context)
        parts = (slice(window, window + 1) for window in range(len(context.past)))
        chosen = [self.choose_days(context.of_windows(part)) for part in parts]
        for first in range(0, context.layout.n_channels, CHANNELS_AT_ONCE):
            channels = slice(first, min(first + CHANNELS_AT_ONCE, context.layout.n_channels))
            days = [read_days(train, starts, context.horizon, channels) for starts, _ in chosen]
            weights = torch.stack([torch.from_numpy(weight).float() for _, weight in chosen])
            values = torch.stack(days).to(context.past.device)
            spread = weights.to(values)[..., None].expand(-1, -1, values.shape[-1])
            yield channels, Scenarios(values, spread)

    def choose_days(
        self, context: Context
    ) -> tuple[Int[np.ndarray, " M"], Float64[np.ndarray, " M"]]:
        """First steps of one window's past days, the most similar first, and their weights."""
        record, config = self.record, self.config
        lookback = self._lookback(context.past.shape[1], record.per_day)
        starts = same_time_starts(record.time, context.future_time[0], context.layout.calendar)
        starts = starts[starts >= lookback]
        distance = self._distances(context, starts, lookback)
        order = np.argsort(distance, kind="stable")[: min(config.analogs, len(record.origins) // 2)]
        return starts[order], similarity_weights(distance[order], config.sharpness)

    def _lookback(self, n_past: int, per_day: int) -> int:
        """The number of steps that are compared."""
        steps = max(1, self.config.lookback_hours * per_day // HOURS)
        if steps > n_past:
            raise ForecastError(
                f"{self.name} compares {steps} steps before the forecast, but a context has "
                f"{n_past}; use a smaller lookback_hours or a longer context"
            )
        return steps

    def _distances(
        self, context: Context, starts: Int[np.ndarray, " D"], lookback: int
    ) -> Float64[np.ndarray, " D"]:
        """The squared distance of each day; a factor counts by the variance that it explains."""
        record = self.record
        share = record.factors.share.numpy()
        past = record.past_deviation(context)[0, -lookback:]
        ahead = record.forecaster.expected(context.future_time[0])
        befores = record.deviation[starts[:, None] + np.arange(-lookback, 0)]
        days = record.expected[starts[:, None] + np.arange(context.horizon)]
        by_past = ((befores - past) ** 2).mean(1) @ share
        by_calendar = ((days - ahead) ** 2).mean(1) @ share
        return by_calendar + self.config.past_weight * by_past


def similarity_weights(
    distance: Float64[np.ndarray, " M"], sharpness: float
) -> Float64[np.ndarray, " M"]:
    """Weights that fall with the squared distance relative to its mean, and sum to 1."""
    mean = distance.mean()
    relative = distance / mean if mean > 0 else np.zeros_like(distance)
    weight = np.exp(-sharpness * (relative - relative.min()))
    return weight / weight.sum()
