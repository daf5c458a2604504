"""What can be chosen about the flow; the configs of its models add to this."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.recurrent.config import REFERENCE_INPUTS, LaggedConfig
from powerphase.models.scaling import REFERENCE_SCALE
from powerphase.models.variants import SHORT, Variants


@dataclass(frozen=True)
class FlowConfig(LaggedConfig):
    """The flow, and how many paths are drawn from it."""

    condition: int = 100
    """Numbers by which the flow is told of a step."""
    couplings: int = 3
    """Blocks of a coupling and a normalisation; each moves half of the channels."""
    hidden: int = 100
    """Width of the networks in a coupling."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {"reference": REFERENCE_INPUTS, "reference-scale": REFERENCE_SCALE, **SHORT}
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.condition < 1, "condition must be 1 or more"),
            (self.couplings < 1, "couplings must be 1 or more"),
            (self.hidden < 1, "hidden must be 1 or more"),
            (self.paths < 1, "paths must be 1 or more"),
        ]
