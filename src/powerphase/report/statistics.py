"""The statistics of a table: paired tests, rank correlations, skill, and how two orders agree.

**Paired tests.** Ten windows are few, and some days are hard for every forecaster, so entries are
compared window by window. The test flips the signs of these differences. If two forecasters are
equally good, the difference of each window is as likely to be d as -d, so all 2¹⁰ assignments of
signs are equally likely, and p is the share of them whose mean is at least as far from 0 as the
observed one. The test is exact, needs no normal distribution, which ten windows could not show, and
asks about the mean, which is what the tables show. (Wilcoxon's test asks about ranks, where a very
bad day counts no more than a bad one.) With more than 20 independent windows there are too many
assignments, and p is estimated from random ones.

The test assumes independent windows. Those of the paper's task are about three weeks apart; where
windows are closer than a week, the windows of one week keep one sign.

**One family for each pair.** A table has many differences, and some would look real by chance, so p
is corrected by Holm's method within a family. A pair belongs to the family of its better entry:
that entry against all others, on one grid and one score. The better entry of a pair is the same
whichever of the two the others are compared with, so that a pair has one p and one verdict, whether
it is asked for by `--statistics`, `--against` or `--pairs`. (All pairs as one family would leave
ten windows without any verdict from eight entries on.)

Another seed would give another row. Where several seeds are known, a difference of fewer than two
standard deviations of a single seed is therefore noise as well.

**Skill.** A score alone does not say whether it is good: grids differ, and so do units. Relative to
`last-7-days` it shows what learning achieved; relative to the oracle, how much of the possible gain
was achieved.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import sqrt
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from powerphase.errors import UnknownName
from powerphase.records.scores import SCORES
from powerphase.report.entries import Entry, orders_forecasts, places
from powerphase.seeds import stream

Verdict = Literal["better", "worse", "noise"]

LEVEL = 0.05
"""The family-wise error rate: how often noise alone may be taken for a difference."""

SEED_DEVIATIONS = 2.0
"""A difference of fewer deviations of a single seed may be due to the seed."""

MAX_EXACT_WINDOWS = 20
"""Up to this many independent windows all sign flips count; beyond, `N_FLIPS` are drawn."""

N_FLIPS = 99_999
ROUNDING = 1e-12

REFERENCE, ORACLE = "last-7-days", "oracle"

FIDELITY = ("crps", "distortion", "mse")
SAFETY = ("safety_mbrier", "necv", "cvar_0.1")
"""How the paper divides its six scores."""

PROPER_SAFETY = ("brier", "twcrps")


@dataclass(frozen=True)
class Contrast:
    """The difference between two entries in one score, of which less is better."""

    name: str
    other: str
    score: str
    difference: float
    """The mean over seeds and windows, minus that of the other entry."""
    p: float
    """Two-sided."""
    adjusted: float
    """p after Holm's correction for all comparisons of the better entry."""
    seeds: float | None
    """The difference in pooled deviations of single seeds; None where no deviation is known."""

    @property
    def verdict(self) -> Verdict:
        """Whether the entry is better or worse than the other, or the difference is noise."""
        within_seeds = self.seeds is not None and abs(self.seeds) < SEED_DEVIATIONS
        if self.adjusted > LEVEL or within_seeds:
            return "noise"
        return "better" if self.difference < 0 else "worse"


def against(
    entries: Sequence[Entry], windows: Sequence[str], score: str, other: str | None = None
) -> tuple[Contrast, ...]:
    """The contrast of each competing entry with the other, by default with the best of them.

    The best is chosen with the same windows, which flatters it a little; an entry that was named
    before the scores were known has no such advantage.
    """
    reference = best(entries, score) if other is None else _entry_named(entries, other)
    if reference is None or reference.by_window.get(score) is None:
        return ()
    rest = [entry for entry in _competitors(entries, score) if entry.name != reference.name]
    field = [*rest, reference]
    return _adjust_for_families(
        [_contrast(entry, reference, windows, score) for entry in rest], field, windows
    )


def pairs(entries: Sequence[Entry], windows: Sequence[str], score: str) -> tuple[Contrast, ...]:
    """The contrast of every pair of competing entries, each pair once."""
    field = _competitors(entries, score)
    return _adjust_for_families(
        [_contrast(a, b, windows, score) for a, b in combinations(field, 2)], field, windows
    )


def best(entries: Sequence[Entry], score: str) -> Entry | None:
    """The competing entry with the lowest mean; the first of several."""
    competitors = _competitors(entries, score)
    return min(competitors, key=lambda entry: entry.mean[score] or 0.0, default=None)


