"""What a training may take: how many epochs fit into so many seconds, measured where it runs."""

from time import perf_counter
from typing import Any, NamedTuple

from powerphase.errors import TrainingError
from powerphase.evaluation.entrants import ModelSpec
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.task.windows import Task

LADDER = (100, 50, 20, 10, 5, 2, 1)
"""Numbers of epochs below a model's own that a training may be cut to."""

MARGIN = 1.1
"""Saving and a busier machine may make a training so much slower than it was measured."""

COMPILING_S = 120.0
"""What the first epoch may take beyond an epoch's own time."""


class Settled(NamedTuple):
    """What all seeds of a model on a grid share."""

    epochs: int
    batch_size: int | None


def fitting(epochs: int, seconds_per_epoch: float, seconds: float) -> int:
    """The largest number of epochs, the model's own or one of the ladder, that fits."""
    for number in (epochs, *(rung for rung in LADDER if rung < epochs)):
        if MARGIN * number * seconds_per_epoch <= seconds:
            return number
    raise TrainingError(
        f"an epoch takes {seconds_per_epoch:.1f} s here, which leaves no room for one in the "
        f"{seconds:g} s of --seconds; give it more, or leave the model out"
    )


def measured(entrant: ModelSpec, task: Task, seed: int, device: str, seconds: float) -> Settled:
    """What fits into so many seconds here, by the second epoch of a training that is thrown away.

    The first one also compiles and records. A process that has done this should not train: its
    memory is not what that of a fresh one is.
    """
    config = entrant.config
    pace = _Pace(config.training.batches_per_epoch, seconds)
    options = {"config": with_training(config, {"epochs": 3}), "on_progress": pace}
    model: Any = entrant.make(task, seed, device, **options)
    try:
        model.fit(task.training)
    except _Enough:
        epochs = fitting(config.training.epochs, pace.seconds_per_epoch, seconds)
        return Settled(epochs, model.config.training.batch_size)
    raise AssertionError("three epochs are enough")


class _Enough(Exception):
    """The speed is known."""


class _Pace:
    """Notes when epochs begin, and stops the training when it knows how long one takes."""

    def __init__(self, batches_per_epoch: int, seconds: float) -> None:
        self._batches, self._seconds = batches_per_epoch, seconds
        self._begun: list[float] = []
        self.seconds_per_epoch = 0.0

    def __call__(self, progress: Progress) -> None:
        now = perf_counter()
        # Steps on a GPU are done later than they are told, but an epoch ends when all are.
        if (progress.step - 1) % self._batches == 0:
            self._begun.append(now)
        *_, before, last = (now, *self._begun)
        is_first, is_known = len(self._begun) == 1, len(self._begun) == 3
        self.seconds_per_epoch = last - before if is_known else now - last
        allowed = self._seconds + (COMPILING_S if is_first else 0.0)
        if is_known or self.seconds_per_epoch > allowed:
            raise _Enough
