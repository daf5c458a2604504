"""Estimates of what cells will take, from the cost in existing rows.

Rows from the same kind of device count first, on the cell's grid or else on others, since what
takes a GPU seconds may take a CPU minutes. Rows from the other kind serve for the time only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from powerphase.bench.plan import Cell, Plan
from powerphase.cost import is_gpu
from powerphase.errors import PowerphaseError
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result

ScaledRows = Sequence[tuple[Result, float]]
"""Rows, each with the size of the cell's grid relative to that of the row."""


@dataclass(frozen=True)
class Estimate:
    """A cost, if it is known from existing rows."""

    value: float | None = None
    is_guess: bool = False
    """Whether it rests on other grids only, or on rows that may be of another kind of device."""


def estimate_seconds(plan: Plan, cell: Cell, on_gpu: bool | None) -> Estimate:
    """How long the cell will take.

    Args:
        plan: has the rows, and the time that a training may take.
        cell: whose time to estimate.
        on_gpu: whether it will run on a GPU; None if unknown.
    """
    same_device, other_device = _split_by_device(plan, cell, on_gpu)
    sources = [*_split_by_grid(same_device, cell), *_split_by_grid(other_device, cell)]
    # A fit without epochs is never cut.
    limit = plan.request.seconds if cell.spec.is_network else None
    return _mean_cost(sources, lambda row, ratio: _seconds(row, ratio, limit))


def estimate_memory(plan: Plan, cell: Cell, on_gpu: bool | None) -> Estimate:
    """The GiB that the cell will take, of a GPU or of the machine."""
    same, _ = _split_by_device(plan, cell, on_gpu)
    return _mean_cost(_split_by_grid(same, cell), _memory_gib)


def _split_by_device(
    plan: Plan, cell: Cell, on_gpu: bool | None
) -> tuple[list[Result], list[Result]]:
    """The rows of the cell's model: those from the same kind of device, and the others."""
    descriptions = cell.possible_descriptions(plan.is_budgeted)
    names = {cell.key_for(description).name for description in descriptions}
    rows = [row for row in plan.rows if row.name in names and row.task == plan.task]
    same = [row for row in rows if _is_same_device(row, on_gpu)]
    return same, [row for row in rows if not _is_same_device(row, on_gpu)]


def _is_same_device(row: Result, on_gpu: bool | None) -> bool:
    """Whether the row is known to come from that kind of device."""
    return on_gpu is not None and is_gpu(str(row.cost["hardware"])) == on_gpu


def _split_by_grid(rows: Iterable[Result], cell: Cell) -> tuple[ScaledRows, ScaledRows]:
    """The rows on the cell's grid, and those on other grids of known size."""
    same_grid, other_grids = [], []
    for row in rows:
        if row.grid == cell.grid:
            same_grid.append((row, 1.0))
        elif n_channels := channel_count(row.grid):
            other_grids.append((row, cell.data.n_channels / n_channels))
    return same_grid, other_grids


def _mean_cost(
    sources: Sequence[ScaledRows], cost: Callable[[Result, float], float | None]
) -> Estimate:
    """The mean cost in the first of the sources in which it is known."""
    for rows in sources:
        costs = [value for row, ratio in rows if (value := cost(row, ratio)) is not None]
        if costs:
            return Estimate(fmean(costs), is_guess=rows is not sources[0])
    return Estimate()


def _seconds(row: Result, ratio: float, limit: float | None) -> float:
    train, predict, score = (
        float(row.cost[name] or 0.0) * ratio for name in ("train_s", "predict_s", "score_s")
    )
    return (train if limit is None else min(train, limit)) + predict + score


def _memory_gib(row: Result, ratio: float) -> float | None:
    peak_gib = row.cost["peak_memory_gib"]
    return None if peak_gib is None else float(peak_gib) * ratio


@cache
def channel_count(grid: str) -> int | None:
    """The number of channels of a grid of the catalogue; None for others, or without its file."""
    if grid not in CATALOG:
        return None
    try:
        return 4 * load_grid(grid).n_buses
    except PowerphaseError:
        return None
