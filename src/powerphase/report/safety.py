"""Safety beside fidelity as tables: over all grids, and bus by bus on one of them."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from powerphase.errors import ResultError, UnknownName
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.records.result import Result
from powerphase.records.scores import SCORES
from powerphase.report.buses import (
    HARD,
    NEGLIGIBLE,
    WORST,
    HardBuses,
    by_bus,
    hard_buses,
    survival,
    worst,
)
from powerphase.report.entries import Entry, edition_of
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.report.sheet import MISSING, Cell, Sheet, number
from powerphase.report.statistics import PROPER_SAFETY, SAFETY, Tradeoff, tradeoff
from powerphase.task.protocol import PAPER_TASK

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
    """All about one grid: the two orders of its forecasters, and each one's buses."""

    board: Board
    ours: Tradeoff
    proper: Tradeoff
    """With proper safety scores."""
    paper: Tradeoff
    """Of the paper's rows, which lack the proper scores."""
    per_bus: Mapping[str, np.ndarray]
    """Safety_mBrier by entry and bus; empty unless it was asked for."""

    @property
    def bus_id(self) -> np.ndarray:
        """The buses' numbers; their places in the case file where the catalogue lacks the grid."""
        if self.board.grid in CATALOG:
            return load_grid(self.board.grid).bus_id
        return np.arange(1, max(map(len, self.per_bus.values())) + 1)

    @property
    def pairs(self) -> dict[tuple[str, str], HardBuses]:
        """What the hard buses of each two have in common."""
        both = combinations(self.per_bus.items(), 2)
        return {(one, other): hard_buses(a, b) for (one, a), (other, b) in both}


def safety(
    rows: Mapping[Path, Result], edition: str | None = None, grid: str | None = None
) -> list[GridSafety]:
    """Every grid of the edition under the paper's task; one alone comes with its buses.

    Args:
        rows: by the file that each was read from, as `records.result.find_results` gives them.
        edition: of the data; if none is given, `entries.edition_of` chooses it.
        grid: the one to look at bus by bus.
    """
    own = {path: row for path, row in rows.items() if row.task == PAPER_TASK}
    grids = {row.grid for row in own.values()}
    if grids and grid is not None and grid not in grids:
        raise UnknownName.among("row of the paper's task on grid", grid, grids)
    own = {path: row for path, row in own.items() if grid in (None, row.grid)}
    where = f" on {grid}" if grid else ""
    edition = edition_of(own.values(), edition, f"of the paper's task{where}")
    chosen = {path: row for path, row in own.items() if row.edition == edition}
    boards = leaderboard(chosen.values())
    if len({board.grid for board in boards}) < len(boards):
        raise ResultError(f"edition {edition}: rows of more than one data set of a grid; give one")
    return [_of_board(board, chosen if grid else {}) for board in boards]


def sheets(found: Sequence[GridSafety]) -> list[Sheet]:
    """The agreement of the orders; of a grid that was looked at, ranks, buses, and hard ones."""
    tables = (_ranks, _buses, _hardest, _shared)
    close = [table(one) for one in found if one.per_bus for table in tables]
    return close or [_agreement(found)]


def as_csv(found: Iterable[GridSafety]) -> str:
    """Every number: ranks and their agreement; survival, worst buses and overlap where read."""
    text = StringIO()
    lines = [(g.board.edition, g.board.grid, *line) for g in found for line in _lines(g)]
    csv.writer(text, lineterminator="\n").writerows([CSV_HEADER, *lines])
    return text.getvalue()


def _of_board(board: Board, rows: Mapping[Path, Result]) -> GridSafety:
    names = [e.name for e in board.entries if e.rank is not None or e.kind == "oracle"]
    own = {p: r for p, r in rows.items() if r.grid == board.grid and r.name in names}
    read = by_bus(own)
    return GridSafety(
        board=board,
        ours=tradeoff(board.entries),
        proper=tradeoff(board.entries, safety=PROPER_SAFETY),
        paper=tradeoff(board.paper),
        per_bus={name: read[name] for name in names if name in read},
    )


def _agreement(found: Sequence[GridSafety]) -> Sheet:
    proper = " and ".join(SCORES[name].title for name in PROPER_SAFETY)
    usual = ", ".join(SCORES[name].title for name in SAFETY)
    return Sheet(
        title=f"Fidelity beside safety, edition {found[0].board.edition}",
        header=AGREEMENT,
        groups=(tuple(_agreement_line(grid) for grid in found),),
        above="How far the order by fidelity (mean rank over CRPS, Distortion and MSE) agrees with "
        f"that by safety (over {usual}; proper: over {proper}).",
        below=(
            "τ is Kendall's and ρ Spearman's: 1 the same order, 0 none, −1 the opposite; – where "
            "safety has no order, since nobody leaves the band.",
        ),
    )


