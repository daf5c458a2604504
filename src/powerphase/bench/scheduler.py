"""The bench: all cells of a plan, some at a time, each in a process of its own.

A cell that fails is recorded and the rest goes on. What is finished stays finished: run again, the
bench makes what has no row, and a training goes on where it was.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from powerphase.bench.budget import Settled
from powerphase.bench.estimates import memory_of
from powerphase.bench.plan import Cell, Plan, reduced
from powerphase.bench.processes import Memory, Outcome
from powerphase.bench.siblings import settled
from powerphase.cost import commit, hardware
from powerphase.errors import ResultError
from powerphase.files import disk_errors, hold_lock
from powerphase.records.failure import Failure, write_failure
from powerphase.records.result import read_result
from powerphase.task.protocol import WindowCount

LOCK = ".bench.lock"
LOCK_PATIENCE_S = 10.0
"""How long the processes of a bench that was killed may take to end."""

TICK_S = 0.1


@dataclass(frozen=True)
class Options:
    """How cells are made."""

    device: str = "auto"
    windows: WindowCount = 10
    seconds: float | None = None
    """What a training may take at most."""
    training: Mapping[str, int | None] = field(default_factory=dict)
    """Epochs and batch size of networks, where they are not to be their own."""


@runtime_checkable
class Process(Protocol):
    """A job that is being done somewhere."""

    progress: Mapping[str, Any]

    def poll(self) -> Outcome | None:
        """What came of it, once that is known."""

    def stop(self) -> None:
        """End it."""


@runtime_checkable
class Engine(Protocol):
    """Where jobs are done."""

    workers: int
    """How many at a time."""
    on_gpu: bool
    """Whether they are done on GPUs, as far as models can."""

    def start(self, job: Mapping[str, Any], worker: int, memory_gib: float | None) -> Process:
        """Begin a job, as one of the workers."""

    def memory(self, worker: int) -> Memory | None:
        """Where the worker takes its memory from; None where it need not be counted."""


class Work(NamedTuple):
    """A cell that is being made, or measured."""

    cell: Cell
    process: Process
    memory_gib: float
    is_measuring: bool
    begun: float


@runtime_checkable
class Watcher(Protocol):
    """Who is told how it goes."""

    def begun(self, work: Work) -> None:
        """A process was started."""

    def waits(self, cell: Cell, sentence: str) -> None:
        """A cell and its other seeds find no room beside what is running."""

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A cell is finished, or failed."""

    def tick(self, bench: "Bench") -> None:
        """A moment has passed."""


