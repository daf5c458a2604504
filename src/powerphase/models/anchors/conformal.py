"""Conformal climatology: quantiles by time of the week, corrected on days that they have not seen.

The climatology is fitted without some days of the record. On these days it is counted how far each
quantile must be moved so that it exceeds as many values as its level says, for every channel and
hour of the day. If a day to forecast is exchangeable with these days, a moved quantile exceeds its
value with a probability between its level and its level plus 1/(n + 1), whatever the distribution
(split conformal prediction).

Reference: Romano, Patterson and Candès (2019), arXiv:1905.03222, with one side for each level.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from powerphase.clock import slot_of_day
from powerphase.errors import ConfigError, ForecastError
from powerphase.models.anchors.factor_record import fitted
from powerphase.models.naive import (
    DAYS,
    QUANTILES,
    slot_of_week,
    slot_quantiles,
    steps_by_slot,
)
from powerphase.scenarios import Context, Scenarios, Training

CHOICES = ("spread", "last")
HOURS = 24


@dataclass(frozen=True)
class ConformalClimatologyConfig:
    """The quantiles, and the days on which they are corrected."""

    quantiles: int = QUANTILES
    calibration_share: float = 0.25
    """The share of the record's days on which quantiles are corrected."""
    calibration: Literal["spread", "last"] = "spread"
    """Whether these days are spread over the record or its last ones."""
    channels_at_once: int = 256

    def __post_init__(self) -> None:
        if self.quantiles < 1 or self.channels_at_once < 1:
            raise ConfigError(
                f"quantiles and channels_at_once must be 1 or more, found {self.quantiles} and "
                f"{self.channels_at_once}"
            )
        if not 0 < self.calibration_share < 1:
            raise ConfigError(
                f"calibration_share must be above 0 and below 1, found {self.calibration_share}"
            )
        if self.calibration not in CHOICES:
            raise ConfigError(f"calibration must be one of {CHOICES}, found {self.calibration!r}")


class ConformalClimatology:
    """The quantiles of a climatology, moved so that they hold on days it was not fitted to.

    Args:
        config: all options.
    """

    name = "conformal-climatology"
    joint_scenarios = False

    def __init__(self, config: ConformalClimatologyConfig | None = None) -> None:
        self.config = config or ConformalClimatologyConfig()
        self._table: Float32[Tensor, "M S C"] | None = None
        self._shift: Float32[Tensor, "M hours C"] | None = None

    @property
    def n_parameters(self) -> int | None:
        """The size of the table of quantiles and of their corrections."""
        if self._table is None or self._shift is None:
            return None
        return self._table.numel() + self._shift.numel()

    def fit(self, train: Training) -> None:
        """Fit the quantiles to most days, and correct them on the others."""
        config, n_channels, per_day = self.config, train.layout.n_channels, train.steps_per_day
        n_steps, calendar = len(train.time), train.layout.calendar
        held_out = np.repeat(self._held_out_days(-(-n_steps // per_day)), per_day)[:n_steps]
        slots = slot_of_week(train.time, per_day, calendar)
        hours = slot_of_day(train.time, HOURS, calendar)
        groups = steps_by_slot(slots, DAYS * per_day, np.flatnonzero(~held_out), self.name)
        parts = self._steps_by_hour(held_out, hours)
        self._table = torch.empty((config.quantiles, DAYS * per_day, n_channels))
        self._shift = torch.empty((config.quantiles, HOURS, n_channels))
        for first in range(0, n_channels, config.channels_at_once):
            channels = slice(first, first + config.channels_at_once)
            record = train.read(channels=channels).numpy()
            table = slot_quantiles(record, groups, config.quantiles)
            self._table[:, :, channels] = torch.from_numpy(table)
            for hour, steps in enumerate(parts):
                shift = conformal_shift(record[steps], table[:, slots[steps]])
                self._shift[:, hour, channels] = torch.from_numpy(shift)

    def predict(self, context: Context) -> Scenarios:
        """The corrected quantiles of the weekday and time of each step to forecast."""
        table, shift = fitted(self._table, self.name), fitted(self._shift, self.name)
        time, calendar, per_day = (
            context.future_time,
            context.layout.calendar,
            context.steps_per_day,
        )
        if table.shape[1] != DAYS * per_day:
            raise ForecastError(
                f"{self.name} was fitted with {table.shape[1] // DAYS} steps a day, and a day of "
                f"the context has {per_day}; fit it on a record with the same step"
            )
        slots = torch.from_numpy(slot_of_week(time, per_day, calendar))
        hours = torch.from_numpy(slot_of_day(time, HOURS, calendar))
        values = (table[:, slots] + shift[:, hours]).movedim(0, 1)
        return Scenarios.equal(values.sort(dim=1).values.to(context.past.device))

    def _held_out_days(self, days: int) -> Bool[np.ndarray, " D"]:
        """On which of so many days the quantiles are corrected."""
        count = round(self.config.calibration_share * days)
        is_held_out = np.zeros(days, dtype=bool)
        if self.config.calibration == "last":
            is_held_out[days - count :] = True
        else:
            is_held_out[(np.arange(count) * days + days // 2) // max(count, 1)] = True
        return is_held_out

    def _steps_by_hour(
        self, held_out: Bool[np.ndarray, " S"], hours: Int[np.ndarray, " S"]
    ) -> list[Int[np.ndarray, " steps"]]:
        """The held-out steps of each hour of the day; raise if they are too few for the levels."""
        parts = [np.flatnonzero(held_out & (hours == hour)) for hour in range(HOURS)]
        needed, fewest = 2 * self.config.quantiles - 1, min(len(steps) for steps in parts)
        if fewest < needed:
            raise ForecastError(
                f"{self.name} corrects {self.config.quantiles} quantiles on {needed} or more steps "
                f"of each hour, found {fewest} in a record of {len(held_out)} steps; make a longer "
                "record, ask for fewer quantiles or hold out more days"
            )
        return parts


def conformal_shift(
    values: Shaped[np.ndarray, "n C"], quantiles: Shaped[np.ndarray, "M n C"]
) -> Shaped[np.ndarray, "M C"]:
    """How far each quantile must be moved to hold on values that it was not fitted to.

    Quantile m of M has the level (m − ½)/M. The shift is the value of rank ⌈level · (n + 1)⌉ of the
    n excesses over the quantile, so that a further value, exchangeable with these, is below the
    moved quantile with at least the level as probability.
    """
    count, n = quantiles.shape[:2]
    levels = (np.arange(count) + 0.5) / count
    rank = np.ceil(levels * (n + 1) - 1e-9).astype(int) - 1
    excess = values - quantiles
    return np.stack(
        [np.partition(part, k, axis=0)[k] for part, k in zip(excess, rank, strict=True)]
    )
