"""What the page on the value of a forecast states, from a measurement and from result rows."""

from typing import Any

from docs.facts import TEN_DAYS, board, entry, number
from docs.measurements import measured

_INFORMED = TEN_DAYS.with_name(f"{TEN_DAYS.name}-informed")

_FORMS = {
    "crps": "forecast",
    "loading_crps": "solved",
    "overload_brier": "solved",
    "any_violation_brier": "solved",
    "violation_count_crps": "solved",
}
"""The scores of the page, and whether they are those of scenarios before or after solving."""


def informed_number(score: str, grid: str, model: str) -> float:
    """A score in the task with made forecasts, edition `synthetic`."""
    mean = entry(board(grid, "synthetic", _INFORMED), model).mean[score]
    assert mean is not None
    return mean


def over_oracle(grid: str) -> tuple[float, float]:
    """CRPS of FactorForge over the oracle's on ten test windows, without and with forecasts."""
    before, oracle = (number("crps", grid, name, "synthetic") for name in ("factorforge", "oracle"))
    return before / oracle, informed_number("crps", grid, "factorforge") / oracle


def value_windows(grid: str) -> int:
    """How many days were scored."""
    return int(measured("value_of_forecast")["grids"][grid]["windows"])


def value_rows(grid: str) -> list[dict[str, Any]]:
    """The rows of a grid: without forecasts, then by growing error of the wind."""
    rows: list[dict[str, Any]] = measured("value_of_forecast")["grids"][grid]["rows"]
    return rows


def value(score: str, grid: str, error: float | None) -> float:
    """A score with the wind forecast that has so many usual errors; None without forecasts."""
    (row,) = (row for row in value_rows(grid) if row["error"] == error)
    return float(row[_FORMS[score]][score])


def value_of(score: str, grid: str, error: float | None, other: float | None) -> float:
    """The share of a score that the first forecast saves, compared with the other."""
    return 1 - value(score, grid, error) / value(score, grid, other)


def violations_saved(grid: str, error: float | None, other: float | None) -> float:
    """By how many violations the error of their forecast number is smaller, in the mean."""
    score = "violation_count_crps"
    return value(score, grid, other) - value(score, grid, error)