def _agreement_line(grid: GridSafety) -> tuple[Cell, ...]:
    values = [number(v, decimals=2) for t in (grid.ours, grid.proper) for v in _both(t)]
    paper = [number(value, decimals=2) for value in _both(grid.paper)]
    n_paper = str(len(grid.paper.names)) if grid.paper.names else MISSING
    cells = (grid.board.grid, str(len(grid.ours.names)), *values, n_paper, *paper)
    return tuple((text, False) for text in cells)


def _both(found: Tradeoff) -> tuple[float | None, float | None]:
    return found.kendall, found.spearman


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
        above="1 is best; the paper's among themselves.",
        below=(
            f"Kendall's τ of fidelity and safety is {_tau(grid.ours)}, of fidelity and proper "
            f"safety {_tau(grid.proper)}; of the paper's rows {_tau(grid.paper)}.",
        ),
    )


def _tau(found: Tradeoff) -> str:
    return number(found.kendall, decimals=2)


def _numbers(name: str, *values: float | None) -> tuple[Cell, ...]:
    return ((name, False), *((number(value, decimals=2), False) for value in values))


def _buses(grid: GridSafety) -> Sheet:
    n_buses = max(map(len, grid.per_bus.values()))
    entries = {entry.name: entry for entry in grid.board.entries}
    lines = tuple(_bus_line(entries[name], own) for name, own in grid.per_bus.items())
    return Sheet(
        title=f"{grid.board.title}: Safety_mBrier bus by bus",
        header=("model", *(f"over {x:g}" for x in SHOWN_THRESHOLDS), *SHOWN_PLACES.values()),
        groups=(lines,),
        above=f"The share of the {n_buses:,} buses above a threshold, and the worst of them; means "
        "over windows, steps, scenarios and seeds.",
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
    for name, own in grid.per_bus.items():
        places, values = worst(own, len(HARDEST))
        hard = [str(bus_id[k]) for k in places[values > NEGLIGIBLE]]
        texts = (name, *hard, *[MISSING] * (len(HARDEST) - len(hard)))
        lines.append(tuple((text, False) for text in texts))
    return Sheet(
        title=f"{grid.board.title}: the hardest buses",
        header=("model", *HARDEST),
        groups=(tuple(lines),),
        above="The buses with the highest Safety_mBrier, by "
        + ("number." if known else "place in the case file, for their numbers are not known here."),
    )


def _shared(grid: GridSafety) -> Sheet:
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
        above=f"Right of the diagonal: of their {HARD} worst buses, those that two models share, "
        "as a part of the longer list. Left of it: Spearman's ρ of Safety_mBrier over the buses "
        "where one of the two scores at all.",
        below=(
            f"Less than {NEGLIGIBLE:g} is rounding and counts as 0, and a bus that scores 0 is "
            "never hard. Buses that tie for the last place count in the order of the case file. "
            "For ρ, ties share the mean of their places.",
        ),
    )


def _lines(grid: GridSafety) -> Iterator[tuple[Any, ...]]:
    orders = (("", grid.ours), ("_proper", grid.proper), ("_paper", grid.paper))
    for kind, found in orders:
        for name, fidelity, safety in zip(found.names, found.fidelity, found.safety, strict=True):
            yield f"fidelity_rank{kind}", name, None, None, fidelity
            yield f"safety_rank{kind}", name, None, None, safety
        yield f"kendall{kind}", None, None, None, found.kendall
        yield f"spearman{kind}", None, None, None, found.spearman
    bus_id = grid.bus_id if grid.per_bus else np.empty(0)
    for name, own in grid.per_bus.items():
        yield from (("survival", name, None, x, s) for x, s in zip(*survival(own), strict=True))
        places, values = worst(own, WORST)
        numbered = zip(bus_id[places], values, strict=True)
        yield from (("worst", name, bus, k, v) for k, (bus, v) in enumerate(numbered, start=1))
    for (one, other), hard in grid.pairs.items():
        yield "overlap", one, other, hard.n, hard.overlap
        yield "spearman_all", one, other, None, hard.spearman
        yield "spearman_scoring", one, other, None, hard.spearman_scoring
