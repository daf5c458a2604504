"""The paper's models compared with the paper's numbers: grid by grid, and the ablations.

The paper rounds, so a difference may be nothing but rounding. Every distance here is therefore the
smallest that the printed digits allow, in standard deviations of single trainings rather than of
means over seeds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import hypot
from typing import Literal

from powerphase.errors import ResultError, UnknownName
from powerphase.grid.catalog import PAPER_GRIDS
from powerphase.records.result import Result
from powerphase.records.scores import RANKED, SCORES
from powerphase.report.boards import leaderboard
from powerphase.report.entries import (
    PAPER_DECIMALS,
    Entry,
    budget_notes,
    edition_of,
    group_by,
    orders_forecasts,
    paper_ablations,
    paper_entries,
    representative,
)
from powerphase.report.sheet import MISSING, Cell, Sheet, number
from powerphase.report.statistics import SEED_DEVIATIONS, kendall, mean_ranks
from powerphase.task.protocol import PAPER_TASK

Difference = Literal["better", "worse", "lower", "higher"]
Scores = Mapping[str, float | None]

ONE_UNIT = 10.0**-PAPER_DECIMALS
HALF_A_UNIT = ONE_UNIT / 2
"""The rounding error of a mean or deviation of the paper."""

ON_PAPER = f"on the paper's task and grids ({', '.join(PAPER_GRIDS)})"
HEADER = ("grid", "score", "seeds", "ours", "paper", "ratio", "std apart")
ABLATION_SCORES = ("crps", "distortion", "safety_mbrier", "necv", "cvar_0.1")
ABLATION_HEADER = ("variant", "CRPS", "change", *(SCORES[n].title for n in ABLATION_SCORES[1:]))

HOW_TO_READ = (
    "The distance is the smallest that the printed digits allow: |ours − paper| minus half a unit "
    "of "
    "the paper's last digit, over √(a² + b²), where a is the paper's deviation plus half a unit of "
    "its last digit, and b is ours, omitted for a single seed. Beyond two, a score is better or "
    "worse, or merely lower or higher if it does not order forecasts."
)


@dataclass(frozen=True)
class Pair:
    """One score on one grid: ours over seeds (None without a row) and the paper's."""

    grid: str
    score: str
    seeds: tuple[int, ...]
    mean: float | None
    std: float | None
    """Sample standard deviation over seeds; None for a single seed."""
    paper_mean: float
    paper_std: float
    name: str = ""
    """The model, or the smaller budget that represents it; empty without a row."""

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's; None where the paper prints zero."""
        return None if self.mean is None or not self.paper_mean else self.mean / self.paper_mean

    @property
    def distance(self) -> float | None:
        """The smallest possible distance of the two in standard deviations.

        The deviation of a single seed is unknown; then the paper's is used alone.
        """
        if self.mean is None:
            return None
        gap = max(0.0, abs(self.mean - self.paper_mean) - HALF_A_UNIT)
        return gap / hypot(self.paper_std + HALF_A_UNIT, self.std or 0.0)

    @property
    def difference(self) -> Difference | None:
        """How ours differs, if it is more than two deviations from the paper's."""
        if self.mean is None or self.distance is None or self.distance <= SEED_DEVIATIONS:
            return None
        if orders_forecasts(self.score):
            return "better" if self.mean < self.paper_mean else "worse"
        return "lower" if self.mean < self.paper_mean else "higher"


@dataclass(frozen=True)
class Ablated:
    """One variant, or the full model, with one seed; ours is None without a row."""

    variant: str | None
    ours: Scores | None
    change: float | None
    """CRPS relative to the full model with the same seed, minus 1."""
    printed: Mapping[str, str]
    """The paper's numbers as printed."""


@dataclass(frozen=True)
class Ablation:
    """The full model and the paper's variants of it on one grid with one seed."""

    grid: str
    seed: int
    lines: tuple[Ablated, ...]


@dataclass(frozen=True)
class Comparison:
    """A model on an edition of the data, compared with the paper's numbers."""

    model: str
    edition: str
    pairs: tuple[Pair, ...]
    ablations: tuple[Ablation, ...]


