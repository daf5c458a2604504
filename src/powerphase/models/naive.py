"""Reference forecasters, which give the scores of other models a scale."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int, Shaped
from torch import Tensor

from powerphase.axes import STEPS_PER_DAY
from powerphase.clock import day_of_week, quarter_of_day
from powerphase.errors import ForecastError
from powerphase.scenarios import Context, Scenarios, Training

DAYS = 7
SLOTS = DAYS * STEPS_PER_DAY
"""Quarters of an hour in a week."""
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
        n_past = context.past.shape[1]
        if n_past < SLOTS:
            raise ForecastError(
                f"a context of {n_past} steps is shorter than a week; use {SLOTS} or more"
            )
        ordered = context.past[:, -SLOTS:].sort(1).values
        rank = (torch.arange(QUANTILES) + 0.5) / QUANTILES * SLOTS
        levels = ordered[:, rank.long().to(ordered.device)]
        return Scenarios.equal(levels[:, :, None].repeat(1, 1, context.horizon, 1))


@dataclass(frozen=True)
class ClimatologyConfig:
    """The resolution of the climatology, and how many channels are fitted at a time."""

    quantiles: int = QUANTILES
    channels_at_once: int = 256


class Climatology:
    """The training record's quantiles by time of the week on the Berlin clock.

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
        """Compute the quantiles of every channel in every quarter-hour of the week."""
        n_channels, config = train.layout.n_channels, self.config
        groups = _steps_by_slot(slot_of_week(train.time))
        self._table = torch.empty((config.quantiles, SLOTS, n_channels))
        for first in range(0, n_channels, config.channels_at_once):
            channels = slice(first, first + config.channels_at_once)
            record = train.read(channels=channels).numpy()
            for steps, slots in groups:
                ordered = np.sort(record[steps], axis=0)
                rank = (np.arange(config.quantiles) + 0.5) / config.quantiles * len(ordered)
                self._table[:, slots, channels] = torch.from_numpy(ordered[rank.astype(int)])

    def predict(self, context: Context) -> Scenarios:
        """The quantiles of the weekday and time of each step to forecast."""
        if self._table is None:
            raise ForecastError("climatology is not fitted; call fit first")
        slots = torch.from_numpy(slot_of_week(context.future_time))
        values = self._table[:, slots].movedim(0, 1)
        return Scenarios.equal(values.to(context.past.device))


def slot_of_week(time: Shaped[np.ndarray, "*S"]) -> Int[np.ndarray, "*S"]:
    """The quarter-hour of the week in Berlin, from 0 on Monday at midnight to 671."""
    return day_of_week(time) * STEPS_PER_DAY + quarter_of_day(time)


def _steps_by_slot(
    slot: Int[np.ndarray, " S"],
) -> list[tuple[Int[np.ndarray, "weeks slots"], Int[np.ndarray, " slots"]]]:
    """The steps at which each slot occurs, in groups of slots that occur equally often.

    A record of 76 weeks and some days has some slots 76 times and others 77 times, and the nights
    when the clock changes add further differences.
    """
    order = np.argsort(slot, kind="stable")
    numbers, starts, counts = np.unique(slot[order], return_index=True, return_counts=True)
    if len(numbers) < SLOTS:
        raise ForecastError(
            f"climatology needs every quarter-hour of the week in the training record, which has "
            f"{len(numbers)} of {SLOTS}; use a longer record"
        )
    return [
        (order[starts[counts == n] + np.arange(n)[:, None]], numbers[counts == n])
        for n in np.unique(counts)
    ]


def _days_back(context: Context, days: int) -> Float32[Tensor, "B H C"]:
    """The values so many days before each step; beyond the end of the context, they repeat."""
    n_past = context.past.shape[1]
    first = n_past - days * STEPS_PER_DAY
    if first < 0:
        raise ForecastError(
            f"a context of {n_past} steps does not reach back {days} days; use "
            f"{days * STEPS_PER_DAY} or more"
        )
    steps = first + torch.arange(context.horizon) % (n_past - first)
    return context.past[:, steps.to(context.past.device)]
