"""Safety and fidelity as tables: over all grids, and bus by bus on one of them.

By bus: how many buses are hard to forecast, how hard, and for which models.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from powerphase.errors import ResultError, UnknownName
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result
from powerphase.records.scores import SCORES
from powerphase.records.sidecar import read_sidecar
from powerphase.report.boards import Board, leaderboard
from powerphase.report.entries import Entry, edition_of, group_by, label_notes
from powerphase.report.sheet import MISSING, Cell, Sheet, as_csv, number
from powerphase.report.statistics import PROPER_SAFETY, SAFETY, Tradeoff, spearman, tradeoff
from powerphase.task.protocol import PAPER_TASK

PER_BUS = "safety_mbrier"
HARD, WORST = 50, 200
"""The numbers of buses that the paper counts as hard and as the worst."""

NEGLIGIBLE = 1e-6
"""The score that rounding alone can cause: single-precision weights do not sum to 1 exactly.

One of a hundred scenarios that is wrong in one step of ten windows scores ten times as much.
"""

THRESHOLDS: Float[np.ndarray, " x"] = np.logspace(-6, 0, 121)
"""The thresholds of a survival function: twenty per power of ten."""


@dataclass(frozen=True)
class HardBuses:
    """The overlap of the hard buses of two forecasters."""

    n: int
    """The requested number; a forecaster has fewer if fewer of its buses score above 0."""
    shared: int
    overlap: float | None
    """The shared part of the larger of the two sets; None if both are empty."""
    spearman: float | None
    """Over all buses; ties share the mean of their ranks."""
    spearman_scoring: float | None
    """Over the buses where at least one of the two scores above 0.

    Most buses never come near the limits of the band and tie at 0, so ρ over all buses shows little
    more than whether the same buses score above 0.
    """


def by_bus(rows: Mapping[Path, Result], score: str = PER_BUS) -> dict[str, Float[np.ndarray, " N"]]:
    """The score of every bus in the order of the case file, by entry: the mean over its seeds.

    Args:
        rows: rows of one data set and task, by file.
        score: a score that sidecars have by bus; for CRPS, the mean over the variables.
    """
    conditions = {(row.task, row.task_version, row.fingerprint) for row in rows.values()}
    if len(conditions) > 1:
        raise ResultError(f"rows of {len(conditions)} tasks or data sets; pass rows of one")
    by_name = group_by(rows.items(), lambda item: item[1].name)
    return {
        name: np.mean([_read_score(path, score) for path, _ in seeds], axis=0)
        for name, seeds in by_name.items()
    }


def survival(
    per_bus: Real[np.ndarray, " N"], thresholds: Float[np.ndarray, " x"] = THRESHOLDS
) -> tuple[Float[np.ndarray, " x"], Float[np.ndarray, " x"]]:
    """Thresholds x, and the share of buses whose value exceeds each."""
    above = len(per_bus) - np.searchsorted(np.sort(per_bus), thresholds, side="right")
    return thresholds, above / len(per_bus)


def worst(
    per_bus: Real[np.ndarray, " N"], n: int = WORST
) -> tuple[Int[np.ndarray, " n"], Real[np.ndarray, " n"]]:
    """Positions and values of the n highest, in descending order; ties in the order of buses."""
    order = np.argsort(-per_bus, kind="stable")[:n]
    return order, per_bus[order]


def hard_buses(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"], n: int = HARD) -> HardBuses:
    """Compare the hard buses of two forecasters.

    The hard buses have the n highest scores, if these are not negligible; negligible scores count
    as 0. If buses tie for the last ranks, those earlier in the case file are used for both
    forecasters.
    """
    a, b = (np.where(values > NEGLIGIBLE, values, 0) for values in (a, b))
    hard_a, hard_b = _hard(a, n), _hard(b, n)
    shared, most = int((hard_a & hard_b).sum()), max(int(hard_a.sum()), int(hard_b.sum()))
    scoring = (a > 0) | (b > 0)
    return HardBuses(
        n=n,
        shared=shared,
        overlap=shared / most if most else None,
        spearman=spearman(a, b),
        spearman_scoring=spearman(a[scoring], b[scoring]),
    )


def _hard(per_bus: Real[np.ndarray, " N"], n: int) -> Bool[np.ndarray, " N"]:
    hard = np.zeros(len(per_bus), dtype=bool)
    hard[worst(per_bus, n)[0]] = True
    return hard & (per_bus > 0)


def _read_score(path: Path, score: str) -> Float[np.ndarray, " N"]:
    arrays = read_sidecar(path)
    if f"by_bus/{score}" not in arrays:
        raise ResultError(
            f"{path.with_suffix('.npz')}: has no {score} by bus; score the forecast again"
        )
    values = arrays[f"by_bus/{score}"].astype(float)
    return values if values.ndim == 1 else values.mean(axis=1)


SHOWN_THRESHOLDS = (NEGLIGIBLE, 0.0001, 0.001, 0.01, 0.1)
SHOWN_PLACES = {1: "worst bus", 10: "10th", 50: "50th", 200: "200th"}
HARDEST = ("1st", "2nd", "3rd", "4th", "5th")
AGREEMENT = (
    *("grid", "models", "τ", "ρ", "τ, proper", "ρ, proper"),
    *("models (paper)", "τ (paper)", "ρ (paper)"),
)
CSV_HEADER = ("edition", "grid", "what", "model", "other", "at", "value")


@dataclass(frozen=True)
class GridSafety:
    """One grid: the two orders of its forecasters, and the scores of each by bus."""

    board: Board
    ours: Tradeoff
    proper: Tradeoff
    """The orders with proper safety scores."""
    paper: Tradeoff
    """The orders of the paper's rows, which lack the proper scores."""
    per_bus: Mapping[str, np.ndarray]
    """Safety_mBrier by entry and bus; empty unless a grid was chosen."""

    @property
    def bus_id(self) -> np.ndarray:
        """The bus numbers; positions in the case file where the catalogue lacks the grid."""
        if self.board.grid in CATALOG:
            return load_grid(self.board.grid).bus_id
        return np.arange(1, max(map(len, self.per_bus.values())) + 1)

    @property
    def pairs(self) -> dict[tuple[str, str], HardBuses]:
        """The overlap of the hard buses of each pair of entries."""
        couples = combinations(self.per_bus.items(), 2)
        return {(name, other): hard_buses(a, b) for (name, a), (other, b) in couples}


