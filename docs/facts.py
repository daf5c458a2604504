"""The numbers that pages state: from result rows and the paper's tables.

Every public function here can be called in a template of `docs/templates`; tests of claims use the
same functions. Unless an edition is named, rows are those of `opsd-r`.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from docs.measurements import reference_day
from powerphase.axes import VARIABLES
from powerphase.grid import CATALOG, PAPER_GRIDS
from powerphase.records import SCORES, Result, find_results, read_sidecar
from powerphase.report import (
    Board,
    Contrast,
    Entry,
    GridSafety,
    Pair,
    against,
    compare,
    leaderboard,
    paper_ablations,
    safety,
    skills,
)

ROOT = Path(__file__).parents[1]
TEN_DAYS = ROOT / "results" / "powerphase-day-ahead"
ALL_DAYS = ROOT / "results" / "powerphase-day-ahead-all"

GRIDS = PAPER_GRIDS
SMALL_GRIDS = GRIDS[:2]
AT_RISK = GRIDS[1:]
"""The grids whose voltages leave the band."""
REFERENCES = ("climatology", "last-7-days", "last-week")
PAPER_MODELS = (
    *("powerforge", "ets", "tactis-2", "transformer-tempflow", "tempflow"),
    *("timemcl", "timeprism", "timegrad", "deepar"),
)
"""PowerForge and the paper's baselines."""
SIX = ("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1")
"""The scores that the paper prints."""
FACTORFORGE_TARGETS = {
    "crps": 0.6,
    "distortion": 0.75,
    "brier": 0.6,
    "twcrps": 0.6,
    "safety_mbrier": 1,
    "cvar_0.1": 1.3,
}
"""The highest ratios to PowerForge's scores that FactorForge was meant to have."""


def title(grid: str) -> str:
    """A grid's name as its authors write it."""
    return CATALOG[grid].title


def titles() -> list[str]:
    """The names of the paper's grids."""
    return [title(grid) for grid in GRIDS]


@cache
def _rows_by_file(days: Path) -> dict[Path, Result]:
    return find_results([days])


@cache
def rows(edition: str = "opsd-r", days: Path = TEN_DAYS) -> tuple[Result, ...]:
    """The committed rows of an edition."""
    return tuple(row for row in _rows_by_file(days).values() if row.edition == edition)


def rows_of(
    grid: str, model: str, variant: str | None = None, edition: str = "opsd-r"
) -> list[Result]:
    """The rows of a model on a grid, one for each seed."""
    key = (grid, model, variant)
    return [row for row in rows(edition) if (row.grid, row.model, row.variant) == key]


@cache
def board(grid: str, edition: str = "opsd-r", days: Path = TEN_DAYS) -> Board:
    """The table of a grid."""
    (table,) = (b for b in leaderboard(rows(edition, days)) if b.grid == grid)
    return table


def all_days(grid: str) -> Board:
    """The table of a grid that was scored on every day of the test half."""
    return board(grid, days=ALL_DAYS)


def entry(table: Board, model: str) -> Entry:
    """A model's entry."""
    return next(line for line in table.entries if line.name == model)


def has_row(grid: str, model: str, edition: str = "opsd-r") -> bool:
    """Whether the model, as it is by default, has a row on the grid."""
    return bool(rows_of(grid, model, edition=edition))


def number(score: str, grid: str, model: str, edition: str = "opsd-r") -> float:
    """A mean score over seeds and windows."""
    mean = entry(board(grid, edition), model).mean[score]
    assert mean is not None
    return mean


def paper(score: str, grid: str, model: str) -> float:
    """A mean score that the paper prints."""
    mean = next(line for line in board(grid).paper if line.name == model).mean[score]
    assert mean is not None
    return mean


def ratios(score: str, model: str, other: str, grids: Sequence[str] = GRIDS) -> list[float]:
    """A model's score over another's on each grid where both have a row."""
    both = [grid for grid in grids if has_row(grid, model) and has_row(grid, other)]
    return [number(score, grid, model) / number(score, grid, other) for grid in both]


def ratio(score: str, grid: str, model: str, other: str) -> float:
    """A model's score over another's on one grid."""
    return number(score, grid, model) / number(score, grid, other)


def seeds(score: str, grid: str, model: str) -> list[float]:
    """A score of every seed, from the lowest."""
    values = [row.scores[score] for row in rows_of(grid, model)]
    return sorted(value for value in values if value is not None)


def spread(grid: str, model: str = "powerforge", score: str = "crps") -> float:
    """The standard deviation over seeds as a share of the mean."""
    values = seeds(score, grid, model)
    return stdev(values) / fmean(values)


