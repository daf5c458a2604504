"""The protocol: how a record is split, and which forecast windows are tested.

The definition is frozen. A change that could change a score must raise `PROTOCOL_VERSION`; rows of
different versions are never compared. The task's name contains every option that differs from the
paper's protocol, so that rows of different tasks are never compared either.
"""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.axes import STEPS_PER_DAY
from powerphase.errors import TaskError
from powerphase.grid.limits import band_name, check_limits, common_band

PROTOCOL_VERSION = 1

FIRST_DAY, TEST_DAY, LAST_DAY = "2015-01-01", "2016-07-01", "2016-12-31"
"""The paper's record: training starts on the first day, the test spans the other two."""

TRAIN_SHARE = 0.75
"""The share of training days in a record that does not cover the paper's dates."""

VALIDATION_DAYS = 10
"""The last days of the training split, for validation; no model is fitted on them."""

PAPER_CONTEXT, PAPER_HORIZON, PAPER_WINDOWS = 7 * STEPS_PER_DAY, STEPS_PER_DAY, 10

WindowCount = int | Literal["all"]

_NAME = re.compile(
    r"powerphase-(?:day|(?P<horizon>[1-9]\d{,5})-steps)-ahead(?:-from-(?P<context>[1-9]\d{,5}))?"
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
    """Size and number of windows. The defaults are the paper's: ten days, each from a week."""

    context: int = PAPER_CONTEXT
    horizon: int = PAPER_HORIZON
    windows: WindowCount = PAPER_WINDOWS
    limits: str = "normal"
    """Voltage limits by which forecasts are scored: the paper's, the case file's, or a band."""
    rating: str = "a"
    """The rating of branches by which forecasts are scored."""
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        check_limits(self.limits, self.rating)
        numbers = [self.context, self.horizon, 1 if self.windows == "all" else self.windows]
        if not all(_is_count(number) for number in numbers):
            raise TaskError(
                f"context {self.context!r}, horizon {self.horizon!r} and windows {self.windows!r} "
                "must be whole numbers of 1 or more (windows may be 'all')"
            )

    @property
    def name(self) -> str:
        """The task's name, which contains every option that differs from the paper's."""
        name = self.forecast_name
        band = band_name(self.limits)
        if band != "normal":
            name += f"-{band.replace('.', 'p')}-limits"
        if self.rating != "a":
            name += f"-rating-{self.rating}"
        return name

    @property
    def forecast_name(self) -> str:
        """The name without limits, on which no forecast depends: only its scores do."""
        name = "powerphase-day-ahead"
        if self.horizon != PAPER_HORIZON:
            name = f"powerphase-{self.horizon}-steps-ahead"
        if self.context != PAPER_CONTEXT:
            name += f"-from-{self.context}"
        if self.windows != PAPER_WINDOWS:
            name += "-all" if self.windows == "all" else f"-{self.windows}-windows"
        return name

    @classmethod
    def of_name(cls, name: str) -> "Protocol":
        """The protocol of the task with this name, in the present version."""
        match = _NAME.fullmatch(name)
        if match:
            windows = match["windows"] or match["count"] or PAPER_WINDOWS
            protocol = cls(
                int(match["context"] or PAPER_CONTEXT),
                int(match["horizon"] or PAPER_HORIZON),
                "all" if windows == "all" else int(windows),
                (match["limits"] or "normal").replace("p", "."),
                match["rating"] or "a",
            )
            if protocol.name == name:
                return protocol
        raise TaskError(f"no task {name!r}; the paper's is {cls().name!r}")

    def splits(self, time: Shaped[np.ndarray, " S"]) -> Splits:
        """The split of a record of whole days that starts at midnight UTC."""
        days = time[::STEPS_PER_DAY].astype("datetime64[D]")
        paper_days = (FIRST_DAY, TEST_DAY, LAST_DAY)
        positions = [np.flatnonzero(days == np.datetime64(day)) for day in paper_days]
        if all(position.size for position in positions):
            first, test, last = (int(position[0]) for position in positions)
        else:
            first, test, last = 0, int(TRAIN_SHARE * len(days)), len(days) - 1
        fit = max(test - VALIDATION_DAYS, first)
        return Splits(*(STEPS_PER_DAY * day for day in (first, fit, test, last + 1)))

    def test_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the test windows: midnights, spread evenly over the test split."""
        days = (splits.stop - splits.train_stop - self.horizon) // STEPS_PER_DAY
        n_windows = days + 1 if self.windows == "all" else int(self.windows)
        before = splits.train_stop - splits.first
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
        return splits.train_stop + STEPS_PER_DAY * spread

    def validation_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the validation windows: every midnight whose target ends in training."""
        last = splits.train_stop - self.horizon
        origins = np.arange(splits.fit_stop, last + 1, STEPS_PER_DAY)
        return origins[origins - splits.first >= self.context]


def band_of(task: str) -> tuple[float, float] | None:
    """The band of all buses [p.u.] in the task of this name; None if each bus has its own.

    A task of another benchmark, whose name says nothing, has the paper's.
    """
    match = _NAME.fullmatch(task)
    limits = match["limits"] if match else None
    return common_band((limits or "normal").replace("p", "."))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


PAPER_TASK = Protocol().name
"""The name of the paper's task, with ten windows."""
