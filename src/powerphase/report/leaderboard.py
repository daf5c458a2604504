"""The leaderboard: result rows as one table per grid, ranked as in the paper, beside its numbers.

Rows meet in a table only if their task, edition, grid and data are the same, and rows that differ
in nothing but the seed become one entry. The paper's numbers rest on other data, so they stand
below ours and are ranked among themselves.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from io import StringIO
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from rich.table import Table

from powerphase.errors import ResultError
from powerphase.records.failure import Failure
from powerphase.records.result import Result
from powerphase.records.scores import RANKED, SCORES
from powerphase.report.sheet import MISSING, Cell, Sheet, number

Kind = Literal["model", "reference", "oracle", "paper"]

PAPER_SEEDS = (22, 42, 3142)
PAPER_GRIDS = (
    *("activsg500", "pegase1354", "polish2383"),
    *("pegase2869", "polish3120", "pegase9241"),
)
"""The paper's grids, in its order."""

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "last-week": "reference",
        "last-7-days": "reference",
        "climatology": "reference",
        "oracle": "oracle",
    }
)
"""What is not a model that competes for its own sake."""

COSTS = ("train_s", "predict_s", "score_s", "steps", "peak_memory_gib")

COLUMNS = (
    *("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1"),
    *("brier", "twcrps", "energy", "coverage_80"),
)
"""The scores that a table shows; a CSV file has all."""

HEADER = ("model", "seeds", "Rank", *(SCORES[name].title for name in COLUMNS))
DISPENSABLE = ("seeds", *(SCORES[n].title for n in ("coverage_80", "mse", "necv", "energy")))
DISPENSABLE += tuple(SCORES[name].title for name in ("twcrps", "brier"))
"""The columns that a narrow terminal goes without, in this order."""

PAPER_DECIMALS = 4
"""To which the paper rounds its means and deviations."""

Means = Mapping[str, float | None]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """A forecaster in a table: statistics over its seeds."""

    name: str
    kind: Kind
    seeds: tuple[int, ...]
    mean: Means
    std: Means
    """Sample standard deviation over seeds; none for a single seed."""
    cost: Means
    rank: float | None = None
    """Mean rank over the ranked scores, 1 is best; none for the oracle and for variants."""

    @property
    def is_variant(self) -> bool:
        """Whether it is a model with something changed rather than the model itself."""
        return "+" in self.name

    @property
    def label(self) -> str:
        """The name, and what sets the entry apart from the models that compete."""
        return self.name + {"model": "", "paper": " (paper)"}.get(self.kind, " (reference)")


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
    def title(self) -> str:
        """The grid, and the edition of its data."""
        return f"{self.grid}, edition {self.edition}"

    @property
    def notes(self) -> list[str]:
        """What the numbers rest on, and what to bear in mind about the paper's."""
        days = [window.partition("T")[0] for window in self.windows]
        span = f" {len(days)} windows from {days[0]} to {days[-1]};" if days else ""
        data = f"data {self.fingerprint[:12]}."
        notes = [f"Task {self.task}, version {self.task_version};{span} {data}"]
        if self.failures:
            notes.append(f"Without a row: {'; '.join(map(_without_row, self.failures))}.")
        if any(entry.is_variant for entry in self.entries):
            notes.append("Variants, named model+variant, take no rank.")
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
    """One table for each task, edition, grid and fingerprint, with the paper's rows if wanted.

    Failures are noted below the tables of their grids.
    """
    groups = _grouped(results, _data).values()
    printed = paper_entries if paper else lambda grid: ()
    boards = [
        Board(
            *(*_data(row), _entries(rows), printed(row.grid), tuple(row.windows)),
            tuple(one for one in failures if _place_of(one) == _place_of(row)),
        )
        for row, rows in ((rows[0], rows) for rows in groups)
    ]
    return sorted(boards, key=_place)


@cache
def paper_entries(grid: str) -> tuple[Entry, ...]:
    """What the paper prints for the grid, to four decimals; its zeros need not be exact."""
    text = (files("powerphase.report") / "paper_results.csv").read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(StringIO(text)) if line["grid"] == grid]
    entries = []
    for model, printed in _grouped(lines, lambda line: line["model"]).items():
        mean, std = (
            {name: None for name in SCORES} | {line["metric"]: float(line[key]) for line in printed}
            for key in ("mean", "std")
        )
        entries.append(Entry(model, "paper", PAPER_SEEDS, mean, std, dict.fromkeys(COSTS)))
    return _ranked(entries)


