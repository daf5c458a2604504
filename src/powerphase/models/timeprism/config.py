"""The settings of TimePrism; the defaults are the reference implementation's, less its quirks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

from powerphase.models.framework.configuration import (
    SHORT,
    NetworkConfig,
    Rescaling,
    TrainingConfig,
    Variants,
    rescale_width,
)
from powerphase.models.framework.ops import LEAST_SCALE, REFERENCE_SCALE, Objective, ZeroScale


@dataclass(frozen=True)
class TimePrismConfig(NetworkConfig):
    """Settings of the hypotheses, the loss and the training."""

    # The hypotheses: each trend combined with each season.
    hypotheses: int = 625
    average_steps: int = 7
    """Quarter-hours of the moving average that is a context's trend."""
    scaler: Literal["mean-size", "mean-deviation"] = "mean-size"
    """What contexts are scaled by: their mean absolute value, or, less their mean, their standard
    deviation. All channels share the heads, and a voltage moves by a thousandth of its size."""
    least_scale: float = LEAST_SCALE
    zero_scale: ZeroScale = "floor"

    # The loss: which hypotheses a target trains, and how well the weights predict the nearest.
    objective: Objective = "relaxed"
    slack: float = 0.01
    """Share of the relaxed loss that all hypotheses but the nearest have together."""
    temperature: float = 10.0
    """Initial temperature of the annealed loss: shares are softmax(−distance / temperature)."""
    cooling: float = 0.95
    """Factor on the temperature after each epoch."""
    least_temperature: float = 5e-4
    """Below it, the nearest hypothesis has the whole loss."""
    score_weight: float = 1.0

    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(weight_decay=1e-8))

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"scaler": "mean-deviation"},
            "reference": REFERENCE_SCALE,
            "sixteen": {"hypotheses": 16},
            "plain": {"objective": "plain"},
            "annealed": {"objective": "annealed"},
            **SHORT,
        }
    )

    IN_QUARTER_HOURS: ClassVar[Mapping[str, Rescaling]] = MappingProxyType(
        {"average_steps": rescale_width}
    )

    def _rules(self) -> list[tuple[bool, str]]:
        positive = ("least_scale", "temperature", "least_temperature")
        objectives = get_args(Objective)
        return [
            (self.hypotheses < 2, "hypotheses must be 2 or more"),
            (self.average_steps < 1 or self.average_steps % 2 == 0, "average_steps must be odd"),
            *((getattr(self, name) <= 0, f"{name} must be above 0") for name in positive),
            (not 0 <= self.slack < 1, "slack must be in [0, 1)"),
            (not 0 < self.cooling <= 1, "cooling must be in (0, 1]"),
            (self.score_weight < 0, "score_weight must be 0 or more"),
            (self.objective not in objectives, f"objective must be one of {', '.join(objectives)}"),
        ]

    @property
    def trends(self) -> int:
        """The largest divisor of the number of hypotheses that is not above its square root."""
        root = isqrt(self.hypotheses)
        return next(n for n in range(root, 0, -1) if self.hypotheses % n == 0)

    @property
    def seasons(self) -> int:
        """Seasons that are combined with each trend."""
        return self.hypotheses // self.trends
