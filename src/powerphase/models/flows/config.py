"""What can be chosen about the flow; the configs of its models add to this."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.scaling import REFERENCE_SCALE
from powerphase.models.framework.variants import SHORT, Variants
from powerphase.models.recurrent.config import REFERENCE_INPUTS, LaggedConfig

REFERENCE_FLOW = MappingProxyType({"noise": 0.0})
"""What the reference implementation does: z goes into the flow as it is."""


@dataclass(frozen=True)
class FlowConfig(LaggedConfig):
    """The flow, and how many paths are drawn from it."""

    condition: int = 100
    """Numbers by which the flow is told of a step."""
    couplings: int = 3
    """Blocks of a coupling and a normalisation; each moves half of the channels."""
    hidden: int = 100
    """Width of the networks in a coupling."""
    noise: float = 1e-3
    """Spread of what is added to z while it is learned. Without it a channel that never moves has a
    density without bound. 0 is the reference's way: no noise, and z is not standardised either."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {**REFERENCE_FLOW, **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "reference-flow": REFERENCE_FLOW,
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.condition < 1, "condition must be 1 or more"),
            (self.couplings < 1, "couplings must be 1 or more"),
            (self.hidden < 1, "hidden must be 1 or more"),
            (self.noise < 0, "noise must be 0 or more"),
            (self.paths < 1, "paths must be 1 or more"),
        ]
