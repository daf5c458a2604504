"""What the noise of past days changes, for docs/factorforge.md: from `benchmarks/past_days.py`."""

from typing import Any

from docs.measurements import measured
from powerphase.grid import CATALOG
from powerphase.records import SCORES
from powerphase.report import number as score_cell

_GRIDS = ("ieee57", "activsg500")
_SHOWN = (
    *("crps", "energy", "distortion", "loading_crps", "overload_brier"),
    *("variogram_theta", "variogram_v", "balance_rms_mva"),
)
_SOLVED = ("crps", "loading_crps")


def past_days_titles(grid: str) -> str:
    """The heading of a table: scores as forecast, some after solving, seconds for a day."""
    titles = [SCORES[name].title for name in _SHOWN]
    titles += [f"{SCORES[name].title}, solved" for name in _SOLVED]
    return f"| {grid} | {' | '.join(titles)} | s |\n|---|{'--:|' * (len(titles) + 1)}"


def past_days_tables() -> list[tuple[str, list[str]]]:
    """For each grid its title and the lines of its table."""
    return [(CATALOG[grid].title, [_line(row) for row in _rows(grid)]) for grid in _GRIDS]


def past_days_score(form: str, score: str, reading: str = "forecast") -> str:
    """A score of one form on the larger grid, as forecast or solved."""
    return score_cell(_row(_GRIDS[-1], form)[reading][score])


def past_days_changes(form: str, other: str, score: str) -> list[float]:
    """By how much a score of a form as forecast is above that of another one, on both grids."""
    return [
        _row(grid, form)["forecast"][score] / _row(grid, other)["forecast"][score] - 1
        for grid in _GRIDS
    ]


def _rows(grid: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measured(f"past_days_{grid}")["rows"]
    return rows


def _row(grid: str, form: str) -> dict[str, Any]:
    (row,) = (row for row in _rows(grid) if row["form"] == form)
    return row


def _line(row: dict[str, Any]) -> str:
    values = [row["forecast"][name] for name in _SHOWN] + [row["solved"][name] for name in _SOLVED]
    cells = (row["form"], *map(score_cell, values), f"{row['predict_s']:.1f}")
    return f"| {' | '.join(cells)} |"
