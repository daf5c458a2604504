"""The entries of a table: rows that differ only in the seed, as one entry with a rank.

The paper's numbers are entries too, ranked among themselves because their data differ.
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
from powerphase.records.result import FLAT_SLOPE, Result
from powerphase.records.scores import RANKED, SCORES, find_score
from powerphase.registry import model_kind, results_version

Kind = Literal["model", "reference", "oracle", "paper"]

PAPER_SEEDS = (22, 42, 3142)

BUDGET_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "short": "a smaller budget than the default",
        "subsampled": "a loss over some random steps of each batch instead of all",
    }
)
"""What each word says. A variant of these words alone is the model itself with a smaller budget."""

TUNED = "tuned"
"""The variant with the settings that were best on validation windows. It competes like the model
itself, so a network has two rows in a ranking."""
TUNED_NOTE = f"+{TUNED} has the settings that were best in a few trials on validation windows."

DEFAULT_EDITION = "opsd-r"
"""The edition that is chosen where rows have several and none is named."""

RANK = "rank"
"""What sorts a table by the paper's Rank instead of a score."""

COSTS = ("train_s", "predict_s", "score_s", "steps", "peak_memory_gib")

OUTDATED = "†"
"""The mark of entries that the code would no longer give."""
OUTDATED_NOTE = (
    f"{OUTDATED} marks rows of an older or an unknown version of the model, whose code may give "
    "others now."
)

PRETRAINED = "‡"
"""The mark of entries whose model may have seen the signals before."""
PRETRAINED_NOTE = (
    f"{PRETRAINED} marks models that were pretrained on large collections of series, which may "
    "contain the signals of this edition."
)

FAILED = "§"
"""The mark of entries whose model failed on some series."""
FAILED_NOTE = (
    f"{FAILED} marks models that failed on some series; their rows name these, and what stands for "
    "them."
)

FLAT = "flat"
"""The mark of entries that did not learn the day."""
FLAT_NOTE = (
    f"Rows marked {FLAT} did not learn the day: the daily slope of every variable is below "
    f"{FLAT_SLOPE:g}, where 1 is the whole daily cycle and 0 a flat line."
)

PAPER_DECIMALS = 4
"""The paper rounds its means and deviations to this many decimals."""

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
    """Sample standard deviation over seeds; None for a single seed."""
    cost: Means
    rank: float | None = None
    """Mean rank over the ranked scores, 1 is best; None if the entry is not ranked."""
    by_window: Mapping[str, tuple[float, ...] | None] = field(default_factory=dict)
    """Mean over seeds in each window; None where a seed, or the paper, lacks the score."""
    is_outdated: bool = False
    """Whether a seed is not known to be of the version of results that the code gives now."""
    is_flat: bool = False
    """Whether a seed does not follow the day, see `Result.is_flat`."""
    joint: bool | None = None
    """Whether each scenario is one future of the whole grid; None if unknown."""
    may_have_seen: bool = False
    """Whether the pretraining of its model may have contained the signals of the data."""
    has_failures: bool = False
    """Whether the model failed on some series of a seed, see `Result.failed`."""

    @property
    def is_variant(self) -> bool:
        """Whether it is a variant of a model."""
        return "+" in self.name

    @property
    def coupling(self) -> str:
        """`joint` or `marginal`, as its scenarios are; empty if unknown."""
        return "" if self.joint is None else "joint" if self.joint else "marginal"

    @property
    def label(self) -> str:
        """The name, with marks for references, the paper, and flat or outdated entries."""
        kind = {"model": [], "paper": ["paper"]}.get(self.kind, ["reference"])
        words = [*kind, *[FLAT] * self.is_flat]
        name = f"{self.name} ({', '.join(words)})" if words else self.name
        marks = [OUTDATED] * self.is_outdated + [PRETRAINED] * self.may_have_seen
        marks += [FAILED] * self.has_failures
        return " ".join([name, *marks])


def label_notes(entries: Iterable[Entry]) -> list[str]:
    """What the marks in the labels of these entries mean."""
    known = list(entries)
    tuned = [TUNED_NOTE] * any(entry.name.endswith(f"+{TUNED}") for entry in known)
    flat = [FLAT_NOTE] * any(entry.is_flat for entry in known)
    outdated = [OUTDATED_NOTE] * any(entry.is_outdated for entry in known)
    pretrained = [PRETRAINED_NOTE] * any(entry.may_have_seen for entry in known)
    failed = [FAILED_NOTE] * any(entry.has_failures for entry in known)
    return tuned + flat + outdated + pretrained + failed


def edition_of(rows: Iterable[Result], requested: str | None, which: str) -> str:
    """The edition to use: the requested one, else the only one of the rows, else the default.

    Args:
        rows: the rows to choose from.
        requested: the name of an edition, if one was given.
        which: describes the rows in errors, after the word `row`.
    """
    editions = sorted({row.edition for row in rows})
    if not editions:
        raise ResultError(f"no row {which}; score one")
    default = editions[0] if len(editions) == 1 else DEFAULT_EDITION
    choice = default if requested is None else requested
    if choice in editions:
        return choice
    if requested is None:
        raise ResultError(
            f"rows {which} have more than one edition; choose one with --edition: "
            f"{', '.join(editions)}"
        )
    raise ResultError(
        f"no row {which} has edition {requested!r}; choose one of {', '.join(editions)}"
    )


