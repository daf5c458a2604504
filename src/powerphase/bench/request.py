"""A whole table, as it is asked for: grids × models × seeds, from nothing to rows."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol, runtime_checkable

from powerphase.bench.data import DataSet, Progress, data_sets
from powerphase.bench.local import Local
from powerphase.bench.plan import Plan, make_plan
from powerphase.bench.processes import Outcome
from powerphase.bench.scheduler import Bench, Engine, Options, Watcher, locked
from powerphase.errors import PowerphaseError, TaskError, UnknownName
from powerphase.evaluation.entrants import entrant
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.models.framework.device import DEVICES, choose_device
from powerphase.records.failure import Failure
from powerphase.registry import bench_models
from powerphase.task.protocol import Protocol as TaskProtocol
from powerphase.task.protocol import WindowCount

ENGINES = ("local", "ray")


@runtime_checkable
class TableWatcher(Watcher, Protocol):
    """Who is told how it goes with data sets too."""

    def making(self, data: DataSet) -> AbstractContextManager[Progress]:
        """A data set is being made."""


@dataclass(frozen=True)
class Table:
    """What was asked for; `powerphase bench --help` says what each option is."""

    grids: Sequence[str] = ()
    models: Sequence[str] = ()
    seeds: Sequence[str | int] = (22, 42, 3142)
    data: Path = Path("data")
    signals: str | None = None
    edition: str | None = None
    out: Path = Path("results")
    runs: Path = Path("runs")
    windows: WindowCount = 10
    device: str = "auto"
    epochs: int | None = None
    batch_size: int | None = None
    seconds: float | None = None
    limit: float | None = None
    workers: int | None = None
    engine: str = "local"

    @property
    def training(self) -> dict[str, int | None]:
        """What is asked of all networks."""
        return {"epochs": self.epochs, "batch_size": self.batch_size}

    @property
    def on_gpu(self) -> bool | None:
        """Whether cells will be made on GPUs; None where only the cluster knows if it has some."""
        if self.device != "auto":
            return self.device == "cuda"
        return None if self.engine == "ray" else choose_device("auto").type == "cuda"

    def plan(self) -> Plan:
        """Its cells, and which of them are done; refuses what cannot be made."""
        names = (("engine", self.engine, ENGINES), ("device", self.device, DEVICES))
        for kind, name, known in names:
            if name not in known:
                raise UnknownName.among(kind, name, known)
        for name, given in (("--seconds", self.seconds), ("--limit", self.limit)):
            if given is not None and not given > 0:  # which NaN is not either
                raise TaskError(f"{name} {given:g} leaves no time; give more than 0")
        if not self.seeds:
            raise TaskError("--seeds names none; give whole numbers such as 22,42,3142")
        entrants = [entrant(model, self.training) for model in self.models or bench_models()]
        return make_plan(
            data_sets(self.grids or PAPER_GRIDS, self.data, self.signals, self.edition),
            entrants,
            [_seed(seed) for seed in self.seeds],
            out=self.out,
            runs=self.runs,
            protocol=TaskProtocol(windows=self.windows),
            is_budgeted=self.seconds is not None,
        )

    def run(self, watcher: TableWatcher) -> list[Failure]:
        """Make all rows that are missing; the cells that failed."""
        self.plan()  # refuses what cannot be made before anything is touched
        with locked(self.out) as lock:
            plan = self.plan()
            options = Options(self.device, self.windows, self.seconds, self.training)
            bench = Bench(plan, options, self._engine(lock), watcher)
            for data in dict.fromkeys(cell.data for cell in bench.queue):
                self._make(data, bench, watcher)
            return bench.run()

    def _engine(self, lock: int) -> Engine:
        if self.engine == "ray":
            from powerphase.bench.ray_engine import RayEngine

            return RayEngine(self.out, self.device, self.workers, self.limit)
        return Local(self.device, self.workers, self.limit, (lock,))

    def _make(self, data: DataSet, bench: Bench, watcher: TableWatcher) -> None:
        """Make a data set; without it, all its cells fail."""
        if data.is_there:
            return
        begun = perf_counter()
        try:
            with watcher.making(data) as report:
                data.make(report)
        except PowerphaseError as error:
            seconds, kind = perf_counter() - begun, type(error).__name__
            outcome = Outcome(seconds, kind=kind, sentence=f"no data set: {error}")
            for cell in [cell for cell in bench.queue if cell.data == data]:
                bench.fail(cell, outcome)


def _seed(given: str | int) -> int:
    text = str(given)
    if not text.isdecimal():
        raise TaskError(f"--seeds: {text!r} is no seed; give whole numbers such as 22,42,3142")
    return int(text)
