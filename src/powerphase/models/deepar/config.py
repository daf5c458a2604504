"""What can be chosen about DeepAR; the defaults are the reference's, less its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.models.framework.scaling import REFERENCE_SCALE
from powerphase.models.framework.variants import SHORT, Variants
from powerphase.models.recurrent.config import REFERENCE_INPUTS, RecurrentConfig


@dataclass(frozen=True)
class DeepARConfig(RecurrentConfig):
    """The front end, the Gaussian on it, and how many paths are drawn."""

    rank: int = 1
    """Factors that channels share; 0 for independent channels."""
    least_variance: float = 1e-6
    """Added to the variance that a channel has for itself, scaled."""
    reduction: Literal["mean", "first"] = "mean"
    """Whether the loss is that of all windows of a batch, or of its first alone."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"reduction": "first", **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "first-window": {"reduction": "first"},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.rank < 0, "rank must be 0 or more"),
            (self.least_variance <= 0, "least_variance must be above 0"),
            (self.paths < 1, "paths must be 1 or more"),
        ]
