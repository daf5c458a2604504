"""The leaderboard: result rows as one table per grid, with the paper's numbers.

A table is ordered by CRPS, which is proper: no forecaster gains by stating what it does not
believe. The paper's Rank mixes it with scores that reward just that, so it is a column, and an
order only on request.

Rows share a table only if their task, edition, grid and data are the same; rows that differ only
in the seed become one entry. The paper's numbers are based on other data, so they are listed below
ours and ranked among themselves. A table shows the usual scores, or all scores of one group.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from math import isclose
from typing import TYPE_CHECKING, Any

from powerphase.errors import ResultError, UnknownName
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.records.result import Result
from powerphase.records.result_rules import ROUNDING
from powerphase.records.row_key import Failure
from powerphase.records.scores import GROUPS, SCORES
from powerphase.report.entries import (
    PAPER_DECIMALS,
    RANK,
    Entry,
    budget_notes,
    budget_words,
    entry_of,
    group_by,
    in_order,
    label_notes,
    orders_forecasts,
    paper_entries,
    sort_name,
    with_ranks,
)
from powerphase.report.sheet import MISSING, Cell, Note, Sheet, as_csv, number
from powerphase.report.statistics import against
from powerphase.task.protocol import PAPER_TASK

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1"),
    *("brier", "twcrps", "energy", "coverage_80"),
)
"""The scores that a table shows if no group is chosen; a CSV file has all."""

DISPENSABLE = ("coverage_80", "mse", "necv", "energy", "twcrps", "brier")
"""The scores of these that a narrow terminal omits, in this order."""

N_KEPT = 4
"""A narrow terminal shows at least so many scores of a group."""

COUPLING, RANK_TITLE = "scenarios", "Rank"
"""The columns that say whether scenarios are joint or marginal, and the paper's rank."""

LIKE_THE_BEST = "≈"
LEGEND = (
    f"{LIKE_THE_BEST} marks a score that a paired test over windows and the spread of seeds cannot "
    "distinguish from the best of its column, in bold; see `powerphase leaderboard --statistics`."
)


@dataclass(frozen=True)
class Board:
    """The table of one grid: everything scored on the same data by the same task."""

    task: str
    task_version: int
    edition: str
    grid: str
    fingerprint: str
    entries: tuple[Entry, ...]
    paper: tuple[Entry, ...]
    windows: tuple[str, ...] = ()
    """UTC start of each window."""
    failures: tuple[Failure, ...] = ()
    """Cells of a bench that have no row."""
    sort: str = "crps"
    """What orders the entries: a score, or `rank`."""

    @property
    def conditions(self) -> str:
        """The edition of its data, and its task unless that is the paper's."""
        return self.edition if self.task == PAPER_TASK else f"{self.edition}, {self.task}"

    @property
    def title(self) -> str:
        """The grid and the conditions."""
        return f"{self.grid}, edition {self.conditions}"

    @property
    def span(self) -> str:
        """The number of windows, and their first and last day."""
        days = [window.partition("T")[0] for window in self.windows]
        return f"{len(days)} windows from {days[0]} to {days[-1]}"

    @property
    def notes(self) -> list[str]:
        """What the numbers are based on, and how to read the paper's."""
        span = f" {self.span};" if self.windows else ""
        data = f"data {self.fingerprint[:12]}."
        notes = [f"Task {self.task}, version {self.task_version};{span} {data}"]
        if self.failures:
            notes.append(f"Without a row: {'; '.join(map(_without_row, self.failures))}.")
        ranked = [entry for entry in self.entries if entry.rank is not None]
        reduced = [entry for entry in ranked if budget_words([entry.name])]
        if reduced:
            notes.append(
                f"{budget_notes(entry.name for entry in reduced)}. Such a row is ranked where the "
                "model "
                f"has no row with its full budget: {', '.join(map(_budget, reduced))}."
            )
        if any(entry.is_variant and entry.rank is None for entry in self.entries):
            others = "Other variants" if reduced else "Variants"
            notes.append(f"{others}, named model+variant, are not ranked.")
        notes += label_notes(self.entries)
        if self.paper:
            notes.append(
                "Rows marked (paper) are the paper's, on its own data (edition paper): ranked "
                "among themselves, and not directly comparable with edition "
                f"{self.edition} above."
            )
        return notes


