"""Configuration of DeepAR; the defaults are those of the reference, without its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.models.framework.configuration import SHORT, Variants
from powerphase.models.framework.ops import REFERENCE_SCALE
from powerphase.models.recurrent.config import REFERENCE_INPUTS, StandardisedConfig


@dataclass(frozen=True)
class DeepARConfig(StandardisedConfig):
    """Settings of the encoder, the Gaussian head and sampling."""

    rank: int = 1
    """Number of factors that the channels share; 0 for independent channels."""
    factor_norm: float | None = None
    """Factors are multiplied by so much / √C, and so is what a step changes them by. As they are
    (None), they soon explain what all channels do together, such as the day, and leave nothing for
    the means."""
    least_variance: float = 1e-6
    """Added to the diagonal of the covariance of z."""
    reduction: Literal["mean", "first"] = "mean"
    """Whether the loss is the mean over all windows of a batch or that of the first window."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {
                "lag_inputs": 300.0,
                "standardise": True,
                "noise": True,
                "factor_norm": 0.03,
            },
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
            (
                self.factor_norm is not None and self.factor_norm <= 0,
                "factor_norm must be above 0",
            ),
            (self.least_variance <= 0, "least_variance must be above 0"),
            (self.paths < 1, "paths must be 1 or more"),
        ]
