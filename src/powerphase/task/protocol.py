"""The protocol: how a record is split, and which forecast windows are tested.

The definition is frozen. A change that could change a score must raise `PROTOCOL_VERSION`; rows of
different versions are never compared. The task's name contains every option that differs from the
paper's protocol, so that rows of different tasks are never compared either.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal
from zoneinfo import available_timezones

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.clock import GERMANY, Calendar
from powerphase.errors import TaskError
from powerphase.grid.limits import band_name, check_limits, common_band
from powerphase.resolution import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    PAPER_STEP_S,
    Duration,
    check_step,
    count_steps,
    parse_time_of_day,
    steps_per_day,
    time_of_day,
)
from powerphase.task.known import WORDS, KnownSource

PROTOCOL_VERSION = 1

FIRST_DAY, TEST_DAY, LAST_DAY = "2015-01-01", "2016-07-01", "2016-12-31"
"""The paper's record: training starts on the first day, the test spans the other two."""

TRAIN_SHARE = 0.75
"""The share of training days in a record that does not cover the paper's dates."""

VALIDATION_DAYS = 10
"""The last days of the training split, for validation; no model is fitted on them."""

PAPER_CONTEXT, PAPER_HORIZON, PAPER_WINDOWS, PAPER_ORIGIN = "7d", "24h", 10, "00:00"
"""The paper's windows: the day after each of ten midnights, from a week."""

RECORD_END = "end"
"""The origin of windows that start at the time of day at which the record ends."""

WindowCount = int | Literal["all"]

