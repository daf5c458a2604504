"""The scheduler: starts the jobs of a plan, several at a time, and takes in their rows.

A cell that fails is recorded, and the others continue. Finished rows are kept: when a bench runs
again, it makes what has no row, and trainings continue where they stopped.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from powerphase.bench.budget import shared_budget
from powerphase.bench.estimates import estimate_memory
from powerphase.bench.job import Job
from powerphase.bench.plan import Cell, Plan, make_plan
from powerphase.bench.processes import LocalEngine, Memory, Outcome
from powerphase.bench.request import BenchRequest, DataSet, Progress
from powerphase.cost import commit, hardware
from powerphase.errors import PowerphaseError, ResultError
from powerphase.files import disk_errors, hold_lock
from powerphase.records.result import read_result
from powerphase.records.row_key import Failure, write_failure

LOCK = ".bench.lock"
LOCK_PATIENCE_S = 10.0
"""How long the processes of a bench that was killed may take to end."""

TICK_S = 0.1


@runtime_checkable
class Process(Protocol):
    """A job that is running somewhere."""

    progress: Mapping[str, Any]

    def poll(self) -> Outcome | None:
        """The outcome, once it is known."""

    def stop(self) -> None:
        """End it."""


@runtime_checkable
class Engine(Protocol):
    """Where jobs run."""

    workers: int
    """How many at a time."""
    on_gpu: bool
    """Whether models that can use a GPU get one."""

    def start(self, job: Job, worker: int, memory_gib: float | None) -> Process:
        """Start a job on one of the workers."""

    def memory(self, worker: int) -> Memory | None:
        """The memory that the worker uses; None if it need not be counted."""


class Work(NamedTuple):
    """A running job."""

    cell: Cell
    process: Process
    memory_gib: float
    is_measuring: bool
    start: float


@runtime_checkable
class Watcher(Protocol):
    """Is notified of everything that happens in a bench."""

    def making(self, data: DataSet) -> AbstractContextManager[Progress]:
        """A data set is being made."""

    def started(self, work: Work) -> None:
        """A job was started."""

    def waiting(self, cell: Cell, reason: str) -> None:
        """A cell and its other seeds wait for memory."""

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A cell is finished, or failed."""

    def tick(self, scheduler: "Scheduler") -> None:
        """A moment has passed."""


def run_bench(request: BenchRequest, watcher: Watcher) -> list[Failure]:
    """Make all missing rows; returns the failures."""
    make_plan(request)  # raises for an impossible request before anything is written
    with lock_results(request.out) as lock:
        plan = make_plan(request)
        scheduler = Scheduler(plan, _make_engine(request, lock), watcher)
        for data in dict.fromkeys(cell.data for cell in scheduler.queue):
            scheduler.make_data(data)
        return scheduler.run()


def _make_engine(request: BenchRequest, lock: int) -> Engine:
    if request.engine == "ray":
        from powerphase.bench.ray_engine import RayEngine

        return RayEngine(request.out, request.device, request.workers, request.limit)
    return LocalEngine(request.device, request.workers, request.limit, (lock,))