def sign_flip_p(differences: Float[np.ndarray, " B"]) -> float:
    """Two-sided p of the mean of independent differences, each as likely to have either sign."""
    observed, size = abs(differences.sum()), np.abs(differences).sum()
    if len(differences) > MAX_EXACT_WINDOWS:
        draw = stream(0, "sign flips", len(differences))
        signs = draw.integers(0, 2, size=(N_FLIPS, len(differences)), dtype=np.int8)
        sums = signs @ (2 * differences) - differences.sum()
        # The observed signs are one of the flips, which keeps p above 0.
        return float(1 + _is_as_far(sums, observed, size).sum()) / (1 + N_FLIPS)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return float(_is_as_far(sums, observed, size).mean())


def _is_as_far(
    sums: Float[np.ndarray, " F"], observed: float, size: float
) -> Bool[np.ndarray, " F"]:
    return np.abs(sums) >= observed - ROUNDING * size


def n_independent(windows: Sequence[str]) -> int:
    """The number of windows that count as independent: one of each week."""
    return len(np.unique(_week_numbers(windows)))


def procedure(windows: Sequence[str]) -> str:
    """The test that these windows get, in words."""
    n = n_independent(windows)
    unit = "windows" if n == len(windows) else "weeks"
    if n > MAX_EXACT_WINDOWS:
        return f"a sign-flip test over {unit} by {N_FLIPS:,} random flips of their signs"
    return f"an exact sign-flip test over {unit}"


