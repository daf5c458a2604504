"""What a bench shows while it runs: a table that lives on a terminal, or plain lines."""

from collections.abc import Iterator, Sequence
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
    from powerphase.bench.data import DataSet, Progress
    from powerphase.bench.estimates import Estimate
    from powerphase.bench.plan import Cell, Plan
    from powerphase.bench.processes import Outcome
    from powerphase.bench.scheduler import Bench, Work
    from powerphase.records.failure import Failure

UNKNOWN = "–"
GUESSED = "~: by rows of other grids, in proportion to their channels, or of any kind of device"
REDRAWN_S = 0.5


class BenchDisplay:
    """Lines on standard error for what is begun and ended; on a terminal, a table below them."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._costs: tuple[int, dict[Cell, float | None]] = (-1, {})
        self._drawn = 0.0

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
        """A bar for a data set."""
        problems.print(f"making {data.path}")
        with progress(f"{data.grid} steps", MofNCompleteColumn()) as report:
            yield report

    def begun(self, work: "Work") -> None:
        """A line where there is no table."""
        if not problems.is_terminal:
            doing = "measuring" if work.is_measuring else "begun"
            problems.print(f"{doing}: {work.cell}")

    def waits(self, cell: "Cell", sentence: str) -> None:
        """A line, also above the table."""
        problems.print(f"waiting: {cell} {sentence}")

    def ended(self, cell: "Cell", outcome: "Outcome") -> None:
        """A line for the row, or for why there is none."""
        took = _time(outcome.seconds)
        if outcome.answer is None:
            problems.print(f"FAILED: {cell} after {took}: {outcome.sentence}")
        else:
            # The row may be of another name than was asked for, as one with fewer epochs is.
            row = Path(outcome.answer["row"]).stem
            problems.print(f"done: {row} on {cell.grid} in {took}")

    def tick(self, bench: "Bench") -> None:
        """Draw the table anew."""
        if not problems.is_terminal or monotonic() - self._drawn < REDRAWN_S:
            return
        if self._live is None:
            self._live = Live(console=problems, auto_refresh=False, transient=True)
            self._live.start()
        self._drawn = monotonic()
        self._live.update(self._table(bench), refresh=True)

    def _table(self, bench: "Bench") -> Table:
        done, failed = len(bench.plan.done), len(bench.failures)
        left = len(bench.unfinished)
        title = f"{done} done, {failed} failed, {left} left{self._time_left(bench, done + failed)}"
        table = Table("cell", "", "step", "validation", "time", title=title, box=None)
        table.title_justify = "left"
        for work in bench.running.values():
            now = work.process.progress
            doing = "measuring" if work.is_measuring else now.get("at", "beginning")
            step = f"{now['step']:,} of {now['steps']:,}" if now else ""
            found = now.get("validation")
            score = "" if found is None else f"{found:.5f}"
            table.add_row(str(work.cell), doing, step, score, _time(monotonic() - work.begun))
        return table

    def _time_left(self, bench: "Bench", ended: int) -> str:
        """By the cost of rows, which change only when a cell ends, less what is already spent."""
        if self._costs[0] != ended:
            from powerphase.bench.estimates import seconds_of

            how = (bench.engine.on_gpu, bench.options.seconds)
            found = {c: seconds_of(bench.plan, c, *how).value for c in bench.unfinished}
            self._costs = (ended, found)
        costs, making = self._costs[1], [w for w in bench.running.values() if not w.is_measuring]
        spent = {work.cell: monotonic() - work.begun for work in making}
        known = [
            max(0.0, cost - spent.get(cell, 0.0))
            for cell, cost in costs.items()
            if cost is not None
        ]
        if not known:
            return ""
        # However many workers there are, the longest cell has one.
        whole = max(sum(known) / bench.engine.workers, *known)
        return f", {'' if len(known) == len(costs) else 'more than '}{_time(whole)} to go"


def show_plan(plan: "Plan", on_gpu: bool | None, seconds: float | None) -> None:
    """All cells, what is to be done about each, and what that will take."""
    from powerphase.bench.estimates import memory_of, seconds_of

    times = {cell: seconds_of(plan, cell, on_gpu, seconds) for cell in plan.cells}
    memory = {cell: memory_of(plan, cell, on_gpu, seconds) for cell in plan.cells}
    table = Table("grid", "cell", "state", "hours", "GiB")
    for column in table.columns[3:]:
        column.justify = "right"
    for cell in plan.cells:
        shown = (_shown(times[cell], ".3f", unit=3600.0), _shown(memory[cell], ".1f"))
        table.add_row(cell.grid, cell.key.stem, plan.state(cell), *shown)
    console.print(table)
    missing = sorted({str(cell.data.path) for cell in plan.left() if not cell.data.is_there})
    if missing:
        console.print(f"data sets to make: {', '.join(missing)}", soft_wrap=True)
    console.print(_total(plan, [times[cell].value for cell in plan.left()], on_gpu), soft_wrap=True)
    if any(one.is_guess for one in (*times.values(), *memory.values())):
        console.print(GUESSED, soft_wrap=True)


def _total(plan: "Plan", left: Sequence[float | None], on_gpu: bool | None) -> str:
    """How many cells there are, and how long those that are left will take."""
    known = [one for one in left if one is not None]
    unknown = len(left) - len(known)
    where = {True: " on a GPU", False: " on a processor", None: ""}[on_gpu]
    cost = [f"about {_time(sum(known, 0.0))} one after another{where}"] * bool(known)
    cost += [f"the cost of {unknown} is not known"] * bool(unknown)
    cells = f"{len(plan.cells)} cells, {len(plan.done)} done, {len(left)} to do"
    return f"{cells}: {', and '.join(cost)}" if cost else cells


def _shown(found: "Estimate", digits: str, unit: float = 1.0) -> str:
    mark = "~" if found.is_guess else ""
    return UNKNOWN if found.value is None else f"{mark}{found.value / unit:{digits}}"


def show_failures(failures: Sequence["Failure"]) -> None:
    """How it went in the end."""
    if not failures:
        console.print("all cells are done")
        return
    console.print(f"failed: {len(failures)}; the same command tries them again")
    for failure in failures:
        console.print(f"  {failure.path}: {failure.sentence}", soft_wrap=True)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours}:{minutes:02d} h"