def safety(
    rows: Mapping[Path, Result], edition: str | None = None, grid: str | None = None
) -> list[GridSafety]:
    """Every grid of the edition under the paper's task; a chosen grid comes with its buses.

    Args:
        rows: rows by file, as `records.result.find_results` returns them.
        edition: the edition of the data; by default `entries.edition_of` chooses it.
        grid: the grid to show bus by bus.
    """
    scored = {path: row for path, row in rows.items() if row.task == PAPER_TASK}
    grids = {row.grid for row in scored.values()}
    if grids and grid is not None and grid not in grids:
        raise UnknownName.among("row of the paper's task on grid", grid, grids)
    scored = {path: row for path, row in scored.items() if grid in (None, row.grid)}
    where = f" on {grid}" if grid else ""
    edition = edition_of(scored.values(), edition, f"of the paper's task{where}")
    chosen = {path: row for path, row in scored.items() if row.edition == edition}
    boards = leaderboard(chosen.values())
    if len({board.grid for board in boards}) < len(boards):
        raise ResultError(
            f"edition {edition}: rows of several data sets of a grid; give rows of one"
        )
    return [_grid_safety(board, chosen if grid else {}) for board in boards]


def safety_sheets(grids: Sequence[GridSafety]) -> list[Sheet]:
    """The agreement of the orders; for a chosen grid its ranks, buses and hardest buses."""
    tables = (_ranks, _buses, _hardest, _shared_buses)
    by_bus_sheets = [
        table(grid)
        for grid in grids
        if grid.per_bus
        for table in (tables if _has_risk(grid) else tables[:1])
    ]
    return by_bus_sheets or [_agreement(grids)]


def _has_risk(grid: GridSafety) -> bool:
    """Whether any forecast has a safety score above 0 at any bus."""
    return any((per_bus > NEGLIGIBLE).any() for per_bus in grid.per_bus.values())


