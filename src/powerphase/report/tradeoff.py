"""Do fidelity and safety order forecasters differently? The ranks of a grid, and how they agree.

The paper says so, and calls it a trade-off. Its safety scores reward forecasts that stay inside
the band, whatever happens; so the same question is asked again with the proper ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerphase.report.association import kendall, spearman
from powerphase.report.entries import Entry, places

FIDELITY = ("crps", "distortion", "mse")
SAFETY = ("safety_mbrier", "necv", "cvar_0.1")
"""As the paper divides its six scores."""

PROPER_SAFETY = ("brier", "twcrps")


@dataclass(frozen=True)
class Tradeoff:
    """Mean ranks of the entries of one table, by two sets of scores; 1 is best."""

    names: tuple[str, ...]
    fidelity: tuple[float, ...]
    safety: tuple[float, ...]
    fidelity_scores: tuple[str, ...]
    """Those that every entry has; the same of safety."""
    safety_scores: tuple[str, ...]
    kendall: float | None
    """Agreement of the two orders: 1 the same, -1 the opposite; none where one has no order."""
    spearman: float | None


def tradeoff(
    entries: Sequence[Entry],
    fidelity: Sequence[str] = FIDELITY,
    safety: Sequence[str] = SAFETY,
) -> Tradeoff:
    """The competing entries ranked by fidelity and by safety, in the order of fidelity."""
    competing = [entry for entry in entries if entry.rank is not None]
    scores = [_shared(competing, names) for names in (fidelity, safety)]
    ranks = [mean_ranks(competing, names) for names in scores]
    order = np.argsort(ranks[0], kind="stable")
    return Tradeoff(
        names=tuple(competing[k].name for k in order),
        fidelity=tuple(float(ranks[0][k]) for k in order),
        safety=tuple(float(ranks[1][k]) for k in order),
        fidelity_scores=scores[0],
        safety_scores=scores[1],
        kendall=kendall(*ranks),
        spearman=spearman(*ranks),
    )


def mean_ranks(entries: Sequence[Entry], scores: Sequence[str]) -> np.ndarray:
    """The mean place of each entry over the scores, all of which it has; the same for all of none.

    Less counts as better, also of NECV and CVaR_0.1, as in the paper.
    """
    found = [places([entry.mean[score] for entry in entries]) for score in scores]
    return np.mean(found, axis=0) if found else np.ones(len(entries))


def _shared(entries: Sequence[Entry], scores: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in scores if all(entry.mean[n] is not None for entry in entries))
