"""What a bench shows while it runs: a table that lives on a terminal, or plain lines."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress import MofNCompleteColumn
from rich.table import Table

from powerphase.display import console, problems, progress

if TYPE_CHECKING:
    from powerphase.bench.bench import Bench, Work
    from powerphase.bench.children import Outcome
    from powerphase.bench.data import DataSet, Progress
    from powerphase.bench.estimates import Estimate
    from powerphase.bench.plan import Cell, Plan
    from powerphase.records.failure import Failure

UNKNOWN = "–"
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
            problems.print(f"done: {cell} in {took}")

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
            from powerphase.bench.estimates import estimate

            plan, limit = bench.plan, bench.options.seconds
            self._costs = (ended, {c: estimate(plan, c, limit).seconds for c in bench.unfinished})
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


def show_plan(plan: "Plan", seconds: float | None) -> None:
    """All cells, what is to be done about each, and what that will take."""
    from powerphase.bench.estimates import estimate

    table = Table("grid", "cell", "state", "hours", "GiB")
    for column in table.columns[3:]:
        column.justify = "right"
    whole, unknown, scaled = 0.0, 0, False
    for cell in plan.cells:
        state, found = plan.state(cell), estimate(plan, cell, seconds)
        table.add_row(cell.grid, f"{cell.name}-{cell.seed}", state, *_shown(found))
        if state != "done":
            whole += found.seconds or 0.0
            unknown += found.seconds is None
        scaled |= found.is_scaled
    console.print(table)
    missing = sorted({str(cell.data.path) for cell in plan.left() if not cell.data.is_there})
    if missing:
        console.print(f"data sets to make: {', '.join(missing)}", soft_wrap=True)
    known = f"about {_time(whole)} one after another"
    more = f"the cost of {unknown} is not known" if unknown else ""
    cost = [known] * (unknown < len(plan.left())) + [more] * bool(unknown)
    total = f"{len(plan.cells)} cells, {len(plan.done)} done, {len(plan.left())} to do"
    console.print(": ".join([total, *[", and ".join(cost)] * bool(cost)]), soft_wrap=True)
    if scaled:
        console.print("~: by other grids, in proportion to their channels", soft_wrap=True)


def _shown(found: "Estimate") -> tuple[str, str]:
    mark = "~" if found.is_scaled else ""
    hours = UNKNOWN if found.seconds is None else f"{mark}{found.seconds / 3600:.3f}"
    memory = UNKNOWN if found.memory_gib is None else f"{mark}{found.memory_gib:.1f}"
    return hours, memory


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