class Scheduler:
    """Runs the pending cells of a plan on the workers of an engine."""

    def __init__(self, plan: Plan, engine: Engine, watcher: Watcher) -> None:
        self.plan, self.engine, self.watcher = plan, engine, watcher
        self.queue = plan.pending
        self.running: dict[int, Work] = {}
        """By worker."""
        self.failures: list[Failure] = []
        self._measured: dict[tuple[str, str], int] = {}
        self._reported_waiting: set[tuple[str, str]] = set()

    @property
    def unfinished(self) -> list[Cell]:
        """The cells that wait or run; one that is being measured does both."""
        return list(dict.fromkeys([*self.queue, *(work.cell for work in self.running.values())]))

    def make_data(self, data: DataSet) -> None:
        """Make a data set if it is missing; if that fails, all its cells fail."""
        if data.exists:
            return
        start = perf_counter()
        try:
            with self.watcher.making(data) as report:
                data.make(report)
        except PowerphaseError as error:
            seconds, kind = perf_counter() - start, type(error).__name__
            outcome = Outcome(seconds, kind=kind, sentence=f"no data set: {error}")
            for cell in [cell for cell in self.queue if cell.data == data]:
                self.fail(cell, outcome)

    def run(self) -> list[Failure]:
        """Make all cells; returns the failures."""
        for cell in self.plan.done:
            # A bench that was killed may have left the record next to the row.
            self.plan.failure_file(cell).unlink(missing_ok=True)
        try:
            while self.queue or self.running:
                self.start_jobs()
                self.watcher.tick(self)
                sleep(TICK_S)
                for worker, work in list(self.running.items()):
                    outcome = work.process.poll()
                    if outcome is not None:
                        del self.running[worker]
                        self.finish(work, outcome)
        finally:
            for work in self.running.values():
                work.process.stop()
        return self.failures

    def start_jobs(self) -> None:
        """Start a job on every free worker that can take one."""
        for worker in range(self.engine.workers):
            if worker in self.running:
                continue
            for cell in self.queue:
                if self._start(cell, worker):
                    break

    def finish(self, work: Work, outcome: Outcome) -> None:
        """Take in the outcome of a job."""
        cell = work.cell
        if work.is_measuring and outcome.answer is not None:
            self._measured[cell.group] = outcome.answer["epochs"]
        elif work.is_measuring:
            for sibling in [waiting for waiting in self.queue if waiting.group == cell.group]:
                self.fail(sibling, outcome)
        elif outcome.answer is None:
            self.fail(cell, outcome)
        else:
            self._take_row(cell, outcome, outcome.answer["row"])

    def fail(self, cell: Cell, outcome: Outcome) -> None:
        """Record that the cell failed."""
        failure = Failure(
            task=cell.task,
            edition=cell.data.edition,
            grid=cell.grid,
            model=cell.spec.text,
            name=cell.key.name,
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
            write_failure(failure, self.plan.request.out)
        except OSError as error:  # on a full disk there is no room for the record either
            sentence = f"{outcome.sentence} (recording this failure failed too: {error})"
            outcome = replace(outcome, sentence=sentence)
        self.watcher.ended(cell, outcome)

    def _start(self, cell: Cell, worker: int) -> bool:
        """Start making or measuring the cell, unless it must wait for a running job."""
        running = self.running.values()
        if any(work.is_measuring and work.cell.group == cell.group for work in running):
            return False
        memory = estimate_memory(self.plan, cell, self.engine.on_gpu).value
        if not self._fits(cell, worker, memory or 0.0):
            return False
        budget = self._find_budget(cell)
        must_measure = cell.spec.is_network and budget is None
        if not must_measure:
            self.queue.remove(cell)
        process = self.engine.start(self._make_job(cell, budget), worker, memory)
        self.running[worker] = Work(cell, process, memory or 0.0, must_measure, monotonic())
        self.watcher.started(self.running[worker])
        return True

    def _fits(self, cell: Cell, worker: int, needed_gib: float) -> bool:
        """Whether there is memory for it next to the running jobs; a single job always starts."""
        memory = self.engine.memory(worker)
        if memory is None or memory.free_gib is None:
            return True
        running = self.running.items()
        sharing = [work for busy, work in running if self.engine.memory(busy) == memory]
        used_gib = sum(work.memory_gib for work in sharing)
        if not sharing or used_gib + needed_gib <= memory.free_gib:
            return True
        if cell.group not in self._reported_waiting:
            self._reported_waiting.add(cell.group)
            reason = (
                f"needs about {needed_gib:.1f} GiB; running jobs use {used_gib:.1f} of the "
                f"{memory.free_gib:.1f} GiB of {memory.name}"
            )
            self.watcher.waiting(cell, reason)
        return False

    def _find_budget(self, cell: Cell) -> int | None:
        """The epochs of a network; None if they must be measured first, and for other models."""
        if not cell.spec.is_network:
            return None
        if not self.plan.is_budgeted:
            return int(cell.spec.config.training.epochs)
        return shared_budget(self.plan, cell) or self._measured.get(cell.group)

    def _make_job(self, cell: Cell, budget: int | None) -> Job:
        """The job of a cell; a network without a budget is measured."""
        request, key = self.plan.request, cell.key
        if budget is not None:
            key = cell.key_for(cell.reduced(budget))
        return Job(
            model=cell.spec.text,
            seed=cell.seed,
            data=str(cell.data.path.resolve()),
            out=str(request.out.resolve()),
            run=str(self.plan.run_folder(key).resolve()),
            task=cell.task,
            known=request.known_file,
            device=request.device,
            epochs=request.epochs,
            batch_size=request.batch_size,
            budget=budget,
            measure_s=request.seconds if cell.spec.is_network and budget is None else None,
        )

    def _take_row(self, cell: Cell, outcome: Outcome, row: str) -> None:
        """Add the row to the plan; one that cannot be read is a failure."""
        try:
            self.plan.finish(cell, read_result(row))
        except ResultError as error:
            sentence = f"its row cannot be read: {error}"
            self.fail(cell, replace(outcome, answer=None, kind="ResultError", sentence=sentence))
        else:
            self.watcher.ended(cell, outcome)


@contextmanager
def lock_results(out: Path) -> Iterator[int]:
    """Lock the tree of results against other benches; yields the lock's file descriptor.

    Processes that inherit the descriptor hold the lock too.
    """
    with disk_errors(out, ResultError):
        out.mkdir(parents=True, exist_ok=True)
    deadline = monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            handle = hold_lock(out / LOCK)
            break
        except BlockingIOError as error:
            if monotonic() > deadline:
                raise ResultError(
                    f"{out}: another bench is writing to this folder; wait for it, or choose "
                    "another --out"
                ) from error
        sleep(TICK_S)
    with handle:
        try:
            yield handle.fileno()
        finally:
            (out / LOCK).unlink(missing_ok=True)  # the whole tree may have been removed