def contrasts(table: Board, score: str, other: str) -> dict[str, Contrast]:
    """How every ranked model differs from another one, by name."""
    tested = against(table.entries, table.windows, score, other)
    return {contrast.name: contrast for contrast in tested}


def verdict(score: str, grid: str, model: str, other: str) -> str:
    """Whether a model is better or worse than another, or the difference is noise."""
    return contrasts(board(grid), score, other)[model].verdict


def p_value(score: str, grid: str, model: str, other: str) -> float:
    """The probability of such a difference by chance, corrected for all comparisons."""
    adjusted = contrasts(board(grid), score, other)[model].adjusted
    assert adjusted is not None
    return adjusted


def skill(table: Board, model: str) -> float:
    """1 − CRPS / that of last-7-days."""
    value = skills(table.entries, "crps")[entry(table, model).name].skill.value
    assert value is not None
    return value


def reach(table: Board, model: str) -> float:
    """The share of the way from last-7-days to the oracle, by CRPS."""
    value = skills(table.entries, "crps")[entry(table, model).name].reach.value
    assert value is not None
    return value


def by_window(table: Board, model: str, score: str = "crps") -> np.ndarray:
    """A score window by window, the mean over seeds."""
    return np.array(entry(table, model).by_window[score])


def sunday_shares(model: str) -> list[float]:
    """On each grid, what Sundays contribute to the lead of a model over last-7-days by CRPS."""
    shares = []
    for grid in GRIDS:
        table = board(grid)
        days = np.array([window[:10] for window in table.windows], dtype="datetime64[D]")
        sunday = (days.astype(np.int64) + 3) % 7 == 6  # 1970 started on a Thursday
        lead = by_window(table, "last-7-days") - by_window(table, model)
        shares.append(float(lead[sunday].sum() / lead.sum()))
    return shares


def best_days(grid: str, model: str = "factorforge") -> int:
    """The number of days on which a model's CRPS is the lowest of all ranked models."""
    table = all_days(grid)
    others = [line.name for line in table.entries if line.rank is not None and line.name != model]
    least = np.min([by_window(table, name) for name in others], axis=0)
    return int((by_window(table, model) < least).sum())


def more_on_all_days(grid: str, model: str) -> float:
    """How much higher CRPS is over all days than over the ten windows, with the same seeds."""
    days = entry(all_days(grid), model)
    ten = fmean(r.scores["crps"] or 0 for r in rows_of(grid, model) if r.seed in days.seeds)
    return (days.mean["crps"] or 0) / ten - 1


def weekday_shares(grid: str, model: str) -> list[float]:
    """CRPS over all days from Monday to Sunday, relative to the mean, less 1."""
    table = all_days(grid)
    days = np.array([window[:10] for window in table.windows], dtype="datetime64[D]")
    weekday = (days.astype(np.int64) + 3) % 7
    scores = by_window(table, model)
    return [float(scores[weekday == k].mean() / scores.mean() - 1) for k in range(7)]


@cache
def grid_safety(grid: str) -> GridSafety:
    """Both rankings of a grid, and Safety_mBrier of every bus."""
    (tables,) = safety(_rows_by_file(TEN_DAYS), grid=grid, edition="opsd-r")
    return tables


@cache
def _rankings() -> dict[str, GridSafety]:
    return {
        tables.board.grid: tables for tables in safety(_rows_by_file(TEN_DAYS), edition="opsd-r")
    }


def agreement(grid: str, kind: str) -> float:
    """Kendall's τ of the rankings by fidelity and by safety: `ours`, `proper` or `paper`."""
    tau = getattr(_rankings()[grid], kind).kendall
    assert tau is not None
    return tau


def scoring_buses(grid: str, model: str, negligible: float = 1e-6) -> float:
    """The share of buses whose Safety_mBrier is more than rounding."""
    return float((_per_bus(grid, model) > negligible).mean())


def hard_buses(grid: str, model: str, n: int = 50, negligible: float = 1e-6) -> set[int]:
    """The buses with the highest Safety_mBrier, as far as they score at all."""
    scores = _per_bus(grid, model)
    return {int(k) for k in np.argsort(-scores, kind="stable")[:n] if scores[k] > negligible}


def _per_bus(grid: str, model: str) -> np.ndarray:
    return grid_safety(grid).per_bus[entry(board(grid), model).name]


