"""The scores of a result row: names, ranges, and the question that each answers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor, inf, log10
from types import MappingProxyType

from powerphase.errors import UnknownName


@dataclass(frozen=True)
class Score:
    """One score, as a mean over windows; `docs/scores.md` defines it."""

    title: str
    question: str
    unit: str
    low: float = 0.0
    high: float = inf
    voltage_only: bool = False
    """Whether it uses voltages only."""
    pointwise: bool = True
    """Whether it is a mean over channels, so that types and buses average to the whole."""
    needs_voltages: bool = False
    """Whether it needs voltages to be observed, as voltage scores do; null otherwise."""
    has_types: bool = True
    """Whether it splits by variable; scores of lines and of whole states do not."""
    in_paper: bool = False
    proper: bool = False
    """Whether, in expectation, no forecast beats the true distribution."""
    needs_samples: bool = False
    """Whether it exists only for scenarios of equal weight; null otherwise."""
    needs_ratings: bool = False
    """Whether it exists only for grids with rated branches; null otherwise."""
    needs_lines: bool = False
    """Whether it exists only for records with a grid; null otherwise."""
    diagnostic: bool = False
    """Whether it describes a forecast instead of ranking it."""
    since: int = 1
    """The first schema of rows that have it; in older rows it is null."""

    @property
    def nullable(self) -> bool:
        """Whether it may be null in a row whose schema has it."""
        return self.needs_samples or self.needs_ratings or self.needs_lines

    @property
    def needs_v(self) -> bool:
        """Whether it is null for a record in which no voltage is observed."""
        return self.voltage_only or self.needs_voltages


_StateScore = partial(Score, pointwise=False, has_types=False, since=2)
"""A score of lines or of whole states."""

SCORES: Mapping[str, Score] = MappingProxyType(
    {
        "crps": Score(
            "CRPS", "How far is each channel's distribution from what happened?",
            "normalised", in_paper=True, proper=True,
        ),
        "distortion": Score(
            "Distortion", "How close is the best single scenario of the whole grid?",
            "normalised", pointwise=False, in_paper=True,
        ),
        "mse": Score(
            "MSE", "How good is the mean forecast?", "normalised²", in_paper=True, proper=True,
        ),
        "safety_mbrier": Score(
            "Safety_mBrier", "Do single scenarios agree with what happened at the voltage band?",
            "share", high=1.0, voltage_only=True, in_paper=True,
        ),
        "necv": Score(
            "NECV", "How far outside the band are the forecast voltages, on average?",
            "p.u.", voltage_only=True, in_paper=True, diagnostic=True,
        ),
        "cvar_0.1": Score(
            "CVaR_0.1", "How far outside the band is the worst tenth of the scenarios?",
            "p.u.", voltage_only=True, in_paper=True, diagnostic=True,
        ),
        "brier": Score(
            "Brier", "Is the forecast probability of leaving the band right?",
            "probability²", high=1.0, voltage_only=True, proper=True,
        ),
        "twcrps": Score(
            "twCRPS", "Is the distribution of voltages right outside the band?",
            "p.u.", voltage_only=True, proper=True,
        ),
        "excursion_error": Score(
            "excursion error", "How far is the expected excursion from the one that happened?",
            "p.u.", voltage_only=True,
        ),
        "excursion_bias": Score(
            "excursion bias", "Are excursions over- (+) or under-forecast (-)?",
            "p.u.", low=-inf, voltage_only=True, diagnostic=True,
        ),
        "fair_crps": Score(
            "fair CRPS", "What would CRPS be with infinitely many samples?",
            "normalised", low=-inf, proper=True, needs_samples=True,
        ),
        "energy": Score(
            "energy score", "Is the joint distribution over the channels right?",
            "normalised", pointwise=False, proper=True,
        ),
        "coverage_80": Score(
            "coverage", "How often does the truth lie in the central 80 %?",
            "share", high=1.0, diagnostic=True,
        ),
        "width_80": Score(
            "width", "How wide is the central 80 %?", "normalised", diagnostic=True,
        ),
        "loading_crps": _StateScore(
            "loading CRPS", "How far is each line's distribution of loading from what happened?",
            "share of rating", needs_ratings=True, proper=True,
        ),
        "overload_brier": _StateScore(
            "overload Brier", "Is the forecast probability of an overload right?",
            "probability²", high=1.0, needs_ratings=True, proper=True,
        ),
        "overload_twcrps": _StateScore(
            "overload twCRPS", "Is the distribution of loading right above the rating?",
            "share of rating", needs_ratings=True, proper=True,
        ),
        "any_violation_brier": _StateScore(
            "any-violation Brier", "Is the probability right that the grid violates any limit?",
            "probability²", high=1.0, proper=True, needs_voltages=True,
        ),
        "violation_count_crps": _StateScore(
            "violation-count CRPS", "Is the number of simultaneous violations right?",
            "violations", proper=True, needs_voltages=True,
        ),
        "variogram_theta": _StateScore(
            "variogram theta", "Do the angles at the two ends of a line differ as they should?",
            "rad", proper=True, needs_lines=True,
        ),
        "variogram_v": _StateScore(
            "variogram V", "Do the voltages at the two ends of a line differ as they should?",
            "p.u.", proper=True, needs_lines=True,
        ),
        "balance_rms_mva": _StateScore(
            "power balance", "How far are P and Q from the flows that V and θ cause?",
            "MVA", diagnostic=True, needs_lines=True,
        ),
    }
)  # fmt: skip

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fidelity": ("crps", "distortion", "mse", "fair_crps", "coverage_80", "width_80"),
        "safety": (
            *("brier", "twcrps", "safety_mbrier", "necv", "cvar_0.1"),
            *("excursion_error", "excursion_bias"),
        ),
        "lines": ("loading_crps", "overload_brier", "overload_twcrps"),
        "joint": (
            *("energy", "any_violation_brier", "violation_count_crps"),
            *("variogram_theta", "variogram_v", "balance_rms_mva"),
        ),
    }
)
"""Every score in one group: each channel, the voltage band, lines, and the grid as a whole.

The first score of a group is the one that orders its table."""

RANKED = ("crps", "distortion", "safety_mbrier", "cvar_0.1")
"""The scores whose ranks the paper averages into its Rank."""

NORMAL_BAND_PU = (0.95, 1.05)
"""The normal voltage band [p.u.]; a voltage outside is a violation."""


def find_score(text: str, known: Collection[str] = SCORES.keys(), kind: str = "score") -> str:
    """The name of the score with this name or title, ignoring case.

    Args:
        text: a name or a title.
        known: the names that are allowed.
        kind: what the allowed names have in common, for the error message.
    """
    for name in known:
        if text.lower() in (name, SCORES[name].title.lower()):
            return name
    raise UnknownName.among(kind, text, known)


def score_format(value: float) -> str:
    """The format specification that shows a score with four significant digits."""
    if value == 0:
        return ".0f"
    if 1e-5 <= abs(value) < 1e5:
        return f".{max(0, 3 - floor(log10(abs(value))))}f"
    return ".3e"