def compare(results: Iterable[Result], model: str, edition: str | None = None) -> Comparison:
    """The model's rows on the paper's task and grids, compared with the paper's numbers.

    Without an edition, `entries.edition_of` chooses it.
    """
    known = _paper_models()
    if model not in known:
        raise UnknownName.among("model of the paper", model, known)
    rows = [row for row in _rows_of_paper_task(results) if row.model == model]
    edition = edition_of(rows, edition, f"of {model} {ON_PAPER}")
    chosen = [row for row in rows if row.edition == edition]
    ours, ablations = _entries(chosen), _ablations(chosen, model)
    pairs = [pair for grid in PAPER_GRIDS for pair in _pairs(grid, model, ours)]
    if not ablations and all(pair.mean is None for pair in pairs):
        raise ResultError(
            f"no row of {model} in edition {edition!r} has a counterpart in the paper; score "
            f"{model} "
            "itself or one of its ablations"
        )
    return Comparison(model, edition, tuple(pairs), tuple(ablations))


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """The tables: grid by grid and score by score, then each ablation."""
    by_grid = group_by(comparison.pairs, lambda pair: pair.grid)
    scored = {grid: pairs for grid, pairs in by_grid.items() if pairs[0].seeds}
    absent = [grid for grid in by_grid if grid not in scored]
    used = budget_notes(pair.name for pairs in scored.values() for pair in pairs[:1])
    main = Sheet(
        title=f"{comparison.model} and the paper, edition {comparison.edition}",
        header=HEADER,
        groups=tuple(tuple(map(_line, pairs)) for pairs in scored.values()),
        above="Mean ± standard deviation over seeds; the paper's as printed, on its data.",
        below=(
            HOW_TO_READ,
            *(f"Where no row has the full budget, the largest smaller one is shown: {used}.",)
            * bool(used),
            *(f"No row on {', '.join(absent)}.",) * bool(absent),
        ),
        names=2,
        dispensable=("seeds", "ratio"),
    )
    sheets = [main] if scored else []
    return [*sheets, *(_ablation_sheet(comparison, ablation) for ablation in comparison.ablations)]


def overview_sheets(results: Iterable[Result], edition: str | None = None) -> list[Sheet]:
    """All models in one table; the agreement of the two orders where models can be ordered."""
    rows = list(results)
    order = agreement(rows, edition)
    return [overview(rows, edition), *[order] * bool(order.groups[0])]


def overview(results: Iterable[Result], edition: str | None = None) -> Sheet:
    """All models of the paper with a row on its grids, ours and the paper's; the rest in a line."""
    edition, ours = _paper_model_entries(results, edition)
    titles = [SCORES[name].title for name in RANKED]
    columns = [column for title in titles for column in (title, f"{title} (paper)")]
    budgets = budget_notes(entry.name for entry in ours.values() if entry.rank is not None)
    printed = [(grid, paper) for grid in PAPER_GRIDS for paper in paper_entries(grid)]
    lines = [(grid, paper, _competing(ours, grid, paper.name)) for grid, paper in printed]
    shown = group_by([line for line in lines if line[2] is not None], lambda line: line[0])
    without = _missing_rows(printed, {(grid, paper.name) for grid, paper, ours in lines if ours})
    return Sheet(
        title=f"The paper's models, edition {edition}",
        header=("grid", "model", "seeds", *columns),
        groups=tuple(
            tuple(_overview_line(grid, paper, entry) for grid, paper, entry in of_grid if entry)
            for of_grid in shown.values()
        ),
        above="In the order of the paper's CRPS. Means over seeds; the paper's over three seeds, "
        "on its data.",
        below=(
            *(f"{budgets}.",) * bool(budgets),
            *(f"No row of {without}.",) * bool(without),
        ),
        names=2,
        dispensable=("seeds", *reversed(columns[2:])),
    )


def _missing_rows(printed: Sequence[tuple[str, Entry]], scored: Collection[tuple[str, str]]) -> str:
    """The models of the paper without a row; a model without any is named once, without grids."""
    grids = group_by(printed, lambda item: item[1].name)
    absent = {name: [g for g, _ in of if (g, name) not in scored] for name, of in grids.items()}
    wholly = [name for name, missing in absent.items() if len(missing) == len(grids[name])]
    partly = {name: missing for name, missing in absent.items() if missing and name not in wholly}
    parts = [", ".join(wholly)] * bool(wholly)
    return "; ".join([*parts, *(f"{name} on {', '.join(on)}" for name, on in partly.items())])


def _overview_line(grid: str, paper: Entry, ours: Entry) -> tuple[Cell, ...]:
    numbers = [
        text
        for name in RANKED
        for text in (
            number(ours.mean[name]),
            number(paper.mean[name], decimals=PAPER_DECIMALS),
        )
    ]
    texts = (grid, ours.name, str(len(ours.seeds)), *numbers)
    return tuple((text, False) for text in texts)


def agreement(results: Iterable[Result], edition: str | None = None) -> Sheet:
    """How our order of the paper's models agrees with the paper's, by grid and score."""
    edition, ours = _paper_model_entries(results, edition)
    lines = {grid: _agreement_line(grid, ours) for grid in PAPER_GRIDS}
    alone = [grid for grid, line in lines.items() if line is None]
    return Sheet(
        title=f"The order of the paper's models and the paper's order, edition {edition}",
        header=("grid", "models", *(SCORES[name].title for name in RANKED), "Rank"),
        groups=(tuple(line for line in lines.values() if line is not None),),
        above="Kendall's τ over the models that both have: 1 is the same order, −1 the opposite. "
        "Rank is computed among these models alone.",
        below=(f"Fewer than two models in common on {', '.join(alone)}.",) * bool(alone),
    )


