"""What cells will take, by the cost in rows that are there; a guess, and marked as one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from powerphase.bench.plan import Cell, Plan, name_of, possible
from powerphase.cost import is_gpu
from powerphase.errors import PowerphaseError
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result


@dataclass(frozen=True)
class Estimate:
    """Seconds and memory of a cell, as far as they are known."""

    seconds: float | None = None
    memory_gib: float | None = None
    is_scaled: bool = False
    """Whether it rests on other grids alone."""


def estimate(
    plan: Plan, cell: Cell, seconds: float | None = None, on_gpu: bool | None = None
) -> Estimate:
    """By rows of the same model on the grid, or else on others, in proportion to their channels.

    Args:
        plan: has the rows.
        cell: of which one wants to know.
        seconds: what a training may take at most.
        on_gpu: whether a GPU's memory is asked for, or the machine's; if not told, either.
    """
    names = {name_of(one) for one in possible(cell, seconds is not None)}
    alike = [row for row in plan.rows if row.name in names and row.task == plan.task]
    here = [row for row in alike if row.grid == cell.grid]
    found = _mean(here, [1.0] * len(here), seconds, on_gpu) if here else Estimate()
    if found.memory_gib is not None:
        return found
    scaled = _scaled(alike, cell.data.n_channels, seconds, on_gpu)
    # Rows of the grid that were made on the other kind of device still tell how long it takes.
    return replace(found, memory_gib=scaled.memory_gib) if here else scaled


def _scaled(
    alike: Sequence[Result], n_channels: int, limit: float | None, on_gpu: bool | None
) -> Estimate:
    sizes = {row.grid: channels_of(row.grid) for row in alike}
    known = [(row, n_channels / size) for row in alike if (size := sizes[row.grid])]
    if not known:
        return Estimate()
    rows, ratios = zip(*known, strict=True)
    return replace(_mean(rows, ratios, limit, on_gpu), is_scaled=True)


def _mean(
    rows: Sequence[Result], ratios: Sequence[float], limit: float | None, on_gpu: bool | None
) -> Estimate:
    each = [_seconds(row, ratio, limit) for row, ratio in zip(rows, ratios, strict=True)]
    memory = [
        float(found) * ratio
        for row, ratio in zip(rows, ratios, strict=True)
        if (found := row.cost["peak_memory_gib"]) is not None
        and on_gpu in (None, is_gpu(str(row.cost["hardware"])))
    ]
    return Estimate(fmean(each), fmean(memory) if memory else None)


def _seconds(row: Result, ratio: float, limit: float | None) -> float:
    parts = {name: float(row.cost[name] or 0.0) * ratio for name in ("train_s", "score_s")}
    parts["predict_s"] = float(row.cost["predict_s"] or 0.0) * ratio
    if limit is not None:
        parts["train_s"] = min(parts["train_s"], limit)
    return sum(parts.values())


@cache
def channels_of(grid: str) -> int | None:
    """The number of channels of a grid of the catalogue; None of others, and without its files."""
    if grid not in CATALOG:
        return None
    try:
        return 4 * load_grid(grid).n_buses
    except PowerphaseError:
        return None
