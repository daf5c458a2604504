"""The numbers of `physical.md`: forecasts before and after their power flow was solved.

They are those of the rows of two grids in the leading edition. The order of the scores and of the
forecasters is that of the tables on the page.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.facts import SMALL_GRIDS, TEN_DAYS, title
from docs.fair_table import LEADING, anchors, boards
from powerphase.axes import VARIABLES
from powerphase.records import SCORES, Result, read_result, read_sidecar
from powerphase.report import MISSING, Board
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
PHYSICAL = "factorforge+ranked-physical"
"""FactorForge's scenarios for use: joint, then solved."""
LED_SCORES = (
    *("crps", "energy", "loading_crps", "overload_brier", "any_violation_brier"),
    *("variogram_theta", "variogram_v"),
)
"""Scores by which joint scenarios are compared."""
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


def physical_lines() -> Iterator[str]:
    """For each grid a line of a table: FactorForge's ranked scenarios, solved, among joint ones."""
    for grid, table in boards(LEADING).items():
        entries = {entry.name: entry for entry in table.entries}
        if PHYSICAL in entries:
            crps, fan = (entries[name].mean["crps"] for name in (PHYSICAL, "factorforge"))
            assert crps, f"{PHYSICAL} on {grid} has no CRPS"
            assert fan, f"factorforge on {grid} has no CRPS"
            share = f"{balance(grid, 'factorforge+ranked', 'rounding_share'):.0%}".replace(
                "%", " %"
            )
            left = [
                balance(grid, "factorforge+ranked", name) for name in ("backed_off", "unsolved")
            ]
            yield _line(
                [
                    *(title(grid), cell(crps), f"{100 * (crps / fan - 1):+.1f} %", share),
                    *(f"{sum(left):.0f}", *_leaders(table)),
                ]
            )


def physical_growth(kind: str) -> list[float]:
    """By which share solving raises the CRPS of ranked scenarios, on each grid with such a row."""
    grids = [grid for grid, table in boards(LEADING).items() if has_entry(table, PHYSICAL)]
    name = "factorforge+ranked"
    return [
        _score(grid, after(name), "crps", kind) / _score(grid, name, "crps", kind) - 1
        for grid in grids
    ]


def has_entry(table: Board, name: str) -> bool:
    """Whether a table has a forecaster of this name."""
    return any(entry.name == name for entry in table.entries)


def _leaders(table: Board) -> Iterator[str]:
    """The joint forecaster with the best score, for each score of whole states."""
    joint = [e for e in table.entries if e.joint and e.kind != "oracle"]
    for score in LED_SCORES:
        means = {e.name: e.mean[score] for e in joint if e.mean[score] is not None}
        best = min(filter(None, means.values()), default=None)
        ours = means.get(PHYSICAL)
        if best is None or ours is None:
            yield MISSING
        elif ours <= best:
            yield "first"
        else:
            ahead = sorted(name for name, mean in means.items() if mean is not None and mean < ours)
            yield ", ".join(ahead)


def anchors_lead() -> list[float]:
    """On each grid where anchors are ahead, by which share of a score they are at most."""
    return [lead for table in boards(LEADING).values() if (lead := _widest_lead(table)) > 0]


def _widest_lead(table: Board) -> float:
    means = {entry.name: entry.mean for entry in table.entries}
    ours = means.get(PHYSICAL, {})
    pairs = [(means[name].get(score), ours.get(score)) for name in anchors() if name in means
             for score in LED_SCORES]  # fmt: skip
    return max((1 - theirs / own for theirs, own in pairs if theirs and own), default=0.0)


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
