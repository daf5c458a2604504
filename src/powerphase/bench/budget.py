"""What a cell takes: the number of epochs that fits into a network's time, and the cost of a cell.

A network's budget is a number of epochs, which all its seeds on a grid share. It comes from a seed
that has a row or a training already, whatever speed the machine has now. Otherwise it is measured
where the training will run.

The cost of a cell that has no row to go by is that of a small part of its work, timed where it
would run. A network takes a few steps of its training and validates once, and estimates its memory
itself. Any other model is fitted, and forecasts and scores a single window.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from powerphase.bench.plan import Cell, Plan, same_config
from powerphase.errors import CheckpointError, TrainingError
from powerphase.evaluation.coupling import uncoupled
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import ModelSpec
from powerphase.evaluation.scoring import score
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.run import RunFolder, is_run
from powerphase.models.framework.training import Progress
from powerphase.task.windows import Task

LADDER = (100, 50, 20, 10, 5, 2, 1)
"""Numbers of epochs, below those of the config, to which a training may be cut."""

MARGIN = 1.1
"""Allowance for saving, and for a machine that is busier than when it was measured."""

COMPILING_S = 120.0
"""Allowance for compilation in the first epoch."""

BATCH_SHARE = 8
"""A step is timed with one part of so many of a batch."""


def shared_budget(plan: Plan, cell: Cell) -> int | None:
    """The budget of the cell's own training, or of another seed's row or training, if any.

    If there are several, the longest training counts.
    """
    config = uncoupled(cell.description.config)  # a training has no coupling
    candidates = [
        (seed == cell.seed, other["training"]["epochs"])
        for seed, other in _seeds_of_same_model(plan, cell)
        if same_config(uncoupled(other), config, is_budgeted=True)
        and other["training"]["epochs"] <= config["training"]["epochs"]
    ]
    return max(candidates)[1] if candidates else None


def _seeds_of_same_model(plan: Plan, cell: Cell) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Seed and config of every row and training of the cell's model on the cell's data."""
    model, fingerprint = cell.description.model, cell.data.fingerprint
    for row in plan.rows:
        if (row.model, row.grid, row.fingerprint) == (model, cell.grid, fingerprint):
            yield row.seed, row.config
    for folder in _run_folders(plan.run_folder(cell.key).parent):
        header = folder.header
        has_weights = folder.weights_file.exists()  # otherwise no epoch is finished
        if has_weights and (header.model, header.data.get("fingerprint")) == (model, fingerprint):
            yield header.seed, header.config


def _run_folders(parent: Path) -> Iterator[RunFolder]:
    for path in sorted(parent.iterdir()) if parent.is_dir() else ():
        # A damaged folder is reported by the cell that it belongs to.
        with suppress(CheckpointError):
            if is_run(path):
                yield RunFolder.open(path)


def epochs_within(seconds: float, seconds_per_epoch: float, epochs: int) -> int:
    """The largest number of epochs, either `epochs` or one of the ladder, that fits."""
    for number in (epochs, *(rung for rung in LADDER if rung < epochs)):
        if MARGIN * number * seconds_per_epoch <= seconds:
            return number
    raise TrainingError(
        f"an epoch takes {seconds_per_epoch:.1f} s on this machine, which does not fit into the "
        f"{seconds:g} s of --seconds; raise it, or leave the model out"
    )


def measure_budget(spec: ModelSpec, task: Task, seed: int, device: str, seconds: float) -> int:
    """The budget that fits into so many seconds, by timing the second epoch of a trial training.

    The first epoch also compiles. The process should not train afterwards: its memory is no longer
    that of a fresh one.
    """
    config = spec.config
    timer = _EpochTimer(config.training.batches_per_epoch, seconds)
    trial = with_training(config, {"epochs": 3})
    model: Any = spec.uncoupled.make(task, seed, device, config=trial, on_progress=timer)
    try:
        model.fit(task.training)
    except _Measured:
        return epochs_within(seconds, timer.seconds_per_epoch, config.training.epochs)
    raise AssertionError("three epochs suffice to time one")


class _Measured(Exception):
    """Ends a trial training: its speed is known."""


class _EpochTimer:
    """Notes when epochs start, and stops the training once it knows how long one takes."""

    def __init__(self, batches_per_epoch: int, seconds: float) -> None:
        self._batches, self._seconds = batches_per_epoch, seconds
        self._starts: list[float] = []
        self.seconds_per_epoch = 0.0

    def __call__(self, progress: Progress) -> None:
        now = perf_counter()
        # A GPU finishes steps after they are reported, but an epoch ends when all are done.
        if (progress.step - 1) % self._batches == 0:
            self._starts.append(now)
        *_, previous, last = (now, *self._starts)
        is_first, is_known = len(self._starts) == 1, len(self._starts) == 3
        self.seconds_per_epoch = last - previous if is_known else now - last
        allowed = self._seconds + (COMPILING_S if is_first else 0.0)
        if is_known or self.seconds_per_epoch > allowed:
            raise _Measured


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
    with suppress(_Measured):
        trial.fit(task.training)
    first, second, after_validation = clock.ends  # the first may compile
    small_step_s = second - first
    validation_s = max(0.0, after_validation - second - small_step_s)
    step_s = small_step_s * training.batch_size / part["batch_size"]
    epoch_s = training.batches_per_epoch * step_s + validation_s
    memory = model.memory_gib(task.training, model.channel_block)
    return Timing(training.epochs * epoch_s, None, memory)


class _StepClock:
    """Notes when steps end, and stops the training after the first step of the second epoch."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self, progress: Progress) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU finishes steps after they are reported
        self.ends.append(perf_counter())
        if progress.step > 2:
            raise _Measured
