"""The index page: the leaderboard with its groups and marks, the data sets, and the template."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import floor, log10
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from jinja2 import Environment, PackageLoader, StrictUndefined

from powerphase.axes import STEPS_PER_DAY
from powerphase.dataset.certificate import Certificate
from powerphase.dataset.facts import certificate_facts, store_facts
from powerphase.dataset.layout import PROVENANCE
from powerphase.dataset.store import Store
from powerphase.grid.catalog import CATALOG
from powerphase.records.scores import GROUPS, RANKED, SCORES
from powerphase.report.boards import COLUMNS, Board, coupling_notes, like_the_best
from powerphase.report.entries import (
    OUTDATED,
    OUTDATED_NOTE,
    PAPER_DECIMALS,
    Entry,
    orders_forecasts,
)
from powerphase.report.sheet import MISSING
from powerphase.report.site.folder import MARK
from powerphase.synthesis.injections import ARCHETYPES, NO_LOAD, load_shapes
from powerphase.synthesis.signals import Signals

SIDES = {
    "Fidelity": tuple(name for name in COLUMNS if not SCORES[name].voltage_only),
    "Safety": tuple(name for name in COLUMNS if SCORES[name].voltage_only),
    "Lines": GROUPS["lines"],
}
"""The groups of columns, in their order."""

SHOWN = tuple(name for names in SIDES.values() for name in names)
"""All columns of scores."""

UNSCALED = ("coverage_80",)
"""The scores that are not shown in thousandths."""

NEGLIGIBLE = 1e-3
"""A number below this share of its column's largest number adds no decimals to the column."""

RANK = (
    f"Mean rank in {', '.join(SCORES[name].title for name in RANKED[:-1])} and "
    f"{SCORES[RANKED[-1]].title} among the ranked forecasters; 1 is best, and ties share the mean."
)
TIME = "Seconds of training and forecasting together, on the hardware of the row."

TITLES = {
    "models": "Models",
    "references": "References",
    "variants": "Variants, not ranked",
    "paper": "In the paper, on its own data",
}
"""The headings of the groups, in their order."""

FIGURE_DAY, FIGURE_DAYS = "2015-04-14", 3
"""The paper shows three days of April 2015 without naming them; these start on a Tuesday."""

SHOWN_ELSEWHERE = ("solved by", "fingerprint", "sources", "made with")
"""The facts of a data set that have their own lists on the page."""


@dataclass(frozen=True)
class Cell:
    """A number as text, the value it is sorted by, and its marks."""

    text: str
    deviation: str = ""
    value: float | None = None
    mark: str = ""
    """`best`, `second`, or empty."""
    like_best: bool = False
    """Whether a test cannot distinguish it from the best."""
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """One entry of the table."""

    name: str
    kind: str
    group: str
    is_outdated: bool
    coupling: str
    """`joint`, `marginal`, or empty."""
    seeds: tuple[int, ...]
    rank: Cell
    sides: Mapping[str, tuple[Cell, ...]]
    """The cells of each group of columns."""
    cost: Cell

    @property
    def has_ties(self) -> bool:
        """Whether a score of it cannot be distinguished from the best."""
        return any(cell.like_best for cells in self.sides.values() for cell in cells)


@dataclass(frozen=True)
class Group:
    """Lines that are compared with each other, under a heading."""

    key: str
    title: str
    lines: tuple[Line, ...]


