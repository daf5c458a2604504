"""The protocol: how a record is split, and where its forecast windows lie.

The definition is frozen. Whoever changes anything by which a score could change raises
`PROTOCOL_VERSION`; rows of different versions are never compared. Every option that differs from
the paper's protocol is part of the task's name, so that neither are rows of different tasks.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.axes import STEPS_PER_DAY
from powerphase.errors import TaskError

PROTOCOL_VERSION = 1

FIRST_DAY, TEST_DAY, LAST_DAY = "2015-01-01", "2016-07-01", "2016-12-31"
"""The paper's record: training from the first day on, testing from the second to the third."""

TRAIN_SHARE = 0.75
"""The share of days that trains where a record does not cover the paper's dates."""

VALIDATION_DAYS = 10
"""The last days of the training split, on which models choose; no model is fitted on them."""

PAPER_CONTEXT, PAPER_HORIZON, PAPER_WINDOWS = 7 * STEPS_PER_DAY, STEPS_PER_DAY, 10

WindowCount = int | Literal["all"]


@dataclass(frozen=True)
class Splits:
    """The borders of training, validation and test, as steps of the record."""

    first: int
    fit_stop: int
    """A model is fitted on steps `first` to `fit_stop`, excluded; validation follows."""
    train_stop: int
    """The scales are taken from steps `first` to `train_stop`, excluded; the test follows."""
    stop: int


@dataclass(frozen=True)
class Protocol:
    """What is forecast from what. The defaults are the paper's: a day ahead from a week."""

    context: int = PAPER_CONTEXT
    horizon: int = PAPER_HORIZON
    windows: WindowCount = PAPER_WINDOWS
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        numbers = [self.context, self.horizon, 1 if self.windows == "all" else self.windows]
        if not all(_is_count(number) for number in numbers):
            raise TaskError(
                f"context {self.context!r}, horizon {self.horizon!r} and windows {self.windows!r} "
                "must be whole numbers of 1 or more (windows may be 'all')"
            )

    @property
    def name(self) -> str:
        """The task's name; it holds every option that differs from the paper's."""
        name = "powerphase-day-ahead"
        if self.horizon != PAPER_HORIZON:
            name = f"powerphase-{self.horizon}-steps-ahead"
        if self.context != PAPER_CONTEXT:
            name += f"-from-{self.context}"
        if self.windows != PAPER_WINDOWS:
            name += "-all" if self.windows == "all" else f"-{self.windows}-windows"
        return name

    def splits(self, time: Shaped[np.ndarray, " S"]) -> Splits:
        """The split of a record of whole days that starts at midnight UTC."""
        days = time[::STEPS_PER_DAY].astype("datetime64[D]")
        named = [np.flatnonzero(days == np.datetime64(d)) for d in (FIRST_DAY, TEST_DAY, LAST_DAY)]
        if all(found.size for found in named):
            first, test, last = (int(found[0]) for found in named)
        else:
            first, test, last = 0, int(TRAIN_SHARE * len(days)), len(days) - 1
        fit = max(test - VALIDATION_DAYS, first)
        return Splits(*(STEPS_PER_DAY * day for day in (first, fit, test, last + 1)))

    def test_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the test windows: midnights, spread evenly over the test split."""
        days = (splits.stop - splits.train_stop - self.horizon) // STEPS_PER_DAY
        wanted = days + 1 if self.windows == "all" else int(self.windows)
        before = splits.train_stop - splits.first
        if before < self.context:
            raise TaskError(
                f"{self.name}: {before} steps before the first test window are no context of "
                f"{self.context}; shorten it or make a longer record"
            )
        if wanted > days + 1 or days < 0:
            raise TaskError(
                f"{self.name}: {max(days + 1, 0)} windows of {self.horizon} steps fit the test "
                f"split of {splits.stop - splits.train_stop}, {wanted} are asked for; ask for "
                "fewer or shorter ones, or make a longer record"
            )
        # Whole numbers, so that rounding is the same everywhere; halves round up.
        steps = np.arange(wanted)
        spread = (2 * steps * days + wanted - 1) // (2 * max(wanted - 1, 1))
        return splits.train_stop + STEPS_PER_DAY * spread

    def validation_origins(self, splits: Splits) -> Int[np.ndarray, " B"]:
        """First steps of the validation windows: every midnight whose target ends in training."""
        last = splits.train_stop - self.horizon
        origins = np.arange(splits.fit_stop, last + 1, STEPS_PER_DAY)
        return origins[origins - splits.first >= self.context]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


PAPER_TASK = Protocol().name
"""Under which rows of the paper's ten windows stand."""
