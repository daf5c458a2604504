"""A model of the paper beside what the paper prints for it: grid by grid, and its ablation.

The paper rounds, so a difference may be nothing but rounding. Every distance here is therefore the
least that the printed digits allow, in standard deviations of single trainings rather than of
means over seeds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import hypot
from typing import Literal

from powerphase.errors import ResultError, UnknownName
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.records.result import Result
from powerphase.records.scores import RANKED, SCORES
from powerphase.report.entries import (
    BUDGET_WORDS,
    PAPER_DECIMALS,
    Entry,
    edition_of,
    explained,
    orders_forecasts,
    paper_ablations,
    paper_entries,
    representative,
)
from powerphase.report.leaderboard import leaderboard
from powerphase.report.sheet import MISSING, Cell, Sheet, number
from powerphase.report.statistics import SEED_DEVIATIONS, kendall, mean_ranks
from powerphase.task.protocol import PAPER_TASK

Difference = Literal["better", "worse", "lower", "higher"]
Scores = Mapping[str, float | None]

ONE_UNIT = 10.0**-PAPER_DECIMALS
HALF_A_UNIT = ONE_UNIT / 2
"""How far a mean or deviation of the paper may lie from what it prints."""

ON_PAPER = f"on the paper's task and grids ({', '.join(PAPER_GRIDS)})"
HEADER = ("grid", "score", "seeds", "ours", "paper", "ratio", "std apart")
ABLATION_SCORES = ("crps", "distortion", "safety_mbrier", "necv", "cvar_0.1")
ABLATION_HEADER = ("variant", "CRPS", "change", *(SCORES[n].title for n in ABLATION_SCORES[1:]))

HOW_TO_READ = (
    "The distance is the least that the printed digits allow: |ours − paper| less half a unit of "
    "the paper's last digit, over √(a² + b²), where a is the paper's deviation plus half a unit of "
    "its last digit, and b ours, which is left out where there is one seed. What lies beyond two "
    "is better or worse, or merely lower or higher where a score does not order forecasts."
)


@dataclass(frozen=True)
class Pair:
    """One score on one grid: ours over seeds, none where there is no row, and the paper's."""

    grid: str
    score: str
    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    """Sample standard deviation over seeds; none for a single seed."""
    paper_mean: float
    paper_std: float

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's; none where the paper prints zero."""
        return None if self.mean is None or not self.paper_mean else self.mean / self.paper_mean

    @property
    def distance(self) -> float | None:
        """How many standard deviations the two lie apart, at the least.

        Of a single seed the deviation is unknown, and the paper's has to do.
        """
        if self.mean is None:
            return None
        gap = max(0.0, abs(self.mean - self.paper_mean) - HALF_A_UNIT)
        return gap / hypot(self.paper_std + HALF_A_UNIT, self.std or 0.0)

    @property
    def difference(self) -> Difference | None:
        """What ours is, if it lies further than two deviations from the paper's."""
        if self.mean is None or self.distance is None or self.distance <= SEED_DEVIATIONS:
            return None
        if orders_forecasts(self.score):
            return "better" if self.mean < self.paper_mean else "worse"
        return "lower" if self.mean < self.paper_mean else "higher"


@dataclass(frozen=True)
class Ablated:
    """One variant, or the full model, with one seed; none of ours where there is no row."""

    variant: str | None
    ours: Scores | None
    change: float | None
    """CRPS relative to that of the full model with the same seed, less 1."""
    printed: Mapping[str, str]
    """The paper's, digit by digit."""


@dataclass(frozen=True)
class Ablation:
    """The full model and the paper's variants of it on one grid with one seed."""

    grid: str
    seed: int
    lines: tuple[Ablated, ...]


@dataclass(frozen=True)
class Comparison:
    """A model on an edition of the data, beside the paper's on its own."""

    model: str
    edition: str
    pairs: tuple[Pair, ...]
    ablations: tuple[Ablation, ...]


def compare(results: Iterable[Result], model: str, edition: str | None = None) -> Comparison:
    """The model's rows on the paper's task and grids, beside what the paper prints.

    Without an edition, it is chosen by `entries.edition_of`.
    """
    known = _paper_models()
    if model not in known:
        raise UnknownName.among("model of the paper", model, known)
    rows = [row for row in _on_paper(results) if row.model == model]
    edition = edition_of(rows, edition, f"of {model} {ON_PAPER}")
    chosen = [row for row in rows if row.edition == edition]
    ours, ablations = _entries(chosen), _ablations(chosen, model)
    pairs = [pair for grid in PAPER_GRIDS for pair in _pairs(grid, model, ours)]
    if not ablations and all(pair.mean is None for pair in pairs):
        raise ResultError(
            f"no row of {model} in edition {edition!r} is of what the paper prints; score {model} "
            "itself, or one of its ablations"
        )
    return Comparison(model, edition, tuple(pairs), tuple(ablations))


