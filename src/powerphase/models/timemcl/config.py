"""Configuration of TimeMCL; the defaults are those of the reference, without its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.configuration import SHORT, Variants
from powerphase.models.framework.ops import REFERENCE_SCALE, Objective
from powerphase.models.recurrent.config import REFERENCE_INPUTS, StandardisedConfig


@dataclass(frozen=True)
class TimeMCLConfig(StandardisedConfig):
    """Settings of the encoder, the hypotheses, their loss and the forecast."""

    condition: int = 100
    """Width of the linear layer between the LSTM and the hypotheses."""
    hypotheses: int = 16
    objective: Objective = "relaxed"
    """How much of the loss belongs to the winner: nearly all, increasingly more, or all."""
    slack: float = 0.1
    """Share of the relaxed loss that belongs to all hypotheses but the winner."""
    temperature: float = 10.0
    """Initial temperature of annealing."""
    cooling: float = 0.95
    """Factor by which the temperature falls in each epoch."""
    least_temperature: float = 5e-4
    """Below this temperature the winner takes all."""
    score_weight: float = 0.5
    """Weight of the scores' cross-entropy in the loss."""
    resamples: int | None = None
    """Number of scenarios of equal weight drawn from the hypotheses; None for the hypotheses
    themselves with their weights."""
    leak: bool = False
    """Whether each hypothesis starts from the final LSTM state of the previous one."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"lag_inputs": 300.0, "standardise": True},
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