def least_p(windows: Sequence[str]) -> float:
    """The lowest p that these windows allow: that of a difference with one sign in all of them."""
    n = n_independent(windows)
    return 1 / (1 + N_FLIPS) if n > MAX_EXACT_WINDOWS else min(1.0, 2 / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th lowest of m times m - k + 1, and no less than the one before."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = least
    return adjusted


def _competitors(entries: Sequence[Entry], score: str) -> list[Entry]:
    if not orders_forecasts(score):
        raise UnknownName(f"{score} does not order forecasts; choose a score that does")
    return [e for e in entries if e.rank is not None and e.by_window.get(score) is not None]


def _entry_named(entries: Sequence[Entry], name: str) -> Entry | None:
    return next((entry for entry in entries if entry.name == name), None)


def _contrast(entry: Entry, other: Entry, windows: Sequence[str], score: str) -> Contrast:
    """The two entries window by window, each averaged over all its seeds.

    Seed 42 of one model has nothing in common with seed 42 of another. So all seeds count, even
    where one entry has more, and the difference is that of the means in the table.
    """
    by_window = _window_scores(entry, score) - _window_scores(other, score)
    by_week = np.bincount(_week_numbers(windows), weights=by_window)
    p, difference = sign_flip_p(by_week), float(by_window.mean())
    deviation = _pooled_deviation([entry, other], score)
    seeds = difference / deviation if deviation else None
    return Contrast(entry.name, other.name, score, difference, p, p, seeds)


def _window_scores(entry: Entry, score: str) -> Float[np.ndarray, " B"]:
    values = entry.by_window[score]
    assert values is not None, "entries without the score are not compared"
    return np.array(values, dtype=float)


def _adjust_for_families(
    contrasts: Sequence[Contrast], field: Sequence[Entry], windows: Sequence[str]
) -> tuple[Contrast, ...]:
    """The contrasts, each corrected together with all comparisons of its better entry."""
    entries = {entry.name: entry for entry in field}
    p_of = {frozenset((c.name, c.other)): c.p for c in contrasts}

    @cache
    def family(name: str, score: str) -> dict[str, float]:
        others = [other for other in entries if other != name]
        pairs_of_name = [frozenset((name, other)) for other in others]
        for pair, other in zip(pairs_of_name, others, strict=True):
            if pair not in p_of:
                p_of[pair] = _contrast(entries[name], entries[other], windows, score).p
        return dict(zip(others, holm([p_of[pair] for pair in pairs_of_name]), strict=True))

    def adjust(c: Contrast) -> Contrast:
        better, other = sorted((c.name, c.other), key=lambda n: (entries[n].mean[c.score], n))
        return replace(c, adjusted=family(better, c.score)[other])

    return tuple(map(adjust, contrasts))


def _pooled_deviation(entries: Iterable[Entry], score: str) -> float | None:
    """The deviation of a single seed, pooled over the entries that have more than one."""
    known = [(len(e.seeds) - 1, std) for e in entries if (std := e.std[score]) is not None]
    freedom = sum(n for n, _ in known)
    return sqrt(sum(n * std**2 for n, std in known) / freedom) if freedom else None


def _week_numbers(windows: Sequence[str]) -> Int[np.ndarray, " B"]:
    """The week of each window, numbered from the first window without gaps."""
    days = np.array([window.partition("T")[0] for window in windows], dtype="datetime64[D]")
    weeks = (days - days[:1]).astype(np.int64) // 7
    return np.unique(weeks, return_inverse=True)[1].reshape(-1)


def average_ranks(values: Real[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """The rank of each value, 1 for the lowest; tied values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which.reshape(-1)]


def spearman(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"]) -> float | None:
    """Correlation of the ranks of a and b; None where one of them is constant."""
    ranks = [average_ranks(values) for values in (a, b)]
    centred = [r - r.mean() if len(r) else r for r in ranks]
    size = np.sqrt(np.square(centred[0]).sum() * np.square(centred[1]).sum())
    return float(np.clip((centred[0] * centred[1]).sum() / size, -1, 1)) if size else None


def kendall(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"]) -> float | None:
    """τ-b: pairs in the same order minus those in the opposite one, over the pairs without a tie.

    None where a or b is constant. Visits every pair, so it is for few values.
    """
    signs = [np.sign(np.subtract.outer(values, values)) for values in (a, b)]
    size = np.sqrt(np.abs(signs[0]).sum() * np.abs(signs[1]).sum())
    return float((signs[0] * signs[1]).sum() / size) if size else None


@dataclass(frozen=True)
class Skill:
    """A dimensionless number, or the reason why it is missing."""

    value: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Skills:
    """One score of one entry, relative to the reference and to the oracle."""

    skill: Skill
    """1 - score / reference: 0 for the reference, 1 for a score of 0, below 0 for a worse one."""
    reach: Skill
    """(reference - score) / (reference - oracle): 0 for the reference, 1 for the oracle."""


def skill(score: float | None, reference: float | None) -> Skill:
    """The share of the reference's score that is gone: 1 - score / reference."""
    if score is None:
        return Skill(None, "the entry has no such score")
    if reference is None:
        return Skill(None, f"{REFERENCE} has no score")
    if reference == 0:
        return Skill(None, f"{REFERENCE} scores 0")
    return Skill(1 - score / reference)


def reach(score: float | None, reference: float | None, oracle: float | None) -> Skill:
    """The share of the distance from the reference's score to the oracle's."""
    if score is None or reference is None:
        return Skill(None, skill(score, reference).why_not)
    if oracle is None:
        return Skill(None, f"{ORACLE} has no score")
    if oracle >= reference:
        return Skill(None, f"{ORACLE} is not better than {REFERENCE}")
    return Skill((reference - score) / (reference - oracle))


def skills(entries: Sequence[Entry], score: str) -> dict[str, Skills]:
    """Skill and reach of each entry by name; missing for improper scores.

    Under an improper score an honest forecaster may lose to a dishonest one, so the reference is no
    floor and the oracle no ceiling.
    """
    if not SCORES[score].proper:
        missing = Skill(None, f"{SCORES[score].title} is not proper")
        return {entry.name: Skills(missing, missing) for entry in entries}
    mean = {entry.name: entry.mean[score] for entry in entries}
    below, above = mean.get(REFERENCE), mean.get(ORACLE)
    return {
        name: Skills(skill(value, below), reach(value, below, above))
        for name, value in mean.items()
    }


@dataclass(frozen=True)
class Tradeoff:
    """Mean ranks of the entries of one table by two sets of scores; 1 is best.

    The paper reports that fidelity and safety order forecasters differently. Its safety scores
    reward forecasts that stay inside the band whatever happens, so the question is also asked with
    the proper ones.
    """

    names: tuple[str, ...]
    fidelity: tuple[float, ...]
    safety: tuple[float, ...]
    fidelity_scores: tuple[str, ...]
    """Those that every entry has; the same for safety."""
    safety_scores: tuple[str, ...]
    kendall: float | None
    """Agreement of the two orders: 1 equal, -1 opposite; None where one of them has no order."""
    spearman: float | None


def tradeoff(
    entries: Sequence[Entry],
    fidelity: Sequence[str] = FIDELITY,
    safety: Sequence[str] = SAFETY,
) -> Tradeoff:
    """The competing entries ranked by fidelity and by safety, in the order of fidelity."""
    competitors = [entry for entry in entries if entry.rank is not None]
    scores = [_shared_scores(competitors, names) for names in (fidelity, safety)]
    ranks = [mean_ranks(competitors, names) for names in scores]
    order = np.argsort(ranks[0], kind="stable")
    return Tradeoff(
        names=tuple(competitors[k].name for k in order),
        fidelity=tuple(float(ranks[0][k]) for k in order),
        safety=tuple(float(ranks[1][k]) for k in order),
        fidelity_scores=scores[0],
        safety_scores=scores[1],
        kendall=kendall(*ranks),
        spearman=spearman(*ranks),
    )


def mean_ranks(entries: Sequence[Entry], scores: Sequence[str]) -> Float[np.ndarray, " N"]:
    """The mean rank of each entry over the scores, all of which it has; 1 where there are none.

    Less counts as better, also for NECV and CVaR_0.1, as in the paper.
    """
    ranks = [places([entry.mean[score] for entry in entries]) for score in scores]
    return np.mean(ranks, axis=0) if ranks else np.ones(len(entries))


def _shared_scores(entries: Sequence[Entry], scores: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in scores if all(entry.mean[n] is not None for entry in entries))
