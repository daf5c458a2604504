"""What can be chosen about TimeMCL; the defaults are the reference's, less its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.choice import Objective
from powerphase.models.framework.scaling import REFERENCE_SCALE
from powerphase.models.framework.variants import SHORT, Variants
from powerphase.models.recurrent.config import REFERENCE_INPUTS, RecurrentConfig


@dataclass(frozen=True)
class TimeMCLConfig(RecurrentConfig):
    """The front end, the hypotheses on it, and how they learn and answer."""

    condition: int = 100
    """Width of the layer between the LSTM and the hypotheses."""
    hypotheses: int = 16
    objective: Objective = "relaxed"
    """How much of the loss is the winner's: nearly all, ever more, or all."""
    slack: float = 0.1
    """Of the relaxed loss, the share of all hypotheses but the winner."""
    temperature: float = 10.0
    """At which annealing begins."""
    cooling: float = 0.95
    """What an epoch does to the temperature."""
    least_temperature: float = 5e-4
    """Below it, the winner takes all."""
    score_weight: float = 0.5
    """How much the scores' cross-entropy counts."""
    resamples: int | None = None
    """How many scenarios of equal weight to draw from the hypotheses; None for these themselves,
    with their weights."""
    leak: bool = False
    """Whether each hypothesis begins with the LSTM's state at the end of the one before it."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"resamples": 100, "leak": True, **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "resampled": {"resamples": 100},
            "leak": {"leak": True},
            "annealed": {"objective": "annealed"},
            "plain": {"objective": "plain"},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.condition < 1, "condition must be 1 or more"),
            (self.hypotheses < 2, "hypotheses must be 2 or more"),
            (not 0 <= self.slack < 1, "slack must be in [0, 1)"),
            (min(self.temperature, self.least_temperature) <= 0, "temperatures must be above 0"),
            (not 0 < self.cooling <= 1, "cooling must be in (0, 1]"),
            (self.score_weight < 0, "score_weight must be 0 or more"),
            (self.resamples is not None and self.resamples < 1, "resamples must be 1 or more"),
        ]