def sheets(comparison: Comparison) -> list[Sheet]:
    """The tables: grid by grid and score by score, then each ablation."""
    lines = [_line(pair) for pair in comparison.pairs]
    grids = dict.fromkeys(pair.grid for pair in comparison.pairs)
    main = Sheet(
        title=f"{comparison.model} beside the paper, edition {comparison.edition}",
        header=HEADER,
        groups=tuple(tuple(line for line in lines if line[0][0] == grid) for grid in grids),
        above="Mean ± standard deviation over seeds, the paper's as printed and on its own data. "
        "Where a model has no row of its own, that of its best smaller budget stands for it: "
        f"{'; '.join(f'+{word}, {says}' for word, says in BUDGET_WORDS.items())}.",
        below=(HOW_TO_READ,),
        names=2,
        dispensable=("seeds", "ratio"),
    )
    return [main, *(_ablation_sheet(comparison, found) for found in comparison.ablations)]


def overview(results: Iterable[Result], edition: str | None = None) -> Sheet:
    """All models of the paper on all its grids, ours beside the paper's, also what is missing."""
    edition, ours = _of_paper_models(results, edition)
    titles = [SCORES[name].title for name in RANKED]
    columns = [column for title in titles for column in (title, f"{title} (paper)")]
    less = explained(one.name for one in ours.values() if one.rank is not None)
    return Sheet(
        title=f"The paper's models beside the paper, edition {edition}",
        header=("grid", "model", "seeds", *columns),
        groups=tuple(
            tuple(
                _overview_line(grid, paper, _competing(ours, grid, paper.name)) for paper in of_grid
            )
            for grid, of_grid in ((grid, paper_entries(grid)) for grid in PAPER_GRIDS)
        ),
        above="In the order of the paper's Rank. Means over seeds, the paper's of three and on its "
        "own data.",
        below=(f"{less}.",) * bool(less),
        names=2,
        dispensable=("seeds", *reversed(columns[2:])),
    )


def _overview_line(grid: str, paper: Entry, own: Entry | None) -> tuple[Cell, ...]:
    numbers = [
        text
        for name in RANKED
        for text in (
            number(own.mean[name] if own else None),
            number(paper.mean[name], decimals=PAPER_DECIMALS),
        )
    ]
    name, seeds = (own.name, str(len(own.seeds))) if own else (paper.name, MISSING)
    return tuple((text, False) for text in (grid, name, seeds, *numbers))


def agreement(results: Iterable[Result], edition: str | None = None) -> Sheet:
    """How far our order of the paper's models is the paper's, grid by grid and score by score."""
    edition, ours = _of_paper_models(results, edition)
    return Sheet(
        title=f"The order of the paper's models beside the paper's, edition {edition}",
        header=("grid", "models", *(SCORES[name].title for name in RANKED), "Rank"),
        groups=(tuple(_agreement_line(grid, ours) for grid in PAPER_GRIDS),),
        above="Kendall's τ over the models that both have: 1 is the same order, 0 none, −1 the "
        "opposite. Rank is taken among these models alone.",
    )


def _agreement_line(grid: str, ours: Mapping[tuple[str, str], Entry]) -> tuple[Cell, ...]:
    found = [(_competing(ours, grid, paper.name), paper) for paper in paper_entries(grid)]
    both = [(own, paper) for own, paper in found if own is not None]
    sides = [own for own, _ in both], [paper for _, paper in both]
    taus = [
        kendall(*(mean_ranks(entries, names) for entries in sides))
        for names in (*((name,) for name in RANKED), RANKED)
    ]
    texts = (grid, str(len(both)), *(number(tau, decimals=2) for tau in taus))
    return tuple((text, False) for text in texts)


def as_markdown(comparison: Comparison) -> str:
    """The tables as Markdown."""
    return "\n".join(sheet.as_markdown() for sheet in sheets(comparison))


def _paper_models() -> set[str]:
    return {entry.name for grid in PAPER_GRIDS for entry in paper_entries(grid)}


def _of_paper_models(
    results: Iterable[Result], edition: str | None
) -> tuple[str, dict[tuple[str, str], Entry]]:
    """The edition to look at, and what its rows say of the paper's models on its task and grids."""
    known = _paper_models()
    rows = [row for row in _on_paper(results) if row.model in known]
    edition = edition_of(rows, edition, f"of the paper's models {ON_PAPER}")
    return edition, _entries([row for row in rows if row.edition == edition])


