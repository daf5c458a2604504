"""Days of the training record as joint scenarios: the template of the Schaake shuffle.

A past day is one future of the whole grid that happened. Its values belong to its own date; only
the ranks of several days are used. The days are therefore of the same kind as the day to forecast,
and from the same season.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Shaped
from torch import Tensor

from powerphase.clock import (
    GERMANY,
    Calendar,
    day_of_week,
    day_of_year,
    is_public_holiday,
    same_time_starts,
)
from powerphase.errors import ForecastError
from powerphase.scenarios import Context, Scenarios, Training

SATURDAY, SUNDAY = 5, 6
YEAR_DAYS = 365.25

CHANNELS_AT_ONCE = 1024
"""A multiple of the channels of a stored chunk."""


class PastDays:
    """Past days as scenarios of equal weight, the most similar day first.

    A day starts at the same local time of day as the window. Days of the window's kind (working
    day, Saturday, or Sunday and holiday) come before all others; among them, the nearest in season
    come first, and of equally near ones the later.

    Args:
        count: how many days.
    """

    name = "past-days"
    joint_scenarios = True

    def __init__(self, count: int = 16) -> None:
        self._count = count
        self._train: Training | None = None

    def with_count(self, count: int) -> "PastDays":
        """The same with another number of days."""
        form = PastDays(count)
        form._train = self._train
        return form

    def fit(self, train: Training) -> None:
        """Take the days of this record."""
        self._train = train

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """The days for these windows, in blocks of channels."""
        if self._train is None:
            raise ForecastError("past-days is not fitted; call fit first")
        record, calendar = self._train.time, context.layout.calendar
        starts = [choose_days(record, time, self._count, calendar) for time in context.future_time]
        n_channels = context.layout.n_channels
        for first in range(0, n_channels, CHANNELS_AT_ONCE):
            channels = slice(first, min(first + CHANNELS_AT_ONCE, n_channels))
            days = [_read(self._train, each, context.horizon, channels) for each in starts]
            yield channels, Scenarios.equal(torch.stack(days).to(context.past.device))


def choose_days(
    record: Shaped[np.ndarray, " S"],
    window: Shaped[np.ndarray, " H"],
    count: int,
    calendar: Calendar = GERMANY,
) -> Int[np.ndarray, " M"]:
    """The first steps of the days of a record that are most similar to a window.

    Args:
        record: start of every step of the record, UTC.
        window: start of every step to forecast, UTC.
        count: how many days.
        calendar: tells working days from days off.
    """
    starts = same_time_starts(record, window, calendar)
    if len(starts) < count:
        raise ForecastError(
            f"the training record has {len(starts)} days from the window's time of day on, too few "
            f"for {count} scenarios; ask for fewer scenarios or make a longer record"
        )
    middle = len(window) // 2
    days, day = record[starts + middle], window[middle : middle + 1]
    other_kind = _kind(days, calendar) != _kind(day, calendar)
    nearest_first = np.lexsort((-starts, _seasons_apart(days, day, calendar), other_kind))
    return starts[nearest_first[:count]]


def _kind(time: Shaped[np.ndarray, " D"], calendar: Calendar) -> Int[np.ndarray, " D"]:
    """0 for a working day, 1 for a Saturday, 2 for a Sunday or holiday."""
    weekday = day_of_week(time, calendar)
    is_off: Bool[np.ndarray, " D"] = (weekday == SUNDAY) | is_public_holiday(time, calendar)
    return np.where(is_off, 2, (weekday == SATURDAY).astype(np.int64))


def _seasons_apart(
    days: Shaped[np.ndarray, " D"], day: Shaped[np.ndarray, "1"], calendar: Calendar
) -> Float[np.ndarray, " D"]:
    """How many days of the year lie between each of the days and this one."""
    apart = np.abs(day_of_year(days, calendar) - day_of_year(day, calendar))
    return np.minimum(apart, YEAR_DAYS - apart)


def _read(
    train: Training, starts: Int[np.ndarray, " M"], horizon: int, channels: slice
) -> Float32[Tensor, "M H C"]:
    return torch.stack([train.read(slice(int(k), int(k) + horizon), channels) for k in starts])