@cache
def pairs() -> dict[tuple[str, str], Pair]:
    """PowerForge and the paper's, by grid and score."""
    return {(pair.grid, pair.score): pair for pair in compare(rows(), "powerforge").pairs}


def rounded_oracle(grid: str) -> float:
    """Safety_mBrier of forecasting 0 or 1, whichever is closer to the oracle's probability."""
    (row,) = rows_of(grid, "oracle")
    bins = read_sidecar(TEN_DAYS.parent / row.path)["reliability"]
    count, forecast, happened = bins[bins[:, 0] > 0].T
    return float(np.average(np.where(forecast > 0.5, 1 - happened, happened), weights=count))


def true_necv(grid: str) -> float:
    """NECV of what happened [p.u.]."""
    return float(rows_of(grid, "oracle")[0].truth["necv"] or 0.0)


def fingerprint(grid: str) -> str:
    """The first digits of the fingerprint of the data set that all rows of a grid are from."""
    (full,) = {row.fingerprint for row in rows() if row.grid == grid}
    return full[:12]


def by_type(score: str, grid: str, model: str, kind: str, edition: str = "opsd-r") -> float:
    """A score of one variable: the mean over seeds."""
    return fmean(row.by_type[kind][score] or 0 for row in rows_of(grid, model, edition=edition))


def gains(kind: str) -> list[float]:
    """On each grid, how far PowerForge's CRPS of a variable is below its reference day's."""
    return [1 - by_type("crps", g, "powerforge", kind) / reference_day(g, kind) for g in GRIDS]


def ablation_row(variant: str | None) -> Result:
    """A row of the ablation on PEGASE 1354."""
    (row,) = (r for r in rows_of("pegase1354", "powerforge", variant) if r.seed == 42)
    return row


def ablation_change(variant: str) -> float:
    """CRPS of a variant relative to the full model of the same seed, less 1."""
    without_part, full = (ablation_row(name).scores["crps"] for name in (variant, None))
    return (without_part or 0) / (full or 1) - 1


def ablation_distance(variant: str) -> float:
    """The same in standard deviations of the full model's seeds, from their mean."""
    full = seeds("crps", "pegase1354", "powerforge")
    return ((ablation_row(variant).scores["crps"] or 0) - fmean(full)) / stdev(full)


def paper_change(variant: str) -> str:
    """What the paper prints for the change of CRPS."""
    return paper_ablations("powerforge")["pegase1354"][variant]["crps_change"]


def variables() -> Iterable[str]:
    """The names of the variables at a bus."""
    return VARIABLES


def own_values(
    score: str, model: str, grids: Sequence[str] = GRIDS, edition: str = "opsd-r"
) -> list[float]:
    """A score of a model on each grid where it has a row."""
    known = [grid for grid in grids if has_row(grid, model, edition)]
    return [number(score, grid, model, edition) for grid in known]


def reaches(model: str) -> list[float]:
    """On each grid, the share of the way from last-7-days to the oracle."""
    return [reach(board(grid), model) for grid in GRIDS]


def leads_over_last_7_days() -> list[float]:
    """On each grid, how far climatology and PowerForge are below last-7-days by CRPS."""
    return [skill(board(grid), model) for grid in GRIDS for model in ("climatology", "powerforge")]


def agreements(kind: str, grids: Sequence[str] = GRIDS) -> list[float]:
    """Kendall's τ on each grid."""
    return [agreement(grid, kind) for grid in grids]


def near_buses(grid: str) -> list[float]:
    """The share of scoring buses of each model that hardly leaves the band without need."""
    models = ("factorforge", "powerforge", *REFERENCES, "oracle")
    return [scoring_buses(grid, model) for model in models]


def spreads() -> list[float]:
    """PowerForge's standard deviation of CRPS over seeds on each grid, as a share."""
    return [spread(grid) for grid in GRIDS]


def more_of_references() -> list[float]:
    """How much higher the references' CRPS is over all days."""
    return [more_on_all_days(grid, model) for grid in SMALL_GRIDS for model in REFERENCES]


def weekend_of_ets() -> list[float]:
    """How far the CRPS of ETS is above its mean on Saturdays, Sundays and Mondays."""
    return [weekday_shares(grid, "ets")[day] for grid in SMALL_GRIDS for day in (5, 6, 0)]


def compared_cells(grid: str, score: str) -> str:
    """PowerForge's score and the paper's as two cells; bold where they differ by much."""
    pair = pairs().get((grid, score))
    ours = f"{number(score, grid, 'powerforge'):.4f}"
    if pair is None:
        return f"{ours} | –"
    shown = f"**{ours}**" if pair.difference else ours
    return f"{shown} | {pair.paper_mean:.4f}"


