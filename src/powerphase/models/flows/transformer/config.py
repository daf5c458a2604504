"""What can be chosen about Transformer-TempFlow; defaults are the reference's, less its quirks."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.models.flows.config import REFERENCE_FLOW, FlowConfig
from powerphase.models.framework.scaling import REFERENCE_SCALE
from powerphase.models.framework.variants import SHORT, Variants
from powerphase.models.recurrent.config import REFERENCE_INPUTS


@dataclass(frozen=True)
class TransformerTempFlowConfig(FlowConfig):
    """The Transformer, the flow on it, and how it is decoded."""

    width: int = 32
    heads: int = 8
    layers: int = 3
    """Of the encoder, and of the decoder."""
    feed_forward: int = 128
    dropout: float = 0.1
    decoding: Literal["prefix", "length-one"] = "prefix"
    """What a step of a path attends to: all steps before it, as in training, or itself alone."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"decoding": "length-one", **REFERENCE_FLOW, **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "reference-flow": REFERENCE_FLOW,
            "length-one": {"decoding": "length-one"},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        sizes = (self.width, self.heads, self.layers, self.feed_forward)
        return [
            *super()._rules(),
            (min(sizes) < 1, "width, heads, layers and feed_forward must be 1 or more"),
            (self.heads > 0 and self.width % self.heads != 0, "heads must divide width"),
            (not 0 <= self.dropout < 1, "dropout must be in [0, 1)"),
        ]
