"""The leaderboard: result rows as one table per grid, ranked as in the paper, beside its numbers.

Rows meet in a table only if their task, edition, grid and data are the same, and rows that differ
in nothing but the seed become one entry. The paper's numbers rest on other data, so they stand
below ours and are ranked among themselves.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from rich.console import Group

from powerphase.errors import ResultError
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.records.failure import Failure
from powerphase.records.result import Result
from powerphase.records.scores import SCORES
from powerphase.report.entries import (
    PAPER_DECIMALS,
    Entry,
    entry_of,
    explained,
    grouped,
    orders_forecasts,
    paper_entries,
    with_ranks,
)
from powerphase.report.sheet import MISSING, Cell, Sheet, number
from powerphase.report.statistics import against
from powerphase.task.protocol import PAPER_TASK

COLUMNS = (
    *("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1"),
    *("brier", "twcrps", "energy", "coverage_80"),
)
"""The scores that a table shows; a CSV file has all."""

HEADER = ("model", "seeds", "Rank", *(SCORES[name].title for name in COLUMNS))
DISPENSABLE = ("seeds", *(SCORES[n].title for n in ("coverage_80", "mse", "necv", "energy")))
DISPENSABLE += tuple(SCORES[name].title for name in ("twcrps", "brier"))
"""The columns that a narrow terminal goes without, in this order."""


LIKE_THE_BEST = "≈"
MARKED = (
    f"{LIKE_THE_BEST} marks what cannot be told from the best of its column, which is bold, by a "
    "paired test over windows and by seeds; `powerphase leaderboard --statistics` tells more."
)


@dataclass(frozen=True)
class Board:
    """The table of one grid: all that was scored on the same data under the same task."""

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
        """How many windows there are, and when."""
        days = [window.partition("T")[0] for window in self.windows]
        return f"{len(days)} windows from {days[0]} to {days[-1]}"

    @property
    def notes(self) -> list[str]:
        """What the numbers rest on, and what to bear in mind about the paper's."""
        span = f" {self.span};" if self.windows else ""
        data = f"data {self.fingerprint[:12]}."
        notes = [f"Task {self.task}, version {self.task_version};{span} {data}"]
        if self.failures:
            notes.append(f"Without a row: {'; '.join(map(_without_row, self.failures))}.")
        less = [entry for entry in self.entries if entry.is_variant and entry.rank is not None]
        if less:
            notes.append(
                f"{explained(entry.name for entry in less)}. Such a row competes where the model "
                f"has none of its own: {', '.join(map(_budget, less))}."
            )
        if any(entry.is_variant and entry.rank is None for entry in self.entries):
            others = "Other variants" if less else "Variants"
            notes.append(f"{others}, named model+variant, take no rank.")
        if self.paper:
            notes.append(
                "Rows marked (paper) are the paper's, on its own data (edition paper): ranked "
                "among themselves, and not directly comparable with edition "
                f"{self.edition} above."
            )
        return notes


def leaderboard(
    results: Iterable[Result], paper: bool = True, failures: Sequence[Failure] = ()
) -> list[Board]:
    """One table for each task, edition, grid and fingerprint.

    The paper's rows are beside those of its own task, if wanted. Failures are noted below the
    tables of their grids.
    """
    groups = grouped(results, _data).values()
    boards = [
        Board(
            *(*_data(row), _entries(rows), _printed(row) if paper else (), tuple(row.windows)),
            tuple(one for one in failures if _place_of(one) == _place_of(row)),
        )
        for row, rows in ((rows[0], rows) for rows in groups)
    ]
    return sorted(boards, key=_place)


def as_table(board: Board, width: int) -> Group:
    """The board for a terminal of that width, with the columns that there is room for."""
    return sheet(board).as_table(width)


def as_markdown(boards: Iterable[Board]) -> str:
    """The boards as Markdown: for each a heading, a table and its notes."""
    return "\n".join(sheet(board).as_markdown() for board in boards)