def safety_as_csv(grids: Iterable[GridSafety]) -> str:
    """All numbers: ranks and their agreement; for a chosen grid survival, worst buses, overlap."""
    lines = [(g.board.edition, g.board.grid, *line) for g in grids for line in _lines(g)]
    return as_csv([CSV_HEADER, *lines])


def _grid_safety(board: Board, rows: Mapping[Path, Result]) -> GridSafety:
    names = [e.name for e in board.entries if e.rank is not None or e.kind == "oracle"]
    on_grid = {p: r for p, r in rows.items() if r.grid == board.grid and r.name in names}
    read = by_bus(on_grid)
    return GridSafety(
        board=board,
        ours=tradeoff(board.entries),
        proper=tradeoff(board.entries, safety=PROPER_SAFETY),
        paper=tradeoff(board.paper),
        per_bus={name: read[name] for name in names if name in read},
    )


def _agreement(grids: Sequence[GridSafety]) -> Sheet:
    proper = " and ".join(SCORES[name].title for name in PROPER_SAFETY)
    usual = ", ".join(SCORES[name].title for name in SAFETY)
    return Sheet(
        title=f"Fidelity and safety, edition {grids[0].board.edition}",
        header=AGREEMENT,
        groups=(tuple(_agreement_line(grid) for grid in grids),),
        above="Agreement of the order by fidelity (mean rank over CRPS, Distortion and MSE) with "
        f"the order by safety (over {usual}; proper: over {proper}).",
        below=(
            "τ is Kendall's, ρ Spearman's: 1 is the same order, −1 the opposite; – where no "
            "forecast "
            "leaves the band, so that safety has no order.",
        ),
    )


def _agreement_line(grid: GridSafety) -> tuple[Cell, ...]:
    values = [number(v, decimals=2) for t in (grid.ours, grid.proper) for v in _correlations(t)]
    paper = [number(value, decimals=2) for value in _correlations(grid.paper)]
    n_paper = str(len(grid.paper.names)) if grid.paper.names else MISSING
    cells = (grid.board.grid, str(len(grid.ours.names)), *values, n_paper, *paper)
    return tuple((text, False) for text in cells)


def _correlations(orders: Tradeoff) -> tuple[float | None, float | None]:
    return orders.kendall, orders.spearman


def _ranks(grid: GridSafety) -> Sheet:
    proper = dict(zip(grid.proper.names, grid.proper.safety, strict=True))
    ours = zip(grid.ours.names, grid.ours.fidelity, grid.ours.safety, strict=True)
    lines = [(name, fidelity, safety, proper[name]) for name, fidelity, safety in ours]
    paper = zip(grid.paper.names, grid.paper.fidelity, grid.paper.safety, strict=True)
    printed = [(f"{name} (paper)", fidelity, safety, None) for name, fidelity, safety in paper]
    return Sheet(
        title=f"{grid.board.title}: mean ranks",
        header=("model", "fidelity", "safety", "proper safety"),
        groups=tuple(tuple(_numbers(*line) for line in group) for group in (lines, printed)),
        above="1 is best; the paper's rows are ranked among themselves.",
        below=(
            f"Kendall's τ of fidelity and safety is {_tau(grid.ours)}, of fidelity and proper "
            f"safety {_tau(grid.proper)}; of the paper's rows {_tau(grid.paper)}.",
            *("Safety_mBrier is 0 at every bus for every model, so there are no hard buses.",)
            * (bool(grid.per_bus) and not _has_risk(grid)),
        ),
    )


def _tau(orders: Tradeoff) -> str:
    return number(orders.kendall, decimals=2)


def _numbers(name: str, *values: float | None) -> tuple[Cell, ...]:
    return ((name, False), *((number(value, decimals=2), False) for value in values))


