"""What cells will take, by the cost in rows that are there.

Rows made on the kind of device that will be used tell first, on the cell's grid or else on others:
what a GPU does in seconds may take a processor minutes. Of the other kind, they tell only the time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from powerphase.bench.plan import Cell, Plan, possible
from powerphase.cost import is_gpu
from powerphase.errors import PowerphaseError
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result

Sized = Sequence[tuple[Result, float]]
"""Rows, and how many times as large as a row's grid the cell's is."""


@dataclass(frozen=True)
class Estimate:
    """A number, as far as rows tell it."""

    value: float | None = None
    is_guess: bool = False
    """Whether it rests on other grids alone, or on rows not known to be of the kind of device."""


def seconds_of(plan: Plan, cell: Cell, on_gpu: bool | None, limit: float | None = None) -> Estimate:
    """How long the cell will take.

    Args:
        plan: has the rows.
        cell: of which one wants to know.
        on_gpu: whether it will be made on a GPU; None where that is not known.
        limit: the seconds that a training may take at most.
    """
    same, other = _by_kind(plan, cell, on_gpu, limit is not None)
    places = [*_near_and_far(same, cell), *_near_and_far(other, cell)]
    cut = limit if cell.entrant.is_trained else None  # a fit without epochs is never cut
    return _told(places, lambda row, ratio: _seconds(row, ratio, cut))


def memory_of(plan: Plan, cell: Cell, on_gpu: bool | None, limit: float | None = None) -> Estimate:
    """The GiB that the cell will take, of a GPU or of the machine; the arguments are the same."""
    same, _ = _by_kind(plan, cell, on_gpu, limit is not None)
    return _told(_near_and_far(same, cell), _memory_gib)


def _by_kind(
    plan: Plan, cell: Cell, on_gpu: bool | None, is_budgeted: bool
) -> tuple[list[Result], list[Result]]:
    """The rows of the cell's model: those made on the kind of device, and those that may not be."""
    names = {cell.key_of(one).name for one in possible(cell, is_budgeted)}
    alike = [row for row in plan.rows if row.name in names and row.task == plan.task]
    same = [row for row in alike if _is_made_on(row, on_gpu)]
    return same, [row for row in alike if not _is_made_on(row, on_gpu)]


def _is_made_on(row: Result, on_gpu: bool | None) -> bool:
    """Whether it is known that the two kinds of device are the same."""
    return on_gpu is not None and is_gpu(str(row.cost["hardware"])) == on_gpu


def _near_and_far(rows: Iterable[Result], cell: Cell) -> tuple[Sized, Sized]:
    """Those on the cell's grid; and those on others, as far as the size of these is known."""
    near, far = [], []
    for row in rows:
        if row.grid == cell.grid:
            near.append((row, 1.0))
        elif n_channels := channels_of(row.grid):
            far.append((row, cell.data.n_channels / n_channels))
    return near, far


def _told(places: Sequence[Sized], cost: Callable[[Result, float], float | None]) -> Estimate:
    """The mean cost in the first of the places where a row tells it."""
    for rows in places:
        each = [found for row, ratio in rows if (found := cost(row, ratio)) is not None]
        if each:
            return Estimate(fmean(each), is_guess=rows is not places[0])
    return Estimate()


def _seconds(row: Result, ratio: float, limit: float | None) -> float:
    train, predict, score = (
        float(row.cost[name] or 0.0) * ratio for name in ("train_s", "predict_s", "score_s")
    )
    return (train if limit is None else min(train, limit)) + predict + score


def _memory_gib(row: Result, ratio: float) -> float | None:
    found = row.cost["peak_memory_gib"]
    return None if found is None else float(found) * ratio


@cache
def channels_of(grid: str) -> int | None:
    """The number of channels of a grid of the catalogue; None of others, and without its files."""
    if grid not in CATALOG:
        return None
    try:
        return 4 * load_grid(grid).n_buses
    except PowerphaseError:
        return None