def render_index(
    tables: list[dict[str, Any]],
    data_sets: list[dict[str, Any]],
    looks: list[dict[str, Any]],
    start: str,
) -> str:
    """The HTML of the index page; `start` is the key of the board that it begins with."""
    environment = Environment(
        loader=PackageLoader("powerphase.report.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("index.html.j2").render(
        mark=MARK,
        version=version("powerphase"),
        tables=tables,
        sets={facts["fingerprint"]: facts for facts in data_sets},
        scores=SCORES,
        units={name: unit_of(name) for name in SHOWN},
        meanings={name: meaning(name) for name in SCORES},
        rank=RANK,
        time=TIME,
        outdated=OUTDATED,
        outdated_note=OUTDATED_NOTE,
        coupling_note=coupling_notes(SHOWN)[0],
        looks=looks,
        start=start,
    )


def sides_of(board: Board) -> dict[str, tuple[str, ...]]:
    """The groups of columns of a board; those of which no entry has a score are left out."""
    entries = (*board.entries, *board.paper)
    return {
        side: names
        for side, names in SIDES.items()
        if any(entry.mean[name] is not None for entry in entries for name in names)
    }


def table_groups(board: Board, hardware: dict[str, str]) -> list[Group]:
    """The table of a board: models, references, variants, and the paper's rows.

    Args:
        board: the entries.
        hardware: the hardware of each entry, by name.
    """
    sides = sides_of(board)
    like = {name: like_the_best(board, name) for names in sides.values() for name in names}
    lines = [*_lines(board.entries, sides, hardware, like), *_lines(board.paper, sides, {}, {})]
    groups = [
        Group(key, title, tuple(line for line in lines if line.group == key))
        for key, title in TITLES.items()
    ]
    return [group for group in groups if group.lines]


def _lines(
    entries: Sequence[Entry],
    sides: Mapping[str, tuple[str, ...]],
    hardware: dict[str, str],
    like: Mapping[str, Collection[str]],
) -> Iterator[Line]:
    shown = [name for names in sides.values() for name in names]
    marks = {name: _marks(entries, name) for name in shown}
    ranks = sorted({entry.rank for entry in entries if entry.rank is not None})
    decimals = {
        name: 3 if name in UNSCALED else decimals_of(_scaled_means(entries, name)) for name in shown
    }
    for entry in entries:
        cells = {
            name: _score_cell(entry, name, decimals[name], marks[name], like.get(name, ()))
            for name in shown
        }
        yield Line(
            name=entry.name,
            kind=entry.kind,
            group=group_of(entry),
            is_outdated=entry.is_outdated,
            coupling=entry.coupling,
            seeds=entry.seeds,
            rank=_rank_cell(entry, ranks),
            sides={side: tuple(cells[name] for name in names) for side, names in sides.items()},
            cost=_cost_cell(entry, hardware.get(entry.name, "")),
        )


def group_of(entry: Entry) -> str:
    """The group of an entry; a smaller budget that is ranked counts as a model."""
    if entry.kind == "paper":
        return "paper"
    if entry.is_variant and entry.rank is None:
        return "variants"
    return "models" if entry.kind == "model" else "references"


def _marks(entries: Sequence[Entry], name: str) -> dict[Any, str]:
    """The lowest and second-lowest mean of the ranked entries, if lower is better."""
    if not orders_forecasts(name):
        return {}
    means = {entry.mean[name] for entry in entries if entry.rank is not None} - {None}
    return dict(zip(sorted(mean for mean in means if mean is not None), ("best", "second")))  # noqa: B905


def _scaled_means(entries: Sequence[Entry], name: str) -> list[float]:
    """The numbers of a column, as the table shows them."""
    means = [entry.mean[name] for entry in entries]
    return [mean * 10 ** _power(name) for mean in means if mean is not None]


def unit_of(name: str) -> str:
    """The unit of a column; normalised scores have none."""
    if name in UNSCALED:
        return "share"
    return "10⁻³ p.u." if SCORES[name].unit == "p.u." else "10⁻³"


def _score_cell(
    entry: Entry, name: str, decimals: int, marks: Mapping[Any, str], like: Collection[str]
) -> Cell:
    mean, std = entry.mean[name], entry.std[name]
    if mean is None:
        return Cell(MISSING)
    scaled = [value * 10 ** _power(name) for value in (mean, std) if value is not None]
    if entry.kind == "paper":
        texts = [f"{value:.{PAPER_DECIMALS - _power(name)}f}" for value in scaled]
    else:
        texts = [format_number(value, decimals) for value in scaled]
    return Cell(
        text=texts[0],
        deviation=texts[1] if len(texts) > 1 else "",
        value=mean,
        mark=marks.get(mean, "") if entry.rank is not None else "",
        like_best=entry.name in like,
        hint=f"{mean:.6g}",
    )


def _power(name: str) -> int:
    """The power of ten by which a column is multiplied."""
    return 0 if name in UNSCALED else 3


def meaning(name: str) -> str:
    """The question that a score answers, and how to read it."""
    score = SCORES[name]
    order = "Lower is better" if orders_forecasts(name) else "A description, not a ranking"
    rank = "; counts for the rank" if name in RANKED else ""
    proper = "; proper" if score.proper else ""
    return f"{score.question} [{score.unit}] {order}{rank}{proper}."


def decimals_of(values: Iterable[float]) -> int:
    """The decimals that show three digits of the smallest value that is not negligible."""
    sizes = [abs(value) for value in values if value]
    least = min((size for size in sizes if size > NEGLIGIBLE * max(sizes)), default=1.0)
    return max(0, 2 - floor(log10(least)))


def format_number(value: float, decimals: int) -> str:
    """A number with that many decimals; one too small for them is shown as `< 0.01`, not as 0."""
    text = f"{value:.{decimals}f}"
    if value and not float(text):
        return f"< {10.0**-decimals:.{decimals}f}"
    return text if value else "0"


def _rank_cell(entry: Entry, ranks: list[float]) -> Cell:
    if entry.rank is None:
        return Cell(MISSING)
    position = ranks.index(entry.rank)
    return Cell(f"{entry.rank:.2f}", "", entry.rank, ("best", "second", "")[min(position, 2)])


def _cost_cell(entry: Entry, hardware: str) -> Cell:
    """The time of training and forecasting together."""
    parts = {name: entry.cost[name] for name in ("train_s", "predict_s")}
    known = [seconds for seconds in parts.values() if seconds is not None]
    if not known:
        return Cell(MISSING)
    times = ", ".join(
        f"{word} {duration(seconds)}"
        for word, seconds in zip(("training", "forecasting"), parts.values(), strict=True)
        if seconds is not None
    )
    memory = entry.cost["peak_memory_gib"]
    hints = [times, f"{memory:.1f} GiB" if memory else "", hardware]
    return Cell(f"{sum(known):,.1f}", "", sum(known), hint="; ".join(filter(None, hints)))


def duration(seconds: float) -> str:
    """A time in a unit that keeps the number small."""
    for limit, unit, size in ((1, "ms", 1e-3), (90, "s", 1), (5400, "min", 60)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3600:.1f} h"


def grid_title(name: str) -> str:
    """The grid's name as its authors write it."""
    return CATALOG[name].title if name in CATALOG else name


def data_set_facts(store: Store, certificate: Certificate | None) -> dict[str, Any]:
    """What the page shows of a data set: recipe, provenance, load shapes, certificate."""
    m = store.manifest
    facts = dict(store_facts(store))
    size = facts.pop("")
    steps = sum(m.provenance)
    return {
        "grid": m.grid,
        "title": grid_title(m.grid),
        "edition": m.edition,
        "fingerprint": m.fingerprint,
        "facts": [
            *((label, text) for label, text in facts.items() if label not in SHOWN_ELSEWHERE),
            ("network", size),
        ],
        "recipe": list(m.recipe.items()),
        "provenance": [
            (name, f"{count:,}", count / max(steps, 1))
            for name, count in zip(PROVENANCE, m.provenance, strict=False)
        ],
        "sources": m.attribution,
        "made_with": list(m.made_with.items()),
        "certificate": certificate_facts(certificate) if certificate else None,
        "valid": certificate.valid if certificate else None,
        "archetypes": None if store.is_imported else _archetypes(store),
    }


def _archetypes(store: Store) -> dict[str, Any]:
    """The five load shapes over three days, and how many loads follow each."""
    m = store.manifest
    signals = Signals(store.time, store.signals_mw, m.edition, "; ".join(m.attribution))
    steps = _figure_steps(store.time)
    archetype = np.asarray(store.array("grid/archetype"))
    return {
        "start": str(store.time[steps.start]),
        "names": list(ARCHETYPES),
        "shapes": _round(load_shapes(signals)[steps].T),
        "buses": [int((archetype == k).sum()) for k in range(len(ARCHETYPES))],
        "without": int((archetype == NO_LOAD).sum()),
    }


def _figure_steps(time: Shaped[np.ndarray, " S"]) -> slice:
    """Three days in April, or the first three days of a record without them."""
    matches = np.flatnonzero(time == np.datetime64(FIGURE_DAY, "s"))
    first = int(matches[0]) if matches.size else 0
    return slice(first, min(first + FIGURE_DAYS * STEPS_PER_DAY, len(time)))


def _round(values: Float[np.ndarray, "K S"]) -> list[list[float]]:
    return [[round(float(value), 4) for value in line] for line in values]
