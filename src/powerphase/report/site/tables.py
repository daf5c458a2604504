"""The leaderboard as the page shows it: groups that are set apart, cells with their marks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from powerphase.records.scores import SCORES
from powerphase.report.entries import PAPER_DECIMALS, Entry, orders_forecasts
from powerphase.report.leaderboard import COLUMNS, Board
from powerphase.report.sheet import MISSING, number

FIDELITY = tuple(name for name in COLUMNS if not SCORES[name].voltage_only)
SMALL = 1e-3
"""Below it, numbers are shown in powers of ten."""

SAFETY = tuple(name for name in COLUMNS if SCORES[name].voltage_only)

TITLES = {
    "models": "Models",
    "references": "References",
    "variants": "Variants, not ranked",
    "paper": "In the paper, on its own data",
}
"""The headings of groups, in their order."""


@dataclass(frozen=True)
class Cell:
    """A number as text, as what it is sorted by, and what is said of it."""

    text: str
    deviation: str = ""
    value: float | None = None
    mark: str = ""
    """`best`, `second`, or nothing."""
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """One entry of the table."""

    name: str
    kind: str
    group: str
    seeds: tuple[int, ...]
    rank: Cell
    fidelity: tuple[Cell, ...]
    safety: tuple[Cell, ...]
    cost: Cell


@dataclass(frozen=True)
class Group:
    """Lines that are compared with each other, under a heading."""

    key: str
    title: str
    lines: tuple[Line, ...]


def groups(board: Board, hardware: dict[str, str]) -> list[Group]:
    """The table of a board: models, references, variants, and the paper's rows.

    Args:
        board: the entries.
        hardware: what each entry ran on, by name.
    """
    lines = [*_lines(board.entries, hardware), *_lines(board.paper, {})]
    found = [
        Group(key, title, tuple(line for line in lines if line.group == key))
        for key, title in TITLES.items()
    ]
    return [group for group in found if group.lines]


def _lines(entries: Sequence[Entry], hardware: dict[str, str]) -> Iterator[Line]:
    marks = {name: _marks(entries, name) for name in COLUMNS}
    ranks = sorted({entry.rank for entry in entries if entry.rank is not None})
    for entry in entries:
        cells = {name: _score(entry, name, marks[name]) for name in COLUMNS}
        yield Line(
            name=entry.name,
            kind=entry.kind,
            group=group_of(entry),
            seeds=entry.seeds,
            rank=_rank(entry, ranks),
            fidelity=tuple(cells[name] for name in FIDELITY),
            safety=tuple(cells[name] for name in SAFETY),
            cost=_cost(entry, hardware.get(entry.name, "")),
        )


def group_of(entry: Entry) -> str:
    """The group in which the entry stands; a smaller budget that takes a rank is a model's."""
    if entry.kind == "paper":
        return "paper"
    if entry.is_variant and entry.rank is None:
        return "variants"
    return "models" if entry.kind == "model" else "references"


def _marks(entries: Sequence[Entry], name: str) -> dict[Any, str]:
    """The lowest and the second lowest mean of the ranked, if less is better."""
    if not orders_forecasts(name):
        return {}
    means = {entry.mean[name] for entry in entries if entry.rank is not None} - {None}
    return dict(zip(sorted(mean for mean in means if mean is not None), ("best", "second")))  # noqa: B905


def _score(entry: Entry, name: str, marks: dict[Any, str]) -> Cell:
    value, std = entry.mean[name], entry.std[name]
    if entry.kind == "paper" or not value:
        text, _, deviation = number(value, std, PAPER_DECIMALS if value else None).partition(" ± ")
    else:
        text, deviation = _rounded(value, std)
    mark = marks.get(value, "") if entry.rank is not None else ""
    return Cell(text, deviation, value, mark, "" if value is None else f"{value:.6g}")


def _rounded(mean: float, std: float | None) -> tuple[str, str]:
    """Three digits of the mean, and the deviation in the same places; powers of ten if small."""
    power = floor(log10(abs(mean)))
    scale, tail = (10.0**power, f"e{power}") if abs(mean) < SMALL else (1.0, "")
    places = 2 if tail else max(0, 2 - power)
    text = f"{mean / scale:.{places}f}{tail}"
    if std is None:
        return text, ""
    shown = f"{std / scale:.{places}f}"
    return text, f"{std:.0e}" if std and not float(shown) else f"{shown}{tail}"


def _rank(entry: Entry, ranks: list[float]) -> Cell:
    if entry.rank is None:
        return Cell(MISSING)
    place = ranks.index(entry.rank)
    return Cell(f"{entry.rank:.2f}", "", entry.rank, ("best", "second", "")[min(place, 2)])


def _cost(entry: Entry, hardware: str) -> Cell:
    """How long fitting and forecasting took together."""
    parts = {name: entry.cost[name] for name in ("train_s", "predict_s")}
    known = [seconds for seconds in parts.values() if seconds is not None]
    if not known:
        return Cell(MISSING)
    said = ", ".join(
        f"{word} {duration(seconds)}"
        for word, seconds in zip(("training", "forecasting"), parts.values(), strict=True)
        if seconds is not None
    )
    memory = entry.cost["peak_memory_gib"]
    more = [said, f"{memory:.1f} GiB" if memory else "", hardware]
    return Cell(duration(sum(known)), "", sum(known), "", "; ".join(filter(None, more)))


def duration(seconds: float) -> str:
    """A time as people say it."""
    for limit, unit, size in ((1, "ms", 1e-3), (90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.1f} h"