_NAME = re.compile(
    r"powerphase-(?:day|(?P<horizon>[1-9]\d{,5})-steps)-ahead"
    rf"(?P<known>{WORDS})?"
    r"(?:-from-(?P<context>[1-9]\d{,5}))?"
    r"(?:-(?P<minutes>\d{1,2})-minute-steps)?(?:-origin-(?P<hour>\d\d)(?P<minute>\d\d))?"
    r"(?:-country-(?P<country>[a-z]+))?(?:-zone-(?P<zone>[a-z0-9-]+?))?"
    r"(?:-(?P<windows>all)|-(?P<count>[1-9]\d{,5})-windows)?"
    r"(?:-(?P<limits>case|[\dp]+-[\dp]+)-limits)?(?:-rating-(?P<rating>[a-z]))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Splits:
    """The boundaries of training, validation and test, as steps of the record."""

    first: int
    fit_stop: int
    """Models are fitted on steps `first` to `fit_stop` (excluded); validation follows."""
    train_stop: int
    """Scales are computed from steps `first` to `train_stop` (excluded); the test follows."""
    stop: int


@dataclass(frozen=True)
class Protocol:
    """Size, start and number of windows, in steps. The defaults are the paper's.

    `Protocol.of` makes it from durations.
    """

    context: int = 7 * DAY_S // PAPER_STEP_S
    horizon: int = DAY_S // PAPER_STEP_S
    windows: WindowCount = PAPER_WINDOWS
    limits: str = "normal"
    """Voltage limits by which forecasts are scored: the paper's, the case file's, or a band."""
    rating: str = "a"
    """The rating of branches by which forecasts are scored."""
    version: int = PROTOCOL_VERSION
    step_s: int = PAPER_STEP_S
    """Seconds from one step of the record to the next."""
    origin_s: int = 0
    """The time of day at which windows start, in seconds, UTC."""
    country: str | None = None
    """The country whose holidays models know, or `none`; None for that of the data set."""
    zone: str | None = None
    """The time zone of the calendar; None for that of the country."""
    known: KnownSource | None = None
    """The forecasts of load, sun and wind that models are given; None for none."""

    def __post_init__(self) -> None:
        check_limits(self.limits, self.rating)
        check_step(self.step_s)
        numbers = [self.context, self.horizon, 1 if self.windows == "all" else self.windows]
        if not all(_is_count(number) for number in numbers):
            raise TaskError(
                f"context {self.context!r}, horizon {self.horizon!r} and windows {self.windows!r} "
                "must be whole numbers of 1 or more (windows may be 'all')"
            )
        if not 0 <= self.origin_s < DAY_S or self.origin_s % self.step_s:
            raise TaskError(f"an origin {self.origin_s} s after midnight is no step of a day")
        Calendar().override(self.country, self.zone)

    @classmethod
    def of(
        cls,
        step_s: int = PAPER_STEP_S,
        *,
        context: Duration = PAPER_CONTEXT,
        horizon: Duration = PAPER_HORIZON,
        windows: WindowCount = PAPER_WINDOWS,
        origin: str = PAPER_ORIGIN,
        limits: str = "normal",
        rating: str = "a",
        country: str | None = None,
        zone: str | None = None,
        calendar: Calendar = GERMANY,
        known: KnownSource | None = None,
    ) -> "Protocol":
        """The protocol for a data set with this step and calendar.

        Args:
            step_s: seconds from one step of the record to the next.
            context: how much a forecaster sees before each window: steps, or text such as `7d`.
            horizon: how much it forecasts: steps, or text such as `24h`.
            windows: number of test windows, or "all".
            origin: the time of day at which windows start, UTC.
            limits: voltage limits.
            rating: rating of the branches.
            country: the country whose holidays models know, or "none"; None for the data set's.
            zone: time zone of their calendar; None for that of the country.
            calendar: that of the data set.
            known: the forecasts of load, sun and wind that models are given.
        """
        check_step(step_s)
        if calendar.override(country, zone) == calendar:
            country = zone = None  # which the name need not say
        return cls(
            count_steps(context, step_s, "context"),
            count_steps(horizon, step_s, "horizon"),
            windows,
            limits,
            rating,
            step_s=step_s,
            origin_s=parse_time_of_day(origin, step_s),
            country=None if country is None else country.lower(),
            zone=zone,
            known=known,
        )

    @property
    def origin(self) -> str:
        """The time of day at which windows start, UTC, such as `12:00`."""
        hour, rest = divmod(self.origin_s, HOUR_S)
        return f"{hour:02}:{rest // MINUTE_S:02}"

    @property
    def name(self) -> str:
        """The task's name, which contains every option that differs from the paper's."""
        name = "powerphase-day-ahead"
        if self.horizon != self._per_day:
            name = f"powerphase-{self.horizon}-steps-ahead"
        if self.known is not None:
            name += self.known.words
        if self.context != 7 * self._per_day:
            name += f"-from-{self.context}"
        if self.step_s != PAPER_STEP_S:
            name += f"-{self.step_s // MINUTE_S}-minute-steps"
        if self.origin_s:
            name += f"-origin-{self.origin.replace(':', '')}"
        if self.country is not None:
            name += f"-country-{self.country}"
        if self.zone is not None:
            name += f"-zone-{_slug(self.zone)}"
        if self.windows != PAPER_WINDOWS:
            name += "-all" if self.windows == "all" else f"-{self.windows}-windows"
        band = band_name(self.limits)
        if band != "normal":
            name += f"-{band.replace('.', 'p')}-limits"
        return name if self.rating == "a" else f"{name}-rating-{self.rating}"

    @property
    def forecast_name(self) -> str:
        """The name without limits, on which no forecast depends: only its scores do."""
        return replace(self, limits="normal", rating="a").name

    @property
    def training_name(self) -> str:
        """The name without test windows and limits, on which no training depends."""
        return replace(self, windows=PAPER_WINDOWS, limits="normal", rating="a").name

    @classmethod
    def of_name(cls, name: str) -> "Protocol":
        """The protocol of the task with this name, in the present version."""
        match = _NAME.fullmatch(name)
        if match:
            protocol = _read_name(match)
            if protocol.name == name:
                return protocol
        raise TaskError(f"no task {name!r}; the paper's is {PAPER_TASK!r}")

    def splits(self, time: Shaped[np.ndarray, " S"]) -> Splits:
        """The split of a record, by whole days from its first midnight UTC on."""
        per_day = steps_per_day(self.step_s)
        offset = -time_of_day(time[0]) % DAY_S // self.step_s
        days = time[offset::per_day][: (len(time) - offset) // per_day].astype("datetime64[D]")
        paper_days = (FIRST_DAY, TEST_DAY, LAST_DAY)
        positions = [np.flatnonzero(days == np.datetime64(day)) for day in paper_days]
        if all(position.size for position in positions):
            first, test, last = (int(position[0]) for position in positions)
        else:
            first, test, last = 0, int(TRAIN_SHARE * len(days)), len(days) - 1
        fit = max(test - VALIDATION_DAYS, first)
        return Splits(*(offset + per_day * day for day in (first, fit, test, last + 1)))

    def test_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the test windows: one time of day, spread evenly over the test split."""
        first = splits.train_stop + self._origin_steps
        days = (splits.stop - first - self.horizon) // self._per_day
        n_windows = days + 1 if self.windows == "all" else int(self.windows)
        before = first - splits.first
        if before < self.context:
            raise TaskError(
                f"{self.name}: only {before} steps before the first test window for a context of "
                f"{self.context}; shorten the context or make a longer record"
            )
        if n_windows > days + 1 or days < 0:
            raise TaskError(
                f"{self.name}: {n_windows} windows of {self.horizon} steps, but the test split of "
                f"{splits.stop - splits.train_stop} steps has {max(days + 1, 0)}; use fewer or "
                "shorter windows, or make a longer record"
            )
        # Integer arithmetic, so that rounding is the same everywhere; halves round up.
        number = np.arange(n_windows)
        spread = (2 * number * days + n_windows - 1) // (2 * max(n_windows - 1, 1))
        return first + self._per_day * spread

    def validation_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the validation windows: one a day, if its target ends in training."""
        last = splits.train_stop - self.horizon
        origins = np.arange(splits.fit_stop + self._origin_steps, last + 1, self._per_day)
        return origins[origins - splits.first >= self.context]

    @property
    def _per_day(self) -> int:
        return steps_per_day(self.step_s)

    @property
    def _origin_steps(self) -> int:
        return self.origin_s // self.step_s


def band_of(task: str) -> tuple[float, float] | None:
    """The band of all buses [p.u.] in the task of this name; None if each bus has its own.

    A task of another benchmark, whose name says nothing, has the paper's.
    """
    match = _NAME.fullmatch(task)
    limits = match["limits"] if match else None
    return common_band((limits or "normal").replace("p", "."))


def step_hours_of(task: str) -> float:
    """Length of a step [h] in the task of this name; a quarter-hour if the name says nothing."""
    match = _NAME.fullmatch(task)
    minutes = match["minutes"] if match else None
    return int(minutes or PAPER_STEP_S // MINUTE_S) / 60


def has_paper_clock(task: str) -> bool:
    """Whether the windows of this task start at midnight UTC and have steps of a quarter-hour."""
    match = _NAME.fullmatch(task)
    return match is None or not (match["minutes"] or match["hour"])


def _read_name(match: re.Match[str]) -> Protocol:
    """The protocol in a name; its own name may be another one."""
    step_s = int(match["minutes"] or PAPER_STEP_S // MINUTE_S) * MINUTE_S
    check_step(step_s)
    windows = match["windows"] or match["count"] or PAPER_WINDOWS
    return Protocol(
        int(match["context"] or 7 * steps_per_day(step_s)),
        int(match["horizon"] or steps_per_day(step_s)),
        "all" if windows == "all" else int(windows),
        (match["limits"] or "normal").replace("p", "."),
        match["rating"] or "a",
        step_s=step_s,
        origin_s=HOUR_S * int(match["hour"] or 0) + MINUTE_S * int(match["minute"] or 0),
        country=match["country"],
        zone=_zones_by_slug().get(match["zone"], match["zone"]),
        known=KnownSource.of_match(match) if match["known"] else None,
    )


def _slug(zone: str) -> str:
    """A time zone as it is written in names, which have lower-case letters, digits and hyphens."""
    return zone.lower().replace("/", "-").replace("_", "-").replace("+", "plus")


@cache
def _zones_by_slug() -> dict[str, str]:
    """The time zones, by what stands for them in names."""
    return {_slug(zone): zone for zone in available_timezones()}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


PAPER_TASK = "powerphase-day-ahead"
"""The name of the paper's task, with ten windows."""