def as_table(board: Board, width: int) -> Table:
    """The board for a terminal of that width, with the columns that there is room for."""
    return _sheet(board).as_table(width)


def as_markdown(boards: Iterable[Board]) -> str:
    """The boards as Markdown: for each a heading, a table and its notes."""
    return "\n".join(_sheet(board).as_markdown() for board in boards)


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


def _values(entry: Entry) -> Iterator[Any]:
    yield from (entry.name, entry.kind, len(entry.seeds), entry.rank)
    for name in SCORES:
        yield from (entry.mean[name], entry.std[name])


def _grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _data(row: Result) -> tuple[str, int, str, str, str]:
    return row.task, row.task_version, row.edition, row.grid, row.fingerprint


def _place_of(found: Result | Failure) -> tuple[str, str, str]:
    return found.task, found.edition, found.grid


def _without_row(failure: Failure) -> str:
    return f"{failure.name}-{failure.seed} ({failure.sentence.rstrip('.')})"


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
    return _ranked([_entry(seeds) for seeds in _grouped(rows, lambda row: row.name).values()])


def _entry(rows: Sequence[Result]) -> Entry:
    """The seeds of one forecaster as one entry."""
    rows = sorted(rows, key=lambda row: row.seed)
    first, seeds = rows[0], tuple(row.seed for row in rows)
    for row in rows:
        if seeds.count(row.seed) > 1:
            raise ResultError(f"{row.path}: given more than once; keep one row for each seed")
        if row.config != first.config:
            raise ResultError(
                f"{row.path}: its config is not that of seed {first.seed}, so the two are no seeds "
                "of one forecaster; name one of them as a variant"
            )
    scores = {name: [row.scores[name] for row in rows] for name in SCORES}
    return Entry(
        name=first.name,
        kind=KINDS.get(first.model, "model"),
        seeds=seeds,
        mean={name: _over_seeds(fmean, values) for name, values in scores.items()},
        std={name: _over_seeds(stdev, values, least=2) for name, values in scores.items()},
        cost={name: _over_seeds(fmean, [row.cost[name] for row in rows]) for name in COSTS},
    )


def _over_seeds(
    statistic: Callable[[Any], float], values: Sequence[Any], least: int = 1
) -> float | None:
    """The statistic, unless a value is missing: that of some seeds is not that of all."""
    return None if None in values or len(values) < least else statistic(values)


def _ranked(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries from best to worst, with the ranks of those that compete; the oracle is last."""
    competing = [entry for entry in entries if entry.kind != "oracle" and not entry.is_variant]
    places = [_places([entry.mean[name] for entry in competing]) for name in RANKED]
    ranks = {entry.name: fmean(own) for entry, *own in zip(competing, *places, strict=True)}
    ranked = [replace(entry, rank=ranks.get(entry.name)) for entry in entries]

    def order(entry: Entry) -> tuple[Any, ...]:
        by = entry.mean["crps"] if entry.rank is None else entry.rank
        return entry.kind == "oracle", entry.rank is None, by, entry.name

    return tuple(sorted(ranked, key=order))


def _places(values: Sequence[Any]) -> list[float]:
    """The place of each value, 1 for the lowest; values that tie share the mean of their places."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def orders_forecasts(name: str) -> bool:
    """Whether less of the score is better; of a mere diagnostic, only if the paper ranks by it."""
    return name in RANKED or not SCORES[name].diagnostic


def _sheet(board: Board) -> Sheet:
    above, *below = board.notes
    groups = tuple(tuple(_cells(entries)) for entries in (board.entries, board.paper))
    return Sheet(board.title, HEADER, groups, above, tuple(below), dispensable=DISPENSABLE)


def _cells(entries: Sequence[Entry]) -> Iterator[tuple[Cell, ...]]:
    """The cells of each entry as text, each with whether it is the best of the ranked entries."""
    best = {name: _lowest(entries, name) for name in COLUMNS}
    for entry in entries:
        ranked = entry.rank is not None
        yield (
            (entry.label, False),
            (str(len(entry.seeds)), False),
            (f"{entry.rank:.2f}" if ranked else MISSING, ranked and entry.rank == entries[0].rank),
            *((_shown(entry, name), ranked and entry.mean[name] in best[name]) for name in COLUMNS),
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
