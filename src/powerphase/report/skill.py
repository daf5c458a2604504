"""Skill: a score beside that of a forecaster that learns nothing, and of one that knows the future.

A score alone does not tell whether it is good: grids differ, and so do units. Beside `last-7-days`
it tells what learning was worth; beside the oracle, how much of what could be gained was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from powerphase.records.scores import SCORES
from powerphase.report.entries import Entry

REFERENCE, ORACLE = "last-7-days", "oracle"


@dataclass(frozen=True)
class Skill:
    """A dimensionless number, or why there is none."""

    value: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Skills:
    """What one score of one entry is worth."""

    skill: Skill
    """1 - score / reference: 0 for the reference, 1 for a score of 0, below 0 for a worse one."""
    reach: Skill
    """(reference - score) / (reference - oracle): 0 for the reference, 1 for the oracle."""


def skill(score: float | None, reference: float | None) -> Skill:
    """How much of the reference's score is gone: 1 - score / reference."""
    if score is None or reference is None:
        return Skill(None, f"there is no score of {REFERENCE if score is not None else 'its own'}")
    if reference == 0:
        return Skill(None, f"{REFERENCE} scores 0")
    return Skill(1 - score / reference)


def reach(score: float | None, reference: float | None, oracle: float | None) -> Skill:
    """How far from the reference's score to the oracle's: 1 is all the way."""
    if score is None or reference is None:
        return Skill(None, skill(score, reference).why_not)
    if oracle is None:
        return Skill(None, f"there is no score of {ORACLE}")
    if oracle >= reference:
        return Skill(None, f"{ORACLE} is not better than {REFERENCE}")
    return Skill((reference - score) / (reference - oracle))


def skills(entries: Sequence[Entry], score: str) -> dict[str, Skills]:
    """Skill and reach of each entry by name; of improper scores there is none.

    Under an improper score a forecaster that says what it knows may lose to one that does not, so
    that neither is the reference a floor, nor the oracle a ceiling.
    """
    if not SCORES[score].proper:
        none = Skill(None, f"{SCORES[score].title} is not proper")
        return {entry.name: Skills(none, none) for entry in entries}
    mean = {entry.name: entry.mean[score] for entry in entries}
    below, above = mean.get(REFERENCE), mean.get(ORACLE)
    return {
        name: Skills(skill(value, below), reach(value, below, above))
        for name, value in mean.items()
    }