class Boards(list[Board]):
    """The tables of several grids, as a list."""

    def to_pandas(self) -> "pd.DataFrame":
        """One table with a line for each entry, unrounded; NaN for missing values."""
        import pandas as pd  # takes a second to load

        return pd.read_csv(StringIO(boards_as_csv(self)), float_precision="round_trip")


def leaderboard(
    results: Iterable[Result],
    paper: bool = True,
    failures: Sequence[Failure] = (),
    sort: str = "crps",
) -> Boards:
    """One table for each task, edition, grid and fingerprint.

    Args:
        results: the rows.
        paper: whether tables of the paper's task include its rows.
        failures: cells of a bench without a row; they are listed below the tables of their grids.
        sort: the score that orders the entries, or `rank`.
    """
    sort = sort_name(sort)
    groups = group_by(results, _data).values()
    boards = [
        Board(
            *_data(row),
            in_order(_entries(rows), sort),
            in_order(_paper_rows(row), sort) if paper else (),
            tuple(row.windows),
            tuple(f for f in failures if _conditions(f) == _conditions(row)),
            sort,
        )
        for row, rows in ((rows[0], rows) for rows in groups)
    ]
    return Boards(sorted(boards, key=_sort_key))


def boards_as_csv(boards: Iterable[Board]) -> str:
    """The boards as CSV, unrounded: one line per entry, empty cells for missing values."""
    lines: list[tuple[Any, ...]] = [
        (
            *("task", "task_version", "edition", "grid", "fingerprint"),
            *("model", "kind", "seeds", COUPLING, "rank"),
            *(column for name in SCORES for column in (name, f"{name}_std")),
        )
    ]
    for board in boards:
        ours = (board.task, board.task_version, board.edition, board.grid, board.fingerprint)
        papers = (board.task, None, "paper", board.grid, None)
        lines += [(*ours, *_values(entry)) for entry in board.entries]
        lines += [(*papers, *_values(entry)) for entry in board.paper]
    # Every edition of a grid lists the paper's rows; a file needs them once.
    return as_csv(dict.fromkeys(lines))


def _budget(entry: Entry) -> str:
    """The entry with the steps that it was trained for."""
    steps = entry.cost["steps"]
    return f"{entry.name} {'an unknown number of' if steps is None else f'{steps:,.0f}'} steps"


def _values(entry: Entry) -> Iterator[Any]:
    yield from (entry.name, entry.kind, len(entry.seeds), entry.coupling or None, entry.rank)
    for name in SCORES:
        yield from (entry.mean[name], entry.std[name])


def _data(row: Result) -> tuple[str, int, str, str, str]:
    return row.task, row.task_version, row.edition, row.grid, row.fingerprint


def _conditions(record: Result | Failure) -> tuple[str, str, str]:
    return record.task, record.edition, record.grid


def _without_row(failure: Failure) -> str:
    return f"{failure.key.stem} ({failure.sentence.rstrip('.')})"


def _paper_rows(row: Result) -> tuple[Entry, ...]:
    """The paper's entries on the grid of the row, if the row has the paper's task."""
    return paper_entries(row.grid) if row.task == PAPER_TASK else ()


def _sort_key(board: Board) -> tuple[Any, ...]:
    grids = PAPER_GRIDS.index(board.grid) if board.grid in PAPER_GRIDS else len(PAPER_GRIDS)
    return board.task, board.task_version, board.edition, grids, board.grid, board.fingerprint


def _entries(rows: Sequence[Result]) -> tuple[Entry, ...]:
    """The entries of one table, in order."""
    for row in rows:
        if row.windows != rows[0].windows:
            raise ResultError(
                f"{row.path}: scored on other windows than {rows[0].path}; score both on the same "
                "windows"
            )
        for name, value in row.truth.items():
            expected = rows[0].truth[name]
            if value is None or expected is None:
                continue  # a row of the first schema does not state it
            if not isclose(value, expected, rel_tol=1e-5, abs_tol=ROUNDING):
                raise ResultError(
                    f"{row.path} says that the {name} of what happened is {value!r}, "
                    f"{rows[0].path} says {expected!r} of the same windows; score the "
                    "forecasts again"
                )
    return with_ranks([entry_of(seeds) for seeds in group_by(rows, lambda row: row.name).values()])


