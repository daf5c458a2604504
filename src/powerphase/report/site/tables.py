"""The leaderboard as the page shows it: groups that are set apart, cells with their marks."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from powerphase.records.scores import RANKED, SCORES
from powerphase.report.boards import COLUMNS, Board, like_the_best
from powerphase.report.entries import PAPER_DECIMALS, Entry, orders_forecasts
from powerphase.report.sheet import MISSING

FIDELITY = tuple(name for name in COLUMNS if not SCORES[name].voltage_only)
SAFETY = tuple(name for name in COLUMNS if SCORES[name].voltage_only)

AS_THEY_ARE = ("coverage_80",)
"""The scores that are not shown in thousandths."""

NEGLIGIBLE = 1e-3
"""The share of a column's largest number below which another asks for no decimals."""

RANK = (
    f"Mean place in {', '.join(SCORES[name].title for name in RANKED[:-1])} and "
    f"{SCORES[RANKED[-1]].title} among those that compete; 1 is best, and equals share a place."
)
TIME = "Seconds of training and forecasting together, on whatever hardware it was."

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
    like_best: bool = False
    """Whether it cannot be told from the best."""
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
    like = {name: like_the_best(board, name) for name in COLUMNS}
    lines = [*_lines(board.entries, hardware, like), *_lines(board.paper, {}, {})]
    found = [
        Group(key, title, tuple(line for line in lines if line.group == key))
        for key, title in TITLES.items()
    ]
    return [group for group in found if group.lines]


def _lines(
    entries: Sequence[Entry], hardware: dict[str, str], like: Mapping[str, Collection[str]]
) -> Iterator[Line]:
    marks = {name: _marks(entries, name) for name in COLUMNS}
    ranks = sorted({entry.rank for entry in entries if entry.rank is not None})
    decimals = {
        name: 3 if name in AS_THEY_ARE else decimals_of(_shown(entries, name)) for name in COLUMNS
    }
    for entry in entries:
        cells = {
            name: _score(entry, name, decimals[name], marks[name], like.get(name, ()))
            for name in COLUMNS
        }
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


def _shown(entries: Sequence[Entry], name: str) -> list[float]:
    """The numbers of a column, as it shows them."""
    means = [entry.mean[name] for entry in entries]
    return [mean * 10 ** _power(name) for mean in means if mean is not None]


def unit_of(name: str) -> str:
    """What a column counts in; what is normalised has no unit."""
    if name in AS_THEY_ARE:
        return "share"
    return "10⁻³ p.u." if SCORES[name].unit == "p.u." else "10⁻³"


def _score(
    entry: Entry, name: str, decimals: int, marks: Mapping[Any, str], like: Collection[str]
) -> Cell:
    value, std = entry.mean[name], entry.std[name]
    if value is None:
        return Cell(MISSING)
    known = [own * 10 ** _power(name) for own in (value, std) if own is not None]
    if entry.kind == "paper":
        shown = [f"{own:.{PAPER_DECIMALS - _power(name)}f}" for own in known]
    else:
        shown = [rounded(own, decimals) for own in known]
    return Cell(
        text=shown[0],
        deviation=shown[1] if len(shown) > 1 else "",
        value=value,
        mark=marks.get(value, "") if entry.rank is not None else "",
        like_best=entry.name in like,
        hint=f"{value:.6g}",
    )


def _power(name: str) -> int:
    """The power of ten by which a column is multiplied."""
    return 0 if name in AS_THEY_ARE else 3


def meaning(name: str) -> str:
    """The question that a score answers, and how to read the answer."""
    score = SCORES[name]
    reads = "Less is better" if orders_forecasts(name) else "Describes, and does not order"
    rank = "; counts for the rank" if name in RANKED else ""
    proper = "; proper" if score.proper else ""
    return f"{score.question} [{score.unit}] {reads}{rank}{proper}."


def decimals_of(values: Iterable[float]) -> int:
    """So many decimals that the least has three digits, of those that are not negligible."""
    sizes = [abs(value) for value in values if value]
    least = min((size for size in sizes if size > NEGLIGIBLE * max(sizes)), default=1.0)
    return max(0, 2 - floor(log10(least)))


def rounded(value: float, decimals: int) -> str:
    """A number with so many decimals; what they cannot show is told from nothing at all."""
    text = f"{value:.{decimals}f}"
    if value and not float(text):
        return f"< {10.0**-decimals:.{decimals}f}"
    return text if value else "0"


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
    return Cell(f"{sum(known):,.1f}", "", sum(known), hint="; ".join(filter(None, more)))


def duration(seconds: float) -> str:
    """A time as people say it."""
    for limit, unit, size in ((1, "ms", 1e-3), (90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.1f} h"