def _on_paper(results: Iterable[Result]) -> list[Result]:
    """The rows that have the paper's task, on its grids."""
    return [row for row in results if row.task == PAPER_TASK and row.grid in PAPER_GRIDS]


def _entries(rows: Sequence[Result]) -> dict[tuple[str, str], Entry]:
    """What the rows say, by grid and name; on each grid they must rest on the same data."""
    boards = leaderboard(rows, paper=False)
    for board, other in pairwise(boards):
        if board.grid == other.grid:
            places = (f"version {b.task_version}, {b.fingerprint[:12]}" for b in (board, other))
            raise ResultError(
                f"{board.title}: rows of more than one task version or data set "
                f"({'; '.join(places)}); give those of one"
            )
    return {(board.grid, entry.name): entry for board in boards for entry in board.entries}


def _pairs(grid: str, model: str, ours: Mapping[tuple[str, str], Entry]) -> Iterator[Pair]:
    """All that the paper prints for the model on the grid, with what we have beside it."""
    own = _competing(ours, grid, model)
    for paper in (entry for entry in paper_entries(grid) if entry.name == model):
        for name in SCORES:
            mean, std = paper.mean[name], paper.std[name]
            if mean is not None and std is not None:
                values = (own.seeds, own.mean[name], own.std[name]) if own else ((), None, None)
                yield Pair(grid, name, *values, mean, std)


def _competing(ours: Mapping[tuple[str, str], Entry], grid: str, model: str) -> Entry | None:
    """The model's entry, or where it has none that of its best budget."""
    name = representative(model, [name for place, name in ours if place == grid])
    return None if name is None else ours[grid, name]


def _ablations(rows: Iterable[Result], model: str) -> list[Ablation]:
    """One for each grid and seed with a row of a variant that the paper has."""
    found = []
    for grid, printed in paper_ablations(model).items():
        own = {(row.variant, row.seed): row.scores for row in rows if row.grid == grid}
        for seed in sorted({seed for variant, seed in own if variant and variant in printed}):
            scores = {variant: own.get((variant, seed)) for variant in printed}
            lines = (
                Ablated(variant, scores[variant], _change(scores, variant), texts)
                for variant, texts in printed.items()
            )
            found.append(Ablation(grid, seed, tuple(lines)))
    return found


def _change(scores: Mapping[str | None, Scores | None], variant: str | None) -> float | None:
    """The variant's CRPS over the full model's, less 1, where both are there."""
    crps, full = ((own or {}).get("crps") for own in (scores[variant], scores[None]))
    return None if variant is None or crps is None or not full else crps / full - 1


def _line(pair: Pair) -> tuple[Cell, ...]:
    # The paper's 0.0001 is anything from half to one and a half of that.
    digits = 1 if pair.paper_mean < 10 * ONE_UNIT else 2
    far, apart = pair.difference is not None, number(pair.distance, decimals=1)
    return (
        (pair.grid, False),
        (SCORES[pair.score].title, False),
        (str(len(pair.seeds)) if pair.seeds else MISSING, False),
        (number(pair.mean, pair.std), False),
        (number(pair.paper_mean, pair.paper_std, PAPER_DECIMALS), False),
        (number(pair.ratio, decimals=digits), False),
        (f"{apart} {pair.difference}" if far else apart, far),
    )


def _ablation_sheet(comparison: Comparison, ablation: Ablation) -> Sheet:
    place = f"{ablation.grid}, edition {comparison.edition}, seed {ablation.seed}"
    return Sheet(
        title=f"{comparison.model} and its ablations beside the paper, {place}",
        header=ABLATION_HEADER,
        groups=tuple(tuple(_ablated_lines(line)) for line in ablation.lines),
        above="One seed each; the paper does not name its own. The change is that of CRPS against "
        "the full model of the same seed.",
        dispensable=("NECV", "CVaR_0.1", "Safety_mBrier"),
    )


def _ablated_lines(line: Ablated) -> Iterator[tuple[Cell, ...]]:
    """Ours, and below it the paper's as printed, but for powers of ten."""
    name = line.variant or "full"
    own = [number((line.ours or {}).get(score)) for score in ABLATION_SCORES]
    paper = [f"{Decimal(line.printed[score]):f}" for score in ABLATION_SCORES]
    change = MISSING if line.change is None else f"{line.change:+.1%}"
    own.insert(1, change)
    paper.insert(1, line.printed.get("crps_change", MISSING))
    yield tuple((text, False) for text in (name, *own))
    yield tuple((text, False) for text in (f"{name} (paper)", *paper))