@cache
def paper_entries(grid: str) -> tuple[Entry, ...]:
    """The paper's entries on the grid, to four decimals; its zeros need not be exact."""
    text = (files("powerphase.report") / "paper_results.csv").read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(StringIO(text)) if line["grid"] == grid]
    entries = []
    for model, printed in group_by(lines, lambda line: line["model"]).items():
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
    by_grid: dict[str, dict[str | None, dict[str, str]]] = {}
    for line in csv.DictReader(StringIO(text)):
        if line["model"] == model:
            variants = by_grid.setdefault(line["grid"], {})
            variants.setdefault(line["variant"] or None, {})[line["metric"]] = line["printed"]
    return by_grid


def entry_of(rows: Sequence[Result]) -> Entry:
    """The seeds of one forecaster as one entry."""
    rows = sorted(rows, key=lambda row: row.seed)
    first, seeds = rows[0], tuple(row.seed for row in rows)
    for row in rows:
        if seeds.count(row.seed) > 1:
            raise ResultError(f"{row.path}: there are several rows of this seed; keep one")
        if row.config != first.config:
            raise ResultError(
                f"{row.path}: its config is not that of seed {first.seed}, so they are two "
                "forecasters; give one of them a variant"
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
        joint=first.joint if len({row.joint for row in rows}) == 1 else None,
        is_flat=any(row.is_flat for row in rows),
        is_outdated=any(map(_is_outdated, rows)),
        may_have_seen=any(row.may_have_seen_signals for row in rows),
        has_failures=any(row.failed_series for row in rows),
    )


def _is_outdated(row: Result) -> bool:
    """Whether the code may give other scenarios now."""
    return any((version or 0) < results_version(model) for model, version in row.model_versions)


def _over_seeds(
    statistic: Callable[[Any], float], values: Sequence[Any], least: int = 1
) -> float | None:
    """The statistic over all seeds; None if a value is missing."""
    return None if None in values or len(values) < least else statistic(values)


def _by_window(seeds: Sequence[Sequence[float] | None]) -> tuple[float, ...] | None:
    """The mean over seeds in each window; None if a seed lacks the score."""
    known = [windows for windows in seeds if windows is not None]
    return tuple(map(fmean, zip(*known, strict=True))) if len(known) == len(seeds) else None


def with_ranks(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries in order of CRPS, ranked where they compete; the oracle is last."""
    names = {entry.name for entry in entries}
    competing = [entry for entry in entries if _competes(entry, names)]
    order = [places([entry.mean[name] for entry in competing]) for name in RANKED]
    ranks = {entry.name: fmean(r) for entry, *r in zip(competing, *order, strict=True)}
    return in_order([replace(entry, rank=ranks.get(entry.name)) for entry in entries])


def in_order(entries: Iterable[Entry], sort: str = "crps") -> tuple[Entry, ...]:
    """The entries from best to worst by a score, or by `rank`.

    Entries that are not ranked follow those that are, and the oracle is last.
    """

    def sort_key(entry: Entry) -> tuple[Any, ...]:
        value = entry.rank if sort == RANK else entry.mean[sort]
        value = entry.mean["crps"] if value is None and sort == RANK else value
        oracle, ranked = entry.kind == "oracle", entry.rank is not None
        return oracle, not ranked, value is None, value or 0.0, entry.name

    return tuple(sorted(entries, key=sort_key))


def sort_name(text: str) -> str:
    """What a table may be sorted by, from its name or title: `rank`, or a score."""
    return RANK if text.lower() == RANK else ordering_score(text)


def ordering_score(text: str) -> str:
    """The score with this name or title, which must order forecasts."""
    known = [name for name in SCORES if orders_forecasts(name)]
    return find_score(text, known, "score that orders forecasts")


def _competes(entry: Entry, names: Collection[str]) -> bool:
    """Whether it is ranked: it represents its model or is tuned, and is not the oracle."""
    model, _, variant = entry.name.partition("+")
    if entry.kind == "oracle":
        return False
    return variant == TUNED or representative(model, names) == entry.name


def representative(model: str, names: Iterable[str]) -> str | None:
    """The name that represents a model in a table: its own, or that of its largest budget.

    The choice depends on names, never on scores: the fewest budget words, and among equals the one
    without `short`, which takes all steps.
    """
    variants = [name for name in names if name.partition("+")[0] == model]
    words = {name: budget_words([name]) for name in variants}
    budgets = [name for name in variants if words[name] or name == model]
    return min(budgets, key=lambda name: (len(words[name]), "short" in words[name]), default=None)


def budget_words(names: Iterable[str]) -> tuple[str, ...]:
    """The budget words in these names, from variants that have no other words."""
    variants = [name.partition("+")[2].split("-") for name in names]
    used = {word for words in variants if BUDGET_WORDS.keys() >= set(words) for word in words}
    return tuple(word for word in BUDGET_WORDS if word in used)


def budget_notes(names: Iterable[str]) -> str:
    """What the budget words in these names mean; empty if there are none."""
    return "; ".join(f"+{word} is {BUDGET_WORDS[word]}" for word in budget_words(names))


def places(values: Sequence[Any]) -> list[float]:
    """The rank of each value, 1 for the lowest; tied values share the mean of their ranks."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def orders_forecasts(name: str) -> bool:
    """Whether a lower score is better; diagnostics count only if the paper ranks by them."""
    return name in RANKED or not SCORES[name].diagnostic


def group_by(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """The items by key, in the order in which keys and items appear."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
