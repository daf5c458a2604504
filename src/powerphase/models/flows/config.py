"""Configurations of TempFlow and Transformer-TempFlow.

The defaults are those of the reference, without its quirks.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.models.framework.configuration import SHORT, Variants
from powerphase.models.framework.ops import REFERENCE_SCALE
from powerphase.models.recurrent.config import REFERENCE_INPUTS, LaggedConfig, RecurrentConfig

REFERENCE_FLOW = MappingProxyType({"noise": 0.0})
"""What the reference implementation does: z enters the flow without noise or standardisation."""


@dataclass(frozen=True)
class FlowConfig(LaggedConfig):
    """Settings of the flow and of sampling."""

    condition: int = 100
    """Width of the vector that conditions the flow on a step."""
    couplings: int = 3
    """Number of couplings. Each transforms half of the channels, and a normalisation follows."""
    hidden: int = 100
    """Width of the networks in a coupling."""
    coupling_inputs: float | None = None
    """The layer by which a coupling reads one half of the channels starts and learns as if it had
    no more than so many inputs, as for `lag_inputs`; also a part of one. As it is (None), one half
    soon explains what both do together, such as the day, and the condition learns nothing."""
    noise: float = 1e-3
    """Standard deviation of the noise added to z in training. Without it, the density of a channel
    that never moves is unbounded. 0 is the reference: no noise, and z is not standardised."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"lag_inputs": 300.0, "coupling_inputs": 0.01},
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
            (
                self.coupling_inputs is not None and self.coupling_inputs <= 0,
                "coupling_inputs must be above 0",
            ),
            (self.noise < 0, "noise must be 0 or more"),
            (self.paths < 1, "paths must be 1 or more"),
        ]


@dataclass(frozen=True)
class TempFlowConfig(FlowConfig, RecurrentConfig):
    """Settings of TempFlow: the recurrent encoder and the flow."""


@dataclass(frozen=True)
class TransformerTempFlowConfig(FlowConfig):
    """Settings of Transformer-TempFlow: the Transformer, its decoding and the flow."""

    width: int = 32
    heads: int = 8
    layers: int = 3
    """Layers of the encoder, and of the decoder."""
    feed_forward: int = 128
    dropout: float = 0.1
    decoding: Literal["prefix", "length-one"] = "prefix"
    """Steps that a sampled step attends to: all earlier steps, as in training, or only itself."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"lag_inputs": 0.03, "coupling_inputs": 0.01},
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
