"""Reference forecasters, which give the scores of other models a scale."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int, Shaped
from torch import Tensor

from powerphase.clock import GERMANY, Calendar, day_of_week, slot_of_day
from powerphase.errors import ForecastError
from powerphase.scenarios import Context, Scenarios, Training

DAYS = 7
QUANTILES = 16


class LastWeek:
    """The same day one week ago, as the only scenario."""

    name = "last-week"
    joint_scenarios = True
    n_parameters = 0

    def fit(self, train: Training) -> None:
        """Do nothing: there is nothing to fit."""

    def predict(self, context: Context) -> Scenarios:
        """One scenario: the values seven days before each step."""
        return Scenarios.equal(_days_back(context, DAYS)[:, None])


class LastSevenDays:
    """The last seven days as seven equally likely scenarios."""

    name = "last-7-days"
    joint_scenarios = True
    n_parameters = 0

    def fit(self, train: Training) -> None:
        """Do nothing: there is nothing to fit."""

    def predict(self, context: Context) -> Scenarios:
        """Seven scenarios, the oldest day first."""
        days = [_days_back(context, back) for back in range(DAYS, 0, -1)]
        return Scenarios.equal(torch.stack(days, dim=1))


class FlatWeek:
    """Last week's distribution, whatever the hour: what a forecast without a day is worth.

    Scenario m is the (m − ½)/M quantile of every channel over the last week, held for the whole
    horizon.
    """

    name = "flat-week"
    n_parameters = 0
    joint_scenarios = False

    def fit(self, train: Training) -> None:
        """Do nothing: there is nothing to fit."""

    def predict(self, context: Context) -> Scenarios:
        """Sixteen flat scenarios, the lowest first."""
        n_past, week = context.past.shape[1], DAYS * context.steps_per_day
        if n_past < week:
            raise ForecastError(
                f"a context of {n_past} steps is shorter than a week; use {week} or more"
            )
        ordered = context.past[:, -week:].sort(1).values
        rank = (torch.arange(QUANTILES) + 0.5) / QUANTILES * week
        levels = ordered[:, rank.long().to(ordered.device)]
        return Scenarios.equal(levels[:, :, None].repeat(1, 1, context.horizon, 1))


@dataclass(frozen=True)
class ClimatologyConfig:
    """The resolution of the climatology, and how many channels are fitted at a time."""

    quantiles: int = QUANTILES
    channels_at_once: int = 256


class Climatology:
    """The training record's quantiles by time of the week on the local clock.

    It uses neither the season nor the context: only the distribution over a year and a half at,
    say, every Tuesday 18:15. Scenario m is the (m − ½)/M quantile of every channel at once.
    """

    name = "climatology"
    joint_scenarios = False

    def __init__(self, config: ClimatologyConfig | None = None) -> None:
        self.config = config or ClimatologyConfig()
        self._table: Float32[Tensor, "M S C"] | None = None

    @property
    def n_parameters(self) -> int | None:
        """The size of the table of quantiles."""
        return None if self._table is None else self._table.numel()

    def fit(self, train: Training) -> None:
        """Compute the quantiles of every channel in every slot of the week, each a step long."""
        n_channels, config, per_day = train.layout.n_channels, self.config, train.steps_per_day
        slots_of_record = slot_of_week(train.time, per_day, train.layout.calendar)
        every_step = np.arange(len(slots_of_record))
        groups = steps_by_slot(slots_of_record, DAYS * per_day, every_step, self.name)
        self._table = torch.empty((config.quantiles, DAYS * per_day, n_channels))
        for first in range(0, n_channels, config.channels_at_once):
            channels = slice(first, first + config.channels_at_once)
            record = train.read(channels=channels).numpy()
            table = slot_quantiles(record, groups, config.quantiles)
            self._table[:, :, channels] = torch.from_numpy(table)

    def predict(self, context: Context) -> Scenarios:
        """The quantiles of the weekday and time of each step to forecast."""
        if self._table is None:
            raise ForecastError("climatology is not fitted; call fit first")
        per_day, calendar = self._table.shape[1] // DAYS, context.layout.calendar
        if per_day != context.steps_per_day:
            raise ForecastError(
                f"climatology was fitted with {per_day} steps a day, and a day of the context has "
                f"{context.steps_per_day}; fit it on a record with the same step"
            )
        slots = torch.from_numpy(slot_of_week(context.future_time, per_day, calendar))
        values = self._table[:, slots].movedim(0, 1)
        return Scenarios.equal(values.to(context.past.device))


def slot_of_week(
    time: Shaped[np.ndarray, "*S"], per_day: int = 96, calendar: Calendar = GERMANY
) -> Int[np.ndarray, "*S"]:
    """The slot of the week on the local clock, from 0 on Monday at midnight; 96 slots are a day."""
    return day_of_week(time, calendar) * per_day + slot_of_day(time, per_day, calendar)


@dataclass(frozen=True, eq=False)
class SlotGroup:
    """Slots of the week that occur equally often in a record."""

    slots: Int[np.ndarray, " slots"]
    steps: Int[np.ndarray, "weeks slots"]
    """Where they occur."""


def steps_by_slot(
    slot: Int[np.ndarray, " S"], n_slots: int, steps: Int[np.ndarray, " n"], model: str
) -> list[SlotGroup]:
    """Those of the steps at which each slot occurs, in groups of slots that occur equally often.

    A record of 76 weeks and some days has some slots 76 times and others 77 times, and the nights
    when the clock changes add further differences.

    Args:
        slot: the slot of every step of a record.
        n_slots: the number of slots in a week.
        steps: which steps of the record to use.
        model: which needs every slot of the week, for the error.
    """
    order = steps[np.argsort(slot[steps], kind="stable")]
    numbers, starts, counts = np.unique(slot[order], return_index=True, return_counts=True)
    if len(numbers) < n_slots:
        raise ForecastError(
            f"{model} needs every time of the week in the training record, which has "
            f"{len(numbers)} of {n_slots}; use a longer record"
        )
    return [
        SlotGroup(numbers[counts == n], order[starts[counts == n] + np.arange(n)[:, None]])
        for n in np.unique(counts)
    ]


def slot_quantiles(
    record: Float32[np.ndarray, "S C"], groups: list[SlotGroup], count: int
) -> Float32[np.ndarray, "M slots C"]:
    """The (m − ½)/M quantiles of the channels in every slot of the week."""
    n_slots = sum(len(group.slots) for group in groups)
    table = np.empty((count, n_slots, record.shape[1]), dtype=record.dtype)
    for group in groups:
        ordered = np.sort(record[group.steps], axis=0)
        rank = (np.arange(count) + 0.5) / count * len(ordered)
        table[:, group.slots] = ordered[rank.astype(int)]
    return table


def _days_back(context: Context, days: int) -> Float32[Tensor, "B H C"]:
    """The values so many days before each step; beyond the end of the context, they repeat."""
    n_past, per_day = context.past.shape[1], context.steps_per_day
    first = n_past - days * per_day
    if first < 0:
        raise ForecastError(
            f"a context of {n_past} steps does not reach back {days} days; use "
            f"{days * per_day} or more"
        )
    steps = first + torch.arange(context.horizon) % (n_past - first)
    return context.past[:, steps.to(context.past.device)]
