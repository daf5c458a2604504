"""Which differences between entries are more than noise: paired tests over windows.

Ten windows are few, and some days are hard for everyone; so entries are compared window by window.
The test flips the signs of these differences. If two forecasters are equally good, each window's
difference is as likely to be d as -d, so all 2¹⁰ ways to set the signs are equally likely, and p is
the share of them whose mean is at least as far from 0 as the one that was found. It is exact, needs
no normal distribution, which ten windows could not show, and asks about the mean, which is what the
tables show; Wilcoxon's test asks about ranks, and a day that is lost badly would count as one. Of
more than 20 independent windows the ways are too many, and p is found from random ones.

It rests on independent windows. Those of the paper's task are about three weeks apart; where
windows lie closer than a week, those of a week keep one sign.

Another seed would give another row. So a difference of fewer than two deviations of a seed is noise
too, where some seeds are known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from powerphase.errors import UnknownName
from powerphase.report.entries import Entry, orders_forecasts
from powerphase.seeds import stream

Verdict = Literal["better", "worse", "noise"]

LEVEL = 0.05
"""The share of families of comparisons in which noise alone may be taken for a difference."""

FAR = 2.0
"""Deviations of single seeds beyond which a difference is not due to the seed."""

MOST_EXACT = 20
"""Up to so many independent windows all flips are gone through; beyond, `DRAWN` are drawn."""

DRAWN = 99_999
ROUNDING = 1e-12


@dataclass(frozen=True)
class Contrast:
    """One entry beside another on one score, of which less is better."""

    name: str
    other: str
    score: str
    difference: float
    """Mean over seeds and windows, less that of the other."""
    p: float
    """Two-sided."""
    adjusted: float
    """The same after Holm's correction for all contrasts that were asked for together."""
    seeds: float | None
    """The difference in pooled deviations of single seeds; none where no deviation is known."""

    @property
    def verdict(self) -> Verdict:
        """What the entry is beside the other, if that is more than noise."""
        by_seed = self.seeds is not None and abs(self.seeds) < FAR
        if self.adjusted > LEVEL or by_seed:
            return "noise"
        return "better" if self.difference < 0 else "worse"


def against(
    entries: Sequence[Entry], windows: Sequence[str], score: str, other: str | None = None
) -> tuple[Contrast, ...]:
    """Each competing entry beside the other, by default beside the best of them.

    The best is found with the same windows, so that it flatters itself a little; an entry that was
    named before the scores were known does not.
    """
    fixed = best(entries, score) if other is None else _named(entries, other)
    if fixed is None or fixed.by_window.get(score) is None:
        return ()
    rest = [entry for entry in _compared(entries, score) if entry.name != fixed.name]
    return _corrected([_contrast(entry, fixed, windows, score) for entry in rest])


def pairs(entries: Sequence[Entry], windows: Sequence[str], score: str) -> tuple[Contrast, ...]:
    """Every competing entry beside every other; each pair once."""
    both = combinations(_compared(entries, score), 2)
    return _corrected([_contrast(one, other, windows, score) for one, other in both])


def best(entries: Sequence[Entry], score: str) -> Entry | None:
    """The competing entry with the lowest mean; of several, the first."""
    return min(_compared(entries, score), key=lambda entry: entry.mean[score] or 0.0, default=None)


def sign_flip_p(differences: Float[np.ndarray, " B"]) -> float:
    """Two-sided p of the mean of independent differences, each as likely to have either sign."""
    found, size = abs(differences.sum()), np.abs(differences).sum()
    if len(differences) > MOST_EXACT:
        draw = stream(0, "sign flips", len(differences))
        signs = draw.integers(0, 2, size=(DRAWN, len(differences)), dtype=np.int8)
        sums = signs @ (2 * differences) - differences.sum()
        # What was found is one of the flips, which keeps p above 0.
        return float(1 + _as_far(sums, found, size).sum()) / (1 + DRAWN)
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return float(_as_far(sums, found, size).mean())


def _as_far(sums: np.ndarray, found: float, size: float) -> np.ndarray:
    return np.abs(sums) >= found - ROUNDING * size


def n_independent(windows: Sequence[str]) -> int:
    """How many windows are taken for independent: one of each week."""
    return len(np.unique(_weeks(windows)))


def procedure(windows: Sequence[str]) -> str:
    """The test that these windows get, in words."""
    n = n_independent(windows)
    unit = "windows" if n == len(windows) else "weeks"
    if n > MOST_EXACT:
        return f"a sign-flip test over {unit} by {DRAWN:,} random flips of their signs"
    return f"an exact sign-flip test over {unit}"


def least_p(windows: Sequence[str]) -> float:
    """The lowest p that so many windows allow: that of a difference of one sign in all of them."""
    n = n_independent(windows)
    return 1 / (1 + DRAWN) if n > MOST_EXACT else min(1.0, 2 / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th lowest of m times m - k + 1, and no less than the one before."""
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[k]))
        adjusted[k] = least
    return adjusted


def _compared(entries: Sequence[Entry], score: str) -> list[Entry]:
    if not orders_forecasts(score):
        raise UnknownName(f"{score} does not order forecasts; choose a score that does")
    return [e for e in entries if e.rank is not None and e.by_window.get(score) is not None]


def _named(entries: Sequence[Entry], name: str) -> Entry | None:
    return next((entry for entry in entries if entry.name == name), None)


def _contrast(one: Entry, other: Entry, windows: Sequence[str], score: str) -> Contrast:
    """The two window by window; each over all its seeds.

    Seed 42 of one model has nothing in common with seed 42 of another. So all seeds count, also
    where one entry has more, and the difference is that of the means in the table.
    """
    by_window = _by_window(one, score) - _by_window(other, score)
    by_week = np.bincount(_weeks(windows), weights=by_window)
    p, difference = sign_flip_p(by_week), float(by_window.mean())
    deviation = _pooled([one, other], score)
    seeds = difference / deviation if deviation else None
    return Contrast(one.name, other.name, score, difference, p, p, seeds)


def _by_window(entry: Entry, score: str) -> Float[np.ndarray, " B"]:
    values = entry.by_window[score]
    assert values is not None, "what lacks the score is not compared"
    return np.array(values, dtype=float)


def _corrected(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    adjusted = holm([contrast.p for contrast in contrasts])
    return tuple(replace(c, adjusted=p) for c, p in zip(contrasts, adjusted, strict=True))


def _pooled(entries: Iterable[Entry], score: str) -> float | None:
    """The deviation of a single seed, pooled over the entries that have more than one."""
    known = [(len(e.seeds) - 1, std) for e in entries if (std := e.std[score]) is not None]
    freedom = sum(n for n, _ in known)
    return sqrt(sum(n * std**2 for n, std in known) / freedom) if freedom else None


def _weeks(windows: Sequence[str]) -> Int[np.ndarray, " B"]:
    """The number of the week, counted from the first window and without gaps, of each window."""
    days = np.array([window.partition("T")[0] for window in windows], dtype="datetime64[D]")
    weeks = (days - days[:1]).astype(np.int64) // 7
    return np.unique(weeks, return_inverse=True)[1].reshape(-1)
