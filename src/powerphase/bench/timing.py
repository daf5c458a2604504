"""The cost of a cell that has no row to go by: a small part of its work, timed where it would run.

A network takes a few steps of its training and validates once, and estimates its memory itself. Any
other model is fitted, and forecasts and scores a single window.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import ModelSpec
from powerphase.evaluation.scoring import score
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.task.windows import Task

BATCH_SHARE = 8
"""A step is timed with one part of so many of a batch."""


@dataclass(frozen=True)
class Timing:
    """What a cell is expected to take."""

    train_s: float
    predict_and_score_s: float | None
    """None for a network: it would have to be trained first."""
    peak_memory_gib: float | None


def time_cell(spec: ModelSpec, task: Task, seed: int, device: str) -> Timing:
    """Time a part of the work, and scale it to the whole."""
    if spec.is_network:
        return _time_network(spec, task, seed, device)
    first_window = Task.of_protocol(task.store, replace(task.protocol, windows=1))
    model = spec.make(first_window, seed, device)
    live = forecast(model, first_window, device=device)
    cost = score(live, first_window, device=device).row.cost
    train, predict, scoring = (
        float(cost[name] or 0.0) for name in ("train_s", "predict_s", "score_s")
    )
    memory = cost["peak_memory_gib"]
    per_window = predict + scoring
    return Timing(train, per_window * len(task.test), None if memory is None else float(memory))


def _time_network(spec: ModelSpec, task: Task, seed: int, device: str) -> Timing:
    """Two small steps, one validation and another step, scaled to the batches of all epochs."""
    plain = spec.uncoupled
    model: Any = plain.make(task, seed, device)
    model.configure(task.training)
    training = model.config.training
    # A GPU is not busy with a part of a batch; a CPU takes a part of the time.
    share = 1 if choose_device(device).type == "cuda" else min(BATCH_SHARE, training.batch_size)
    part = {"epochs": 2, "batches_per_epoch": 2, "batch_size": training.batch_size // share}
    clock = _StepClock()
    trial: Any = plain.make(
        task, seed, device, config=with_training(model.config, part), on_progress=clock
    )
    with suppress(_Timed):
        trial.fit(task.training)
    first, second, after_validation = clock.ends  # the first may compile
    small_step_s = second - first
    validation_s = max(0.0, after_validation - second - small_step_s)
    step_s = small_step_s * training.batch_size / part["batch_size"]
    epoch_s = training.batches_per_epoch * step_s + validation_s
    memory = model.memory_gib(task.training, model.channel_block)
    return Timing(training.epochs * epoch_s, None, memory)


class _Timed(Exception):
    """Ends a trial training: its speed is known."""


class _StepClock:
    """Notes when steps end, and stops the training after the first step of the second epoch."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, progress: Progress) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU finishes steps after they are reported
        self.ends.append(perf_counter())
        if progress.step > 2:
            raise _Timed
