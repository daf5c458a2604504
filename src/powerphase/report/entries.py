"""Who stands in a table: rows that differ in nothing but the seed as one entry, and its rank.

The paper's numbers are entries too, ranked among themselves, since they rest on other data.
"""

import csv
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from io import StringIO
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from powerphase.errors import ResultError
from powerphase.records.result import Result
from powerphase.records.scores import RANKED, SCORES
from powerphase.registry import model_kind

Kind = Literal["model", "reference", "oracle", "paper"]

PAPER_SEEDS = (22, 42, 3142)

BUDGET_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "short": "a smaller budget than the reference's",
        "subsampled": "a loss over some random steps of each batch instead of all",
    }
)
"""Variants of these words alone are the model itself, trained with less; what each of them says."""

OWN_EDITION = "opsd-r"
"""The edition that is looked at where rows have several and none is asked for."""

COSTS = ("train_s", "predict_s", "score_s", "steps", "peak_memory_gib")

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
    """Mean rank over the ranked scores, 1 is best; none for what does not compete."""
    by_window: Mapping[str, tuple[float, ...] | None] = field(default_factory=dict)
    """Mean over seeds in each window; none where a seed lacks the score or the paper is silent."""

    @property
    def is_variant(self) -> bool:
        """Whether it is a model with something changed rather than the model itself."""
        return "+" in self.name

    @property
    def label(self) -> str:
        """The name, and what sets the entry apart from the models that compete."""
        return self.name + {"model": "", "paper": " (paper)"}.get(self.kind, " (reference)")


def edition_of(rows: Iterable[Result], asked: str | None, which: str) -> str:
    """The edition to look at: the one asked for, else the only one of the rows, else our own.

    Args:
        rows: among which it must be.
        asked: its name, if one was given.
        which: what the rows are, after the word `row`.
    """
    there = sorted({row.edition for row in rows})
    if not there:
        raise ResultError(f"no row {which}; score one")
    default = there[0] if len(there) == 1 else OWN_EDITION
    wanted = default if asked is None else asked
    if wanted in there:
        return wanted
    if asked is None:
        raise ResultError(
            f"rows {which} have more than one edition; choose by --edition: {', '.join(there)}"
        )
    raise ResultError(f"no row {which} has edition {asked!r}; choose of {', '.join(there)}")


@cache
def paper_entries(grid: str) -> tuple[Entry, ...]:
    """What the paper prints for the grid, to four decimals; its zeros need not be exact."""
    text = (files("powerphase.report") / "paper_results.csv").read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(StringIO(text)) if line["grid"] == grid]
    entries = []
    for model, printed in grouped(lines, lambda line: line["model"]).items():
        mean, std = (
            {name: None for name in SCORES} | {line["metric"]: float(line[key]) for line in printed}
            for key in ("mean", "std")
        )
        entries.append(Entry(model, "paper", PAPER_SEEDS, mean, std, dict.fromkeys(COSTS)))
    return with_ranks(entries)


@cache
def paper_ablations(model: str) -> Mapping[str, Mapping[str | None, Mapping[str, str]]]:
    """The paper's ablations as printed: by grid and variant, None for the full model, its scores.

    `crps_change` is among them for the variants; the paper does not name the seed.
    """
    text = (files("powerphase.report") / "paper_ablation.csv").read_text(encoding="utf-8")
    found: dict[str, dict[str | None, dict[str, str]]] = {}
    for line in csv.DictReader(StringIO(text)):
        if line["model"] == model:
            variants = found.setdefault(line["grid"], {})
            variants.setdefault(line["variant"] or None, {})[line["metric"]] = line["printed"]
    return found


def entry_of(rows: Sequence[Result]) -> Entry:
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
        kind=model_kind(first.model),
        seeds=seeds,
        mean={name: _over_seeds(fmean, values) for name, values in scores.items()},
        std={name: _over_seeds(stdev, values, least=2) for name, values in scores.items()},
        cost={name: _over_seeds(fmean, [row.cost[name] for row in rows]) for name in COSTS},
        by_window={name: _by_window([row.by_window[name] for row in rows]) for name in SCORES},
    )


def _over_seeds(
    statistic: Callable[[Any], float], values: Sequence[Any], least: int = 1
) -> float | None:
    """The statistic, unless a value is missing: that of some seeds is not that of all."""
    return None if None in values or len(values) < least else statistic(values)


def _by_window(seeds: Sequence[Sequence[float] | None]) -> tuple[float, ...] | None:
    """The mean over seeds in each window, unless a seed has none."""
    found = [own for own in seeds if own is not None]
    return tuple(map(fmean, zip(*found, strict=True))) if len(found) == len(seeds) else None


def with_ranks(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries from best to worst, with the ranks of those that compete; the oracle is last."""
    names = {entry.name for entry in entries}
    competing = [entry for entry in entries if _competes(entry, names)]
    order = [places([entry.mean[name] for entry in competing]) for name in RANKED]
    ranks = {entry.name: fmean(own) for entry, *own in zip(competing, *order, strict=True)}
    ranked = [replace(entry, rank=ranks.get(entry.name)) for entry in entries]

    def place(entry: Entry) -> tuple[Any, ...]:
        by = entry.mean["crps"] if entry.rank is None else entry.rank
        return entry.kind == "oracle", entry.rank is None, by, entry.name

    return tuple(sorted(ranked, key=place))


def _competes(entry: Entry, names: Collection[str]) -> bool:
    """Whether it takes a rank: it stands for its model, and is not the oracle."""
    model = entry.name.partition("+")[0]
    return entry.kind != "oracle" and representative(model, names) == entry.name


def representative(model: str, names: Iterable[str]) -> str | None:
    """The name under which a model stands in a table: its own, or else that of its best budget.

    It is chosen by what was declared, never by scores: the fewest words of less, and of as many
    the one without `short`, since it takes all steps.
    """
    own = [name for name in names if name.partition("+")[0] == model]
    known = [name for name in own if budget_words([name]) or name == model]
    less = {name: budget_words([name]) for name in known}
    return min(known, key=lambda name: (len(less[name]), "short" in less[name]), default=None)


def budget_words(names: Iterable[str]) -> tuple[str, ...]:
    """The words of less that stand in these names, of variants that have no other words."""
    variants = [name.partition("+")[2].split("-") for name in names]
    found = {word for words in variants if BUDGET_WORDS.keys() >= set(words) for word in words}
    return tuple(word for word in BUDGET_WORDS if word in found)


def explained(names: Iterable[str]) -> str:
    """What the words of less in these names say; nothing where there are none."""
    return "; ".join(f"+{word} is {BUDGET_WORDS[word]}" for word in budget_words(names))


def places(values: Sequence[Any]) -> list[float]:
    """The place of each value, 1 for the lowest; values that tie share the mean of their places."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def orders_forecasts(name: str) -> bool:
    """Whether less of the score is better; of a mere diagnostic, only if the paper ranks by it."""
    return name in RANKED or not SCORES[name].diagnostic


def grouped(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items of each key, in the order in which keys and items come."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
