"""The numbers of `physical.md`: forecasts before and after their power flow was solved.

They are those of the rows of two grids in the leading edition. The order of the scores and of the
forecasters is that of the tables on the page.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.facts import SMALL_GRIDS, TEN_DAYS, title
from docs.fair_table import LEADING
from powerphase.axes import VARIABLES
from powerphase.records import SCORES, Result, read_result, read_sidecar
from powerphase.report import number as cell

SEEDS = {
    "last-week": 0,
    "last-7-days": 0,
    "climatology": 0,
    "factorforge": 42,
    "factorforge+draws": 42,
}
"""The forecasters of the page, each with the seed of its row."""
REPEATS = ("last-week", "last-7-days")
"""The forecasters that repeat states of the record."""
PLAIN_SCORES = (
    *("crps", "distortion", "safety_mbrier", "brier", "twcrps", "energy"),
    *("coverage_80", "width_80"),
)
"""Scores of channels."""
JOINT_SCORES = (
    *("loading_crps", "overload_brier", "any_violation_brier"),
    *("variogram_theta", "variogram_v", "balance_rms_mva"),
)
"""Scores of lines and of whole states."""
RESIDUALS = ("before_largest_mva", "before_rms_mva", "after_largest_mva", "after_rms_mva")


def after(name: str) -> str:
    """The name of a forecaster whose forecasts are solved."""
    return f"{name}-physical" if "+" in name else f"{name}+physical"


@cache
def solved_row(grid: str, name: str) -> Result:
    """The row of a forecaster, solved or not."""
    return read_result(TEN_DAYS / LEADING / grid / _file(name))


@cache
def balance(grid: str, name: str, field: str) -> float:
    """A field of the balance of a forecaster whose forecasts were solved."""
    return float(read_sidecar(TEN_DAYS / LEADING / grid / _file(after(name)))[f"physical/{field}"])


def balance_lines() -> Iterator[str]:
    """For each forecast a line of a table: residuals before and after, and how it was solved."""
    for grid in SMALL_GRIDS:
        for name in SEEDS:
            residuals = [_short(balance(grid, name, field)) for field in RESIDUALS]
            share = f"{balance(grid, name, 'rounding_share'):.0%}".replace("%", " %")
            counts = [f"{balance(grid, name, field):,.0f}" for field in ("steps", "unsolved")]
            line = [title(grid), name, *residuals, share, counts[0], _backed_off(grid, name)]
            yield _line([*line, counts[1], f"{balance(grid, name, 'seconds'):.0f}"])


def score_titles(scores: tuple[str, ...]) -> str:
    """The heading of a table of scores."""
    alignment = _line([":--", ":--", *["--:"] * len(scores)])
    titles = (SCORES[score].title for score in scores)
    return f"{_line(['forecaster', 'scenarios', *titles])}\n{alignment}"


def score_lines(grid: str, scores: tuple[str, ...]) -> Iterator[str]:
    """For each forecaster two lines of a table: its scores before and after."""
    for plain in SEEDS:
        for name in (plain, after(plain)):
            row = solved_row(grid, name)
            coupling = "joint" if row.joint else "marginal"
            yield _line([name, coupling, *(cell(row.scores[score]) for score in scores)])


def type_lines() -> Iterator[str]:
    """CRPS of climatology by variable, before and after, and that of the oracle."""
    for grid in SMALL_GRIDS:
        for name in ("climatology", after("climatology"), "oracle"):
            by_type = solved_row(grid, name).by_type
            yield _line(
                [title(grid), name, *(f"{by_type[kind]['crps']:.6f}" for kind in VARIABLES)]
            )


def growth(score: str, name: str, kind: str | None = None) -> list[float]:
    """By which factor solving raises a score on each grid."""
    return [
        _score(grid, after(name), score, kind) / _score(grid, name, score, kind)
        for grid in SMALL_GRIDS
    ]


def _score(grid: str, name: str, score: str, kind: str | None = None) -> float:
    row = solved_row(grid, name)
    values: Any = row.by_type[kind] if kind else row.scores
    return float(values[score])


def _file(name: str) -> str:
    base = name.partition("+")[0]
    seed = SEEDS.get(base, 42)
    return f"{name}-{seed}.json"


def _backed_off(grid: str, name: str) -> str:
    number = balance(grid, name, "backed_off")
    least = f" (to {balance(grid, name, 'least_scale'):.2f})" if number else ""
    return f"{number:.0f}{least}"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