class Bench:
    """The cells of a plan that have no row, on their way to one."""

    def __init__(self, plan: Plan, options: Options, engine: Engine, watcher: Watcher) -> None:
        self.plan, self.options, self.engine, self.watcher = plan, options, engine, watcher
        self.queue = plan.left()
        self.running: dict[int, Work] = {}
        self.failures: list[Failure] = []
        self._measured: dict[tuple[str, str], Settled] = {}
        self._waiting: set[tuple[str, str]] = set()

    @property
    def unfinished(self) -> list[Cell]:
        """The cells that wait or are at work; one that is being measured does both."""
        return list(dict.fromkeys([*self.queue, *(work.cell for work in self._at_work())]))

    def run(self) -> list[Failure]:
        """Make all cells; those that failed."""
        for cell in self.plan.done:
            self.plan.failure_file(cell).unlink(missing_ok=True)  # it was killed before it could
        try:
            while self.queue or self.running:
                self._begin_all()
                self.watcher.tick(self)
                sleep(TICK_S)
                for worker, work in list(self.running.items()):
                    outcome = work.process.poll()
                    if outcome is not None:
                        del self.running[worker]
                        self._end(work, outcome)
        finally:
            for work in self.running.values():
                work.process.stop()
        return self.failures

    def fail(self, cell: Cell, outcome: Outcome) -> None:
        """Record that the cell failed."""
        failure = Failure(
            task=self.plan.task,
            edition=cell.data.edition,
            grid=cell.grid,
            model=cell.entrant.given,
            name=cell.name,
            seed=cell.seed,
            kind=outcome.kind,
            sentence=outcome.sentence,
            last_lines=list(outcome.last_lines),
            seconds=round(outcome.seconds, 3),
            date=datetime.now(UTC).date().isoformat(),
            commit=commit(),
            hardware=outcome.hardware or hardware(torch.device("cpu")),
        )
        self.failures.append(failure)
        if cell in self.queue:
            self.queue.remove(cell)
        try:
            write_failure(failure, self.plan.out)
        except OSError as error:  # on a full disk there is no room for the record either
            more = f"{outcome.sentence} (and the record of it cannot be written: {error})"
            outcome = Outcome(outcome.seconds, kind=outcome.kind, sentence=more)
        self.watcher.ended(cell, outcome)

    def _begin_all(self) -> None:
        for worker in range(self.engine.workers):
            if worker in self.running:
                continue
            for cell in self.queue:
                if self._begin(cell, worker):
                    break

    def _begin(self, cell: Cell, worker: int) -> bool:
        """Begin the cell, or to measure it, unless something that is running must end first."""
        beside = [work for work in self._at_work() if work.cell.group == cell.group]
        if any(work.is_measuring for work in beside):
            return False
        memory = memory_of(self.plan, cell, self.engine.on_gpu, self.options.seconds).value
        if not self._fits(cell, worker, memory or 0.0):
            return False
        budget = self._budget(cell)
        if beside and budget is not None and self._chooses_batches(cell, budget):
            return False  # by memory that is shared, the two would not choose alike
        job = self._job(cell, budget)
        if budget is not None:
            self.queue.remove(cell)
        process = self.engine.start(job, worker, memory)
        self.running[worker] = Work(cell, process, memory or 0.0, budget is None, monotonic())
        self.watcher.begun(self.running[worker])
        return True

    def _at_work(self) -> list[Work]:
        return list(self.running.values())

    def _fits(self, cell: Cell, worker: int, memory_gib: float) -> bool:
        """Whether there is room beside the others; what runs alone is let try."""
        memory = self.engine.memory(worker)
        if memory is None or memory.free_gib is None:
            return True
        running = self.running.items()
        beside = [work for other, work in running if self.engine.memory(other) == memory]
        taken = sum(work.memory_gib for work in beside)
        if not beside or taken + memory_gib <= memory.free_gib:
            return True
        if cell.group not in self._waiting:
            self._waiting.add(cell.group)
            sentence = (
                f"takes about {memory_gib:.1f} GiB, and of {memory.free_gib:.1f} GiB of "
                f"{memory.where} others take {taken:.1f}"
            )
            self.watcher.waits(cell, sentence)
        return False

    def _budget(self, cell: Cell) -> Settled | None:
        """Epochs and batch size of the cell's training; None if it has to be measured first."""
        if not cell.entrant.is_trained:
            return Settled(1, None)
        is_budgeted = self.options.seconds is not None
        found = settled(self.plan, cell, is_budgeted) or self._measured.get(cell.group)
        if found is None and not is_budgeted:
            return Settled(cell.entrant.config.training.epochs, None)
        return found

    def _chooses_batches(self, cell: Cell, budget: Settled) -> bool:
        """Whether the cell's training takes whatever batch size fits into memory."""
        if not cell.entrant.is_trained or budget.batch_size is not None:
            return False
        return cell.description.config["training"]["batch_size"] is None

    def _job(self, cell: Cell, budget: Settled | None) -> dict[str, Any]:
        key = cell.key
        if budget is not None and cell.entrant.is_trained:
            key = cell.key_of(reduced(cell, *budget))
        return {
            "do": "measure" if budget is None else "make",
            "model": cell.entrant.given,
            "training": dict(self.options.training),
            "seed": cell.seed,
            # Whole paths, for a model may change the folder that it is in.
            "data": str(cell.data.path.resolve()),
            "windows": self.options.windows,
            "device": self.options.device,
            "out": str(self.plan.out.resolve()),
            "run": str(self.plan.run_folder(key).resolve()),
            "seconds": self.options.seconds,
            **({} if budget is None else budget._asdict()),
        }

    def _end(self, work: Work, outcome: Outcome) -> None:
        cell = work.cell
        if work.is_measuring and outcome.answer is not None:
            self._measured[cell.group] = Settled(**outcome.answer)
        elif work.is_measuring:
            for other in [one for one in self.queue if one.group == cell.group]:
                self.fail(other, outcome)
        elif outcome.answer is None:
            self.fail(cell, outcome)
        else:
            self._finish(cell, outcome, outcome.answer["row"])

    def _finish(self, cell: Cell, outcome: Outcome, row: str) -> None:
        """Take in the row; one that cannot be read is as good as none."""
        try:
            self.plan.finish(cell, read_result(row))
        except ResultError as error:
            facts = (outcome.seconds, outcome.hardware, None)
            outcome = Outcome(*facts, "ResultError", f"its row cannot be read: {error}")
            self.fail(cell, outcome)
        else:
            self.watcher.ended(cell, outcome)


@contextmanager
def locked(out: Path) -> Iterator[int]:
    """Keep every other bench from the tree of results; its processes may hold the lock too."""
    with disk_errors(out, ResultError):
        out.mkdir(parents=True, exist_ok=True)
    until = monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            handle = hold_lock(out / LOCK)
            break
        except BlockingIOError as error:
            if monotonic() > until:
                raise ResultError(
                    f"{out}: another bench is writing here; wait for it, or choose another --out"
                ) from error
        sleep(TICK_S)
    with handle:
        try:
            yield handle.fileno()
        finally:
            (out / LOCK).unlink(missing_ok=True)  # somebody may have removed the whole tree