def as_csv(boards: Iterable[Board]) -> str:
    """The boards as CSV, unrounded: a line for each entry, and no value in a cell without one."""
    lines: list[tuple[Any, ...]] = [
        (
            *("task", "task_version", "edition", "grid", "fingerprint"),
            *("model", "kind", "seeds", "rank"),
            *(column for name in SCORES for column in (name, f"{name}_std")),
        )
    ]
    for board in boards:
        ours = (board.task, board.task_version, board.edition, board.grid, board.fingerprint)
        papers = (board.task, None, "paper", board.grid, None)
        lines += [(*ours, *_values(entry)) for entry in board.entries]
        lines += [(*papers, *_values(entry)) for entry in board.paper]
    text = StringIO()
    # The paper's rows stand below every edition of a grid; a file needs them once.
    csv.writer(text, lineterminator="\n").writerows(dict.fromkeys(lines))
    return text.getvalue()


def _budget(entry: Entry) -> str:
    """The entry with the steps that it was trained for."""
    steps = entry.cost["steps"]
    return f"{entry.name} {'an unknown number of' if steps is None else f'{steps:,.0f}'} steps"


def _values(entry: Entry) -> Iterator[Any]:
    yield from (entry.name, entry.kind, len(entry.seeds), entry.rank)
    for name in SCORES:
        yield from (entry.mean[name], entry.std[name])


def _data(row: Result) -> tuple[str, int, str, str, str]:
    return row.task, row.task_version, row.edition, row.grid, row.fingerprint


def _place_of(found: Result | Failure) -> tuple[str, str, str]:
    return found.task, found.edition, found.grid


def _without_row(failure: Failure) -> str:
    return f"{failure.key.stem} ({failure.sentence.rstrip('.')})"


def _printed(row: Result) -> tuple[Entry, ...]:
    """What the paper has on the row's grid, if the task is its own."""
    return paper_entries(row.grid) if row.task == PAPER_TASK else ()


def _place(board: Board) -> tuple[Any, ...]:
    grids = PAPER_GRIDS.index(board.grid) if board.grid in PAPER_GRIDS else len(PAPER_GRIDS)
    return board.task, board.task_version, board.edition, grids, board.grid, board.fingerprint


def _entries(rows: Sequence[Result]) -> tuple[Entry, ...]:
    """The entries of one table, in order."""
    for row in rows:
        if row.windows != rows[0].windows:
            raise ResultError(
                f"{row.path}: scored on other windows than {rows[0].path}; score both on the same"
            )
    return with_ranks([entry_of(seeds) for seeds in grouped(rows, lambda row: row.name).values()])


def sheet(board: Board) -> Sheet:
    """The board as a table."""
    above, *below = board.notes
    noise = {name: like_the_best(board, name) for name in COLUMNS}
    if any(noise.values()):
        below.insert(0, MARKED)
    groups = (tuple(_cells(board.entries, noise)), tuple(_cells(board.paper, {})))
    return Sheet(board.title, HEADER, groups, above, tuple(below), dispensable=DISPENSABLE)


def like_the_best(board: Board, name: str) -> set[str]:
    """The entries that are not the best, and cannot be told from it."""
    if not orders_forecasts(name):
        return set()
    found = against(board.entries, board.windows, name)
    return {c.name for c in found if c.verdict == "noise" and c.difference}


def _cells(
    entries: Sequence[Entry], noise: Mapping[str, Collection[str]]
) -> Iterator[tuple[Cell, ...]]:
    """The cells of each entry as text, each with whether it is the best of the ranked entries."""
    best = {name: _lowest(entries, name) for name in COLUMNS}
    for entry in entries:
        ranked = entry.rank is not None
        marks = {name: LIKE_THE_BEST * (entry.name in noise.get(name, ())) for name in COLUMNS}
        yield (
            (entry.label, False),
            (str(len(entry.seeds)), False),
            (f"{entry.rank:.2f}" if ranked else MISSING, ranked and entry.rank == entries[0].rank),
            *(
                (marks[name] + _shown(entry, name), ranked and entry.mean[name] in best[name])
                for name in COLUMNS
            ),
        )


def _lowest(entries: Sequence[Entry], name: str) -> list[float]:
    """The lowest mean among ranked entries, of a score that orders forecasts; else nothing."""
    if not orders_forecasts(name):
        return []
    means = [entry.mean[name] for entry in entries if entry.rank is not None]
    return sorted(mean for mean in means if mean is not None)[:1]


def _shown(entry: Entry, name: str) -> str:
    """A score with its deviation; the paper's as printed."""
    decimals = PAPER_DECIMALS if entry.kind == "paper" else None
    return number(entry.mean[name], entry.std[name], decimals)