def _agreement_line(grid: str, ours: Mapping[tuple[str, str], Entry]) -> tuple[Cell, ...] | None:
    """The agreement on one grid; None if there are no two models to order."""
    pairs = [(_competing(ours, grid, paper.name), paper) for paper in paper_entries(grid)]
    both = [(entry, paper) for entry, paper in pairs if entry is not None]
    if len(both) < 2:
        return None
    sides = [entry for entry, _ in both], [paper for _, paper in both]
    taus = [
        kendall(*(mean_ranks(entries, names) for entries in sides))
        for names in (*((name,) for name in RANKED), RANKED)
    ]
    texts = (grid, str(len(both)), *(number(tau, decimals=2) for tau in taus))
    return tuple((text, False) for text in texts)


def _paper_models() -> set[str]:
    return {entry.name for grid in PAPER_GRIDS for entry in paper_entries(grid)}


def _paper_model_entries(
    results: Iterable[Result], edition: str | None
) -> tuple[str, dict[tuple[str, str], Entry]]:
    """The edition to use, and its entries of the paper's models on the paper's task and grids."""
    known = _paper_models()
    rows = [row for row in _rows_of_paper_task(results) if row.model in known]
    edition = edition_of(rows, edition, f"of the paper's models {ON_PAPER}")
    return edition, _entries([row for row in rows if row.edition == edition])


def _rows_of_paper_task(results: Iterable[Result]) -> list[Result]:
    """The rows of the paper's task on its grids."""
    return [row for row in results if row.task == PAPER_TASK and row.grid in PAPER_GRIDS]


def _entries(rows: Sequence[Result]) -> dict[tuple[str, str], Entry]:
    """The entries by grid and name; on each grid they must be based on the same data."""
    boards = leaderboard(rows, paper=False)
    for board, other in pairwise(boards):
        if board.grid == other.grid:
            versions = (f"version {b.task_version}, {b.fingerprint[:12]}" for b in (board, other))
            raise ResultError(
                f"{board.title}: rows of more than one task version or data set "
                f"({'; '.join(versions)}); give rows of one"
            )
    return {(board.grid, entry.name): entry for board in boards for entry in board.entries}


def _pairs(grid: str, model: str, ours: Mapping[tuple[str, str], Entry]) -> Iterator[Pair]:
    """Each number that the paper prints for the model on the grid, with ours."""
    entry = _competing(ours, grid, model)
    for paper in (row for row in paper_entries(grid) if row.name == model):
        for name in SCORES:
            mean, std = paper.mean[name], paper.std[name]
            if mean is not None and std is not None:
                known = entry and (entry.seeds, entry.mean[name], entry.std[name])
                shown = entry.name if entry else ""
                yield Pair(grid, name, *(known or ((), None, None)), mean, std, shown)


def _competing(ours: Mapping[tuple[str, str], Entry], grid: str, model: str) -> Entry | None:
    """The entry that represents the model on the grid."""
    name = representative(model, [name for on, name in ours if on == grid])
    return None if name is None else ours[grid, name]


def _ablations(rows: Iterable[Result], model: str) -> list[Ablation]:
    """One ablation per grid and seed with a row of a variant in the paper."""
    ablations = []
    for grid, printed in paper_ablations(model).items():
        ours = {(row.variant, row.seed): row.scores for row in rows if row.grid == grid}
        for seed in sorted({seed for variant, seed in ours if variant and variant in printed}):
            scores = {variant: ours.get((variant, seed)) for variant in printed}
            lines = (
                Ablated(variant, scores[variant], _change(scores, variant), texts)
                for variant, texts in printed.items()
            )
            ablations.append(Ablation(grid, seed, tuple(lines)))
    return ablations


def _change(scores: Mapping[str | None, Scores | None], variant: str | None) -> float | None:
    """The variant's CRPS over the full model's, minus 1; None if one is missing."""
    crps, full = ((values or {}).get("crps") for values in (scores[variant], scores[None]))
    return None if variant is None or crps is None or not full else crps / full - 1


def _line(pair: Pair) -> tuple[Cell, ...]:
    # The paper's 0.0001 stands for anything between 0.00005 and 0.00015.
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
    conditions = f"{ablation.grid}, edition {comparison.edition}, seed {ablation.seed}"
    return Sheet(
        title=f"{comparison.model} and its ablations, {conditions}",
        header=ABLATION_HEADER,
        groups=tuple(tuple(_ablated_lines(line)) for line in ablation.lines),
        above="One seed each; the paper does not name its seed. The change is that of CRPS "
        "relative "
        "to the full model with the same seed.",
        dispensable=("NECV", "CVaR_0.1", "Safety_mBrier"),
    )


def _ablated_lines(line: Ablated) -> Iterator[tuple[Cell, ...]]:
    """Our line, and below it the paper's as printed, with powers of ten written out."""
    name = line.variant or "full"
    ours = [number((line.ours or {}).get(score)) for score in ABLATION_SCORES]
    paper = [f"{Decimal(line.printed[score]):f}" for score in ABLATION_SCORES]
    change = MISSING if line.change is None else f"{line.change:+.1%}"
    ours.insert(1, change)
    paper.insert(1, line.printed.get("crps_change", MISSING))
    yield tuple((text, False) for text in (name, *ours))
    yield tuple((text, False) for text in (f"{name} (paper)", *paper))