def printed_necv(grid: str) -> str:
    """The paper's NECV of PowerForge, where it prints one."""
    pair = pairs().get((grid, "necv"))
    return f"{pair.paper_mean:.4f}" if pair else "–"


def paper_tail(variant: str | None) -> float:
    """CVaR_0.1 over NECV in the paper's ablation, less 1."""
    texts = paper_ablations("powerforge")["pegase1354"][variant]
    return float(texts["cvar_0.1"]) / float(texts["necv"]) - 1


def tail(model: str, variant: str | None = None) -> float:
    """CVaR_0.1 over NECV of one of our rows on PEGASE 1354, less 1."""
    row = next(r for r in rows_of("pegase1354", model, variant) if r.seed == 42)
    return (row.scores["cvar_0.1"] or 0) / (row.scores["necv"] or 1) - 1


def paper_multiple(grid: str, model: str) -> str:
    """CRPS over the paper's as the cell of a table."""
    if not has_row(grid, model) or all(line.name != model for line in board(grid).paper):
        return "–"
    return f"{number('crps', grid, model) / paper('crps', grid, model):.2f}"


def ets_variants() -> dict[str, str | None]:
    """The variants of ETS on ACTIVSg 500, by how a table calls them."""
    return {
        "a day, from the context (our default)": None,
        "a day, from the end of training": "stale",
        "24 steps, from the context": "season-24",
        "24 steps, from the end of training": "season-24-stale",
        "the same with statsmodels' noise in the trend (`reference`)": "reference",
        "paper": "paper",
    }


def ets_scores(variant: str | None) -> list[float]:
    """The paper's six scores of a variant of ETS on ACTIVSg 500."""
    if variant == "paper":
        return [paper(name, "activsg500", "ets") for name in SIX]
    runs = rows_of("activsg500", "ets", variant)
    return [fmean(row.scores[name] or 0 for row in runs) for name in SIX]


def ets_multiples() -> list[float]:
    """Each score of the variant that is closest to the paper's, over the paper's."""
    both = zip(ets_scores("season-24-stale"), ets_scores("paper"), strict=True)
    return [ours / printed for ours, printed in both]


def room() -> list[float]:
    """On each grid, how far the oracle's CRPS is below climatology's."""
    return [1 - ratio for ratio in ratios("crps", "oracle", "climatology")]


def fit_seconds(model: str) -> list[float]:
    """The time to fit a model on each grid [s]."""
    return [float(timed_row(grid, model).cost["train_s"] or 0) for grid in GRIDS]


def timed_row(grid: str, model: str) -> Result:
    """The row whose times pages state: it was made on two cores."""
    (row,) = rows_of(grid, model, edition="synthetic")
    return row


def leads(score: str, model: str, other: str) -> list[float]:
    """On each grid, how far a model's score is below another's, as a share."""
    return [1 - ratio for ratio in ratios(score, model, other)]


def score_cells(name: str) -> str:
    """A line of the table of scores: question, title, unit, and whether it is proper."""
    score = SCORES[name]
    cells = (score.question, score.title, score.unit, "yes" if score.proper else "–")
    return f"| {' | '.join(cells)} |"


def target_cells(grid: str) -> list[str]:
    """FactorForge's scores over PowerForge's; in italics where they miss their targets."""
    cells = []
    for score, target in FACTORFORGE_TARGETS.items():
        if not number(score, grid, "powerforge"):
            cells.append("–")
            continue
        value = ratio(score, grid, "factorforge", "powerforge")
        cells.append(f"{value:.2f}" if value <= target else f"*{value:.2f}*")
    return cells


def fit_cells(grid: str) -> list[str]:
    """FactorForge's time to fit, time to forecast a window, and peak memory."""
    row = timed_row(grid, "factorforge")
    fit_s, predict_s, peak_gib = (
        float(row.cost[name] or 0) for name in ("train_s", "predict_s", "peak_memory_gib")
    )
    return [f"{fit_s:.0f} s", f"{predict_s / len(row.windows):.2f} s", f"{peak_gib:.1f} GiB"]


def eve_ratios() -> list[float]:
    """On each grid, FactorForge's CRPS over the oracle's in the window of 31 December."""
    ratios = []
    for table in map(board, GRIDS):
        (eve,) = (k for k, window in enumerate(table.windows) if window[5:10] == "12-31")
        ratios.append(by_window(table, "factorforge")[eve] / by_window(table, "oracle")[eve])
    return ratios
