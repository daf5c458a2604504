"""The settings of TACTiS-2; the defaults are the reference implementation's, less its quirks."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.configuration import (
    SHORT,
    NetworkConfig,
    TrainingConfig,
    Variants,
)

COUNTS = (
    *("bag", "validation_bags", "series_embedding", "encoder_layers", "feed_forward"),
    *("margin_hidden", "flow_layers", "flow_units", "margin_epochs", "copula_links"),
    *("copula_heads", "copula_width", "copula_hidden", "paths"),
)


@dataclass(frozen=True)
class TactisConfig(NetworkConfig):
    """Settings of the tokens, the encoder, the marginals, the copula, training and forecasts."""

    # The tokens.
    least_scale: float = 1e-4
    """Least standard deviation by which a channel's context is divided."""
    noise: float = 0.0
    """Standard deviation of the normal noise that training adds to targets, in units of
    `least_scale`. Without it, the density of a channel that never moves grows without bound."""
    bag: int = 8
    """Channels of each window that a training step uses."""
    validation_bags: int = 32
    """Bags of each validation window; with only one, chance would choose the weights."""
    series_embedding: int = 5
    """Width of each channel's learned embedding."""

    # The encoder.
    width: int = 16
    """Width of a token; even, because the time encoding has pairs of sine and cosine."""
    encoder_layers: int = 2
    """Layers of attention over time, and as many over series."""
    feed_forward: int = 16

    # The marginals.
    margin_hidden: int = 48
    flow_layers: int = 2
    flow_units: int = 8

    # The copula.
    copula: bool = False
    """Whether a second stage trains the copula, after the marginals."""
    margin_epochs: int = 100
    """Epochs of the first stage, at most half of all; with a copula, all later epochs train it."""
    copula_links: int = 4
    """Channels of a forecast's first bag that are part of every other bag; the other channels of a
    bag are drawn given these."""
    copula_heads: int = 3
    copula_width: int = 8
    """Width of each head."""
    copula_hidden: int = 48
    copula_bins: int = 20

    # The forecast.
    paths: int = 100
    tail: float = 1e-6
    """Probability at either end of a marginal that forecasts leave out."""

    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(weight_decay=1e-8))

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"noise": 1.0, "training.learning_rate": 3e-3},
            "reference": {"least_scale": 1e-8, "tail": 0.05},
            "copula": {"copula": True},
            "reference-scale": {"least_scale": 1e-8},
            "no-tails": {"tail": 0.05},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *((getattr(self, name) < 1, f"{name} must be 1 or more") for name in COUNTS),
            (self.width < 2 or self.width % 2 == 1, "width must be an even number"),
            (self.least_scale <= 0, "least_scale must be above 0"),
            (self.noise < 0, "noise must be 0 or more"),
            (not 0 < self.tail < 0.5, "tail must be between 0 and 0.5"),
            (self.copula_bins < 2, "copula_bins must be 2 or more"),
            (
                self.copula and self.copula_links >= self.bag,
                f"copula_links is {self.copula_links}, but a bag has {self.bag} channels; leave at "
                "least one of them to draw",
            ),
        ]
