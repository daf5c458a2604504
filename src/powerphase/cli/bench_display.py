"""What a bench shows: its plan, a live table or plain lines while it runs, and its result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress import MofNCompleteColumn
from rich.table import Table

from powerphase.cli.display import console, problems, progress

if TYPE_CHECKING:
    from powerphase.bench.estimates import Estimate
    from powerphase.bench.plan import Cell, Plan
    from powerphase.bench.processes import Outcome
    from powerphase.bench.request import DataSet, Progress
    from powerphase.bench.scheduler import Scheduler, Work
    from powerphase.records.row_key import Failure

UNKNOWN = "–"
LEGEND = (
    "~: from a short timing on this machine (of a network, without its forecasts), or from other "
    "grids in proportion to their channels"
)
REDRAW_EVERY_S = 0.5


class BenchDisplay:
    """Prints a line on standard error for each event; on a terminal, also a live table."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._costs: tuple[int, dict[Cell, float | None]] = (-1, {})
        """The number of ended cells, and the estimated cost of the others at that time."""
        self._last_draw = 0.0

    def __enter__(self) -> "BenchDisplay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @contextmanager
    def making(self, data: "DataSet") -> "Iterator[Progress]":
        """Show a progress bar for a data set."""
        problems.print(f"making {data.path}")
        with progress(f"{data.grid} steps", MofNCompleteColumn()) as report:
            yield report

    def started(self, work: "Work") -> None:
        """Print a line, unless the table shows it."""
        if not problems.is_terminal:
            action = "measuring" if work.is_measuring else "started"
            problems.print(f"{action}: {work.cell}")

    def waiting(self, cell: "Cell", reason: str) -> None:
        """Print a line."""
        problems.print(f"waiting: {cell} {reason}")

    def ended(self, cell: "Cell", outcome: "Outcome") -> None:
        """Print a line with the row, or with the reason why there is none."""
        duration = _duration(outcome.seconds)
        if outcome.answer is None:
            problems.print(f"FAILED: {cell} after {duration}: {outcome.sentence}")
        else:
            # The row's name may differ from the requested one, for example with fewer epochs.
            row = Path(outcome.answer["row"]).stem
            problems.print(f"done: {row} on {cell.grid} in {duration}")

    def tick(self, scheduler: "Scheduler") -> None:
        """Redraw the table."""
        if not problems.is_terminal or monotonic() - self._last_draw < REDRAW_EVERY_S:
            return
        if self._live is None:
            self._live = Live(console=problems, auto_refresh=False, transient=True)
            self._live.start()
        self._last_draw = monotonic()
        self._live.update(self._table(scheduler), refresh=True)

    def _table(self, scheduler: "Scheduler") -> Table:
        done, failed = len(scheduler.plan.done), len(scheduler.failures)
        counts = f"{done} done, {failed} failed, {len(scheduler.unfinished)} left"
        title = f"{counts}{self.time_left(scheduler)}"
        table = Table("cell", "phase", "step", "validation", "time", title=title, box=None)
        table.title_justify = "left"
        for work in scheduler.running.values():
            now = work.process.progress
            phase = "measuring" if work.is_measuring else now.get("phase", "starting")
            step = f"{now['step']:,} of {now['steps']:,}" if now else ""
            validation = now.get("validation")
            score = "" if validation is None else f"{validation:.5f}"
            table.add_row(str(work.cell), phase, step, score, _duration(monotonic() - work.start))
        return table

    def time_left(self, scheduler: "Scheduler") -> str:
        """The estimated time of the unfinished cells, less what running ones have spent."""
        from powerphase.bench.estimates import estimate_seconds

        n_ended = len(scheduler.plan.done) + len(scheduler.failures)
        if self._costs[0] != n_ended:  # estimates only change when there is a new row
            plan, on_gpu = scheduler.plan, scheduler.engine.on_gpu
            costs = {
                cell: estimate_seconds(plan, cell, on_gpu).value for cell in scheduler.unfinished
            }
            self._costs = (n_ended, costs)
        costs = self._costs[1]
        making = [work for work in scheduler.running.values() if not work.is_measuring]
        spent = {work.cell: monotonic() - work.start for work in making}
        known = [
            max(0.0, cost - spent.get(cell, 0.0))
            for cell, cost in costs.items()
            if cost is not None
        ]
        if not known:
            return ""
        # However many workers there are, the longest cell runs on one.
        total = max(sum(known) / scheduler.engine.workers, *known)
        return f", {'' if len(known) == len(costs) else 'more than '}{_duration(total)} to go"


def show_plan(plan: "Plan", on_gpu: bool | None) -> None:
    """Show all cells, the state of each, and what it is estimated to take."""
    from powerphase.bench.estimates import estimate_memory, estimate_seconds, time_cells

    def announce(cell: "Cell") -> None:
        problems.print(f"timing {cell.key.name} on {cell.grid}")

    timings = time_cells(plan, on_gpu, announce)
    seconds = {cell: estimate_seconds(plan, cell, on_gpu, timings) for cell in plan.cells}
    memory = {cell: estimate_memory(plan, cell, on_gpu, timings) for cell in plan.cells}
    table = Table("grid", "cell", "state", "time", "memory")
    for column in table.columns[3:]:
        column.justify = "right"
    for cell in plan.cells:
        costs = (_format(seconds[cell], _duration), _format(memory[cell], _memory))
        table.add_row(cell.grid, cell.key.stem, plan.state(cell), *costs)
    console.print(table)
    missing = sorted({str(cell.data.path) for cell in plan.pending if not cell.data.exists})
    if missing:
        console.print(f"data sets to make: {', '.join(missing)}", soft_wrap=True)
    pending = [seconds[cell].value for cell in plan.pending]
    console.print(_summary(plan, pending, on_gpu), soft_wrap=True)
    if any(estimate.is_guess for estimate in (*seconds.values(), *memory.values())):
        console.print(LEGEND, soft_wrap=True)


def _summary(plan: "Plan", pending: Sequence[float | None], on_gpu: bool | None) -> str:
    """How many cells there are, and how long the pending ones will take."""
    known = [seconds for seconds in pending if seconds is not None]
    n_unknown = len(pending) - len(known)
    device = {True: " on a GPU", False: " on a CPU", None: ""}[on_gpu]
    cost = [f"about {_duration(sum(known, 0.0))} one after another{device}"] * bool(known)
    cost += [f"the cost of {n_unknown} is unknown"] * bool(n_unknown)
    cells = f"{len(plan.cells)} cells, {len(plan.done)} done, {len(pending)} to do"
    return f"{cells}: {', and '.join(cost)}" if cost else cells


def _format(estimate: "Estimate", with_unit: Callable[[float], str]) -> str:
    mark = "~" if estimate.is_guess else ""
    return UNKNOWN if estimate.value is None else f"{mark}{with_unit(estimate.value)}"


def show_failures(failures: Sequence["Failure"]) -> None:
    """Show the result of a bench."""
    if not failures:
        console.print("all cells are done")
        return
    console.print(f"failed: {len(failures)}; run the same command again to retry them")
    for failure in failures:
        console.print(f"  {failure.path}: {failure.sentence}", soft_wrap=True)


def _duration(seconds: float) -> str:
    """A time in the unit that fits its size."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 3600)} h"


def _memory(gib: float) -> str:
    """A memory in the unit that fits its size."""
    return f"{_digits(gib)} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
