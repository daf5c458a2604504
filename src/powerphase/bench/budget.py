"""The budget of a network: the number of epochs, which all its seeds on a grid share.

It comes from a seed that has a row or a training already, whatever speed the machine has now.
Otherwise it is measured where the training will run.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from powerphase.bench.plan import Cell, Plan, same_config
from powerphase.errors import CheckpointError, TrainingError
from powerphase.evaluation.coupling import uncoupled
from powerphase.evaluation.models import ModelSpec
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