def board_sheet(board: Board, group: str | None = None) -> Sheet:
    """The board as a table of the usual scores, or of all scores of a group."""
    names = COLUMNS if group is None else scores_of(group)
    papers = (entry for entry in board.paper if any(entry.mean[n] is not None for n in names))
    board = replace(board, paper=tuple(papers))
    noise = {name: like_the_best(board, name) for name in names}
    marked = tuple(SCORES[name].title for name in names if noise[name])
    above, *below = board.notes
    n_ranked = sum(entry.rank is not None for entry in board.entries)
    lines = tuple(_cells(board.entries, names, noise))
    groups = (lines[:n_ranked], lines[n_ranked:], tuple(_cells(board.paper, names, {})))
    sheet = Sheet(
        board.title,
        ("model", "seeds", COUPLING, *(SCORES[name].title for name in names), RANK_TITLE),
        tuple(group for group in groups if group),
        f"Ordered by {RANK_TITLE if board.sort == RANK else SCORES[board.sort].title}. {above}",
        (*(Note(LEGEND, marked),) * bool(marked), *coupling_notes(names), *below),
        dispensable=_dispensable(group),
    )
    unused = () if has_coupling(board.entries, names) else (COUPLING,)
    return sheet.without(*unused, *(RANK_TITLE,) * (group is not None))


def scores_of(group: str) -> tuple[str, ...]:
    """The scores of a group."""
    if group not in GROUPS:
        raise UnknownName.among("group of scores", group, GROUPS)
    return GROUPS[group]


def _dispensable(group: str | None) -> tuple[str, ...]:
    """The columns that a narrow terminal omits, in this order."""
    names = reversed(GROUPS[group][N_KEPT:]) if group else DISPENSABLE
    return ("seeds", *(COUPLING,) * (group is None), *(SCORES[name].title for name in names))


def has_coupling(entries: Iterable[Entry], names: Iterable[str]) -> bool:
    """Whether it matters if scenarios are joint, and is known of any entry."""
    return bool(coupling_notes(names)) and any(entry.coupling for entry in entries)


def coupling_notes(names: Iterable[str]) -> tuple[Note, ...]:
    """What joint and marginal scenarios are, if one of the scores compares whole scenarios."""
    titles = [SCORES[name].title for name in names if not SCORES[name].pointwise]
    if not titles:
        return ()
    listed = " and ".join([", ".join(titles[:-1])] * (len(titles) > 1) + titles[-1:])
    text = (
        "Joint scenarios are futures of the whole grid, marginal ones of every channel by itself; "
        f"marginal ones do not claim what {listed} ask{'s' * (len(titles) == 1)} for."
    )
    return (Note(text, (COUPLING,)),)


def like_the_best(board: Board, name: str) -> set[str]:
    """The entries whose difference from the best is noise."""
    if not orders_forecasts(name):
        return set()
    contrasts = against(board.entries, board.windows, name)
    return {c.name for c in contrasts if c.verdict == "noise" and c.difference}


def _cells(
    entries: Sequence[Entry], names: Sequence[str], noise: Mapping[str, Collection[str]]
) -> Iterator[tuple[Cell, ...]]:
    """The cells of each entry; the best of the ranked entries stand out."""
    best = {name: _lowest(entries, name) for name in names}
    first = min((entry.rank for entry in entries if entry.rank is not None), default=None)
    for entry in entries:
        ranked = entry.rank is not None
        marks = {name: LIKE_THE_BEST * (entry.name in noise.get(name, ())) for name in names}
        yield (
            (entry.label, False),
            (str(len(entry.seeds)), False),
            (entry.coupling or MISSING, False),
            *(
                (marks[name] + _score_text(entry, name), ranked and entry.mean[name] in best[name])
                for name in names
            ),
            (f"{entry.rank:.2f}" if ranked else MISSING, ranked and entry.rank == first),
        )


def _lowest(entries: Sequence[Entry], name: str) -> list[float]:
    """The lowest mean among ranked entries; empty if the score does not order forecasts."""
    if not orders_forecasts(name):
        return []
    means = [entry.mean[name] for entry in entries if entry.rank is not None]
    return sorted(mean for mean in means if mean is not None)[:1]


def _score_text(entry: Entry, name: str) -> str:
    """A score with its deviation; the paper's as printed."""
    decimals = PAPER_DECIMALS if entry.kind == "paper" else None
    return number(entry.mean[name], entry.std[name], decimals)