def _buses(grid: GridSafety) -> Sheet:
    n_buses = max(map(len, grid.per_bus.values()))
    entries = {entry.name: entry for entry in grid.board.entries}
    lines = tuple(_bus_line(entries[name], per_bus) for name, per_bus in grid.per_bus.items())
    return Sheet(
        title=f"{grid.board.title}: Safety_mBrier bus by bus",
        header=("model", *(f"over {x:g}" for x in SHOWN_THRESHOLDS), *SHOWN_PLACES.values()),
        groups=(lines,),
        above=f"The share of the {n_buses:,} buses above each threshold, and the worst buses; "
        "means "
        "over windows, steps, scenarios and seeds.",
        below=tuple(label_notes(entries[name] for name in grid.per_bus)),
        dispensable=("10th", "over 0.0001", "200th"),
    )


def _bus_line(entry: Entry, per_bus: np.ndarray) -> tuple[Cell, ...]:
    _, share = survival(per_bus, np.array(SHOWN_THRESHOLDS))
    _, values = worst(per_bus)
    severe = [number(float(values[n - 1]) if n <= len(values) else None) for n in SHOWN_PLACES]
    return tuple((text, False) for text in (entry.label, *(f"{s:.1%}" for s in share), *severe))


def _hardest(grid: GridSafety) -> Sheet:
    bus_id, known = grid.bus_id, grid.board.grid in CATALOG
    lines = []
    for name, per_bus in grid.per_bus.items():
        worst_rows, values = worst(per_bus, len(HARDEST))
        hard = [str(bus_id[k]) for k in worst_rows[values > NEGLIGIBLE]]
        texts = (name, *hard, *[MISSING] * (len(HARDEST) - len(hard)))
        lines.append(tuple((text, False) for text in texts))
    return Sheet(
        title=f"{grid.board.title}: the hardest buses",
        header=("model", *HARDEST),
        groups=(tuple(lines),),
        above="The buses with the highest Safety_mBrier, by "
        + ("number." if known else "position in the case file (their numbers are unknown)."),
    )


def _shared_buses(grid: GridSafety) -> Sheet:
    names, pairs = list(grid.per_bus), grid.pairs
    lines = []
    for k, name in enumerate(names):
        overlap = [pairs[name, other].overlap for other in names[k + 1 :]]
        order = [pairs[other, name].spearman_scoring for other in names[:k]]
        texts = [number(value, decimals=2) for value in order] + [MISSING]
        texts += [MISSING if value is None else f"{value:.0%}" for value in overlap]
        lines.append(tuple((text, False) for text in (f"{k + 1} {name}", *texts)))
    return Sheet(
        title=f"{grid.board.title}: hard buses in common",
        header=("model", *(str(k) for k in range(1, len(names) + 1))),
        groups=(tuple(lines),),
        above=f"Right of the diagonal: the share of the {HARD} worst buses that two models have in "
        "common, relative to the longer list. Left of it: Spearman's ρ of Safety_mBrier over the "
        "buses where at least one of the two is above 0.",
        below=(
            f"Scores below {NEGLIGIBLE:g} are rounding and count as 0; a bus that scores 0 is "
            "never "
            "hard. Ties are resolved in the order of the case file; for ρ they share the mean of "
            "their ranks.",
        ),
    )


def _lines(grid: GridSafety) -> Iterator[tuple[Any, ...]]:
    orders = (("", grid.ours), ("_proper", grid.proper), ("_paper", grid.paper))
    for kind, order in orders:
        for name, fidelity, safety in zip(order.names, order.fidelity, order.safety, strict=True):
            yield f"fidelity_rank{kind}", name, None, None, fidelity
            yield f"safety_rank{kind}", name, None, None, safety
        yield f"kendall{kind}", None, None, None, order.kendall
        yield f"spearman{kind}", None, None, None, order.spearman
    bus_id = grid.bus_id if grid.per_bus else np.empty(0)
    for name, per_bus in grid.per_bus.items():
        yield from (("survival", name, None, x, s) for x, s in zip(*survival(per_bus), strict=True))
        worst_rows, values = worst(per_bus, WORST)
        numbered = zip(bus_id[worst_rows], values, strict=True)
        yield from (("worst", name, bus, k, v) for k, (bus, v) in enumerate(numbered, start=1))
    for (name, other), hard in grid.pairs.items():
        yield "overlap", name, other, hard.n, hard.overlap
        yield "spearman_all", name, other, None, hard.spearman
        yield "spearman_scoring", name, other, None, hard.spearman_scoring
