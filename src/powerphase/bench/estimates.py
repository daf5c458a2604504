"""Estimates of what cells will take.

They come from rows of the same kind of device on the cell's grid. Without such rows, a dry run
times a part of the work on this machine; failing that, rows of the same kind of device on other
grids are scaled by the number of channels. Rows of another kind of device do not count: what takes
a GPU seconds may take a CPU hours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from time import perf_counter, sleep

from powerphase.bench.budget import Timing
from powerphase.bench.job import Job
from powerphase.bench.plan import Cell, Plan
from powerphase.bench.processes import JobProcess, LocalEngine
from powerphase.cost import is_gpu
from powerphase.errors import PowerphaseError
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result

TIMING_S = 60.0
"""The time that a dry run may spend on timing."""

LEAST_S = 5.0
"""What a cell needs at least: a process takes seconds to start."""

TICK_S = 0.05

ScaledRows = Sequence[tuple[Result, float]]
"""Rows, each with the size of the cell's grid relative to that of the row."""

Timings = Mapping[tuple[str, str], Timing]
"""By group of cells: the seeds of a model on a grid take the same time."""


@dataclass(frozen=True)
class Estimate:
    """A cost, if it is known."""

    value: float | None = None
    is_guess: bool = False
    """Whether it rests on a timing or on other grids, not on rows of the cell's grid."""


def estimate_seconds(
    plan: Plan, cell: Cell, on_gpu: bool | None, timings: Timings | None = None
) -> Estimate:
    """How long the cell will take.

    Args:
        plan: has the rows, and the time that a training may take.
        cell: whose time to estimate.
        on_gpu: whether it will run on a GPU; None if unknown.
        timings: what was timed on this machine.
    """
    # A fit without epochs is never cut.
    limit = plan.request.seconds if cell.spec.is_network else None
    timing = (timings or {}).get(cell.group)
    timed = (
        None
        if timing is None
        else _cut(timing.train_s, limit) + (timing.predict_and_score_s or 0.0)
    )
    return _estimate(plan, cell, on_gpu, lambda row, ratio: _seconds(row, ratio, limit), timed)


def estimate_memory(
    plan: Plan, cell: Cell, on_gpu: bool | None, timings: Timings | None = None
) -> Estimate:
    """The GiB that the cell will take, of a GPU or of the machine."""
    timing = (timings or {}).get(cell.group)
    timed = None if timing is None else timing.peak_memory_gib
    return _estimate(plan, cell, on_gpu, _memory_gib, timed)


def _estimate(
    plan: Plan,
    cell: Cell,
    on_gpu: bool | None,
    cost: Callable[[Result, float], float | None],
    timed: float | None,
) -> Estimate:
    """The mean cost in rows of the cell's grid, else as timed, else that of other grids."""
    same_grid, other_grids = _rows_of_model(plan, cell, on_gpu)
    if (mean := _mean(same_grid, cost)) is not None:
        return Estimate(mean)
    guess = _mean(other_grids, cost) if timed is None else timed
    return Estimate(guess, is_guess=guess is not None)


def _mean(rows: ScaledRows, cost: Callable[[Result, float], float | None]) -> float | None:
    costs = [value for row, ratio in rows if (value := cost(row, ratio)) is not None]
    return fmean(costs) if costs else None


def _rows_of_model(plan: Plan, cell: Cell, on_gpu: bool | None) -> tuple[ScaledRows, ScaledRows]:
    """The rows of the cell's model and kind of device, on its grid and on others of known size."""
    descriptions = cell.possible_descriptions(plan.is_budgeted)
    names = {cell.key_for(description).name for description in descriptions}
    same_grid, other_grids = [], []
    for row in plan.rows:
        if row.name not in names or row.task != cell.task or not _is_same_device(row, on_gpu):
            continue
        if row.grid == cell.grid:
            same_grid.append((row, 1.0))
        elif n_channels := channel_count(row.grid):
            other_grids.append((row, cell.data.n_channels / n_channels))
    return same_grid, other_grids


def _is_same_device(row: Result, on_gpu: bool | None) -> bool:
    """Whether the row is known to come from that kind of device."""
    return on_gpu is not None and is_gpu(str(row.cost["hardware"])) == on_gpu


def time_cells(
    plan: Plan, on_gpu: bool | None, on_start: Callable[[Cell], None]
) -> dict[tuple[str, str], Timing]:
    """Time the pending cells without a row to go by: small grids first, networks last.

    Each may take its share of `TIMING_S` and of what others left of theirs. What takes longer,
    cannot be made, or has no data set yet, is left out.

    Args:
        plan: has the cells; nothing of it is written.
        on_gpu: the kind of device; if it is unknown, nothing is timed.
        on_start: called before each cell.
    """
    timings: dict[tuple[str, str], Timing] = {}
    if plan.request.engine != "local" or on_gpu is None:
        return timings
    engine, start = LocalEngine(plan.request.device, workers=1), perf_counter()
    cells = _cells_to_time(plan, on_gpu)
    for k, cell in enumerate(cells):
        left_s = TIMING_S - (perf_counter() - start)
        share_s = left_s / (len(cells) - k)
        if share_s < LEAST_S:
            break
        on_start(cell)
        timing = _time_cell(plan, cell, share_s, engine.environment(0))
        if timing is not None:
            timings[cell.group] = timing
    return timings


def _cells_to_time(plan: Plan, on_gpu: bool) -> list[Cell]:
    """One cell of each group whose time no row of its grid tells."""
    pending = {cell.group: cell for cell in reversed(plan.pending) if cell.data.exists}
    estimates = {cell: estimate_seconds(plan, cell, on_gpu) for cell in pending.values()}
    cells = [cell for cell, known in estimates.items() if known.is_guess or known.value is None]
    return sorted(cells, key=lambda cell: (cell.spec.is_network, cell.data.n_channels))


def _time_cell(
    plan: Plan, cell: Cell, limit_s: float, environment: Mapping[str, str]
) -> Timing | None:
    request = plan.request
    job = Job(
        model=cell.spec.text,
        seed=cell.seed,
        data=str(cell.data.path.resolve()),
        out=str(request.out.resolve()),
        run=str(plan.run_folder(cell.key).resolve()),
        task=cell.task,
        known=request.known_file,
        device=request.device,
        epochs=request.epochs,
        batch_size=request.batch_size,
        is_timing=True,
    )
    process = JobProcess(job, limit_s, environment)
    try:
        while (outcome := process.poll()) is None:
            sleep(TICK_S)
    except BaseException:
        process.stop()
        raise
    return None if outcome.answer is None else Timing(**outcome.answer)


def _cut(train_s: float, limit_s: float | None) -> float:
    """The time of a training that may be cut to fit into the limit."""
    return train_s if limit_s is None else min(train_s, limit_s)


def _seconds(row: Result, ratio: float, limit: float | None) -> float:
    train, predict, score = (
        float(row.cost[name] or 0.0) * ratio for name in ("train_s", "predict_s", "score_s")
    )
    return _cut(train, limit) + predict + score


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
