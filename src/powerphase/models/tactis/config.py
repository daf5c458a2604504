"""What can be chosen about TACTiS-2; the defaults are the reference's, less its quirks."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from powerphase.errors import ConfigError
from powerphase.models.framework.training_config import TrainingConfig
from powerphase.models.framework.variants import Variants, variant_of

COUNTS = (
    *("bag", "validation_bags", "series_embedding", "encoder_layers", "feed_forward"),
    *("margin_hidden", "flow_layers", "flow_units", "margin_epochs", "copula_channels"),
    *("copula_heads", "copula_width", "copula_hidden", "paths"),
)


@dataclass(frozen=True)
class TactisConfig:
    """Tokens and their encoder, the margins and the copula on it, how they learn and answer."""

    # The tokens.
    least_scale: float = 1e-4
    """Floor of a channel's standard deviation in a context, normalised, by which it is divided."""
    bag: int = 8
    """Channels of a window that a step of training looks at."""
    validation_bags: int = 32
    """Bags of each validation window: one would choose the weights by chance."""
    series_embedding: int = 5
    """Numbers that are learned of each channel."""

    # The encoder.
    width: int = 16
    """Numbers of a token; even, for its sines and cosines of time."""
    encoder_layers: int = 2
    """Of attention over time, and then over series, each."""
    feed_forward: int = 16

    # The margins.
    margin_hidden: int = 48
    flow_layers: int = 2
    flow_units: int = 8

    # The copula.
    copula: bool = False
    """Whether it is learned, after the margins, what tokens have to do with each other."""
    margin_epochs: int = 20
    """Epochs of the first stage; all later ones are the copula's, where there is one."""
    copula_channels: int = 480
    """The most channels of a grid with a copula: its draws are made one token after the other."""
    copula_heads: int = 3
    copula_width: int = 8
    """Of each head."""
    copula_hidden: int = 48
    copula_bins: int = 20

    # The forecast.
    paths: int = 100
    tail: float = 1e-6
    """Probability at either end of a margin from which nothing is drawn."""

    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(epochs=20, weight_decay=1e-8)
    )

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"least_scale": 1e-8, "tail": 0.05},
            "copula": {"training.epochs": 200, "copula": True},
            "reference-scale": {"least_scale": 1e-8},
            "no-tails": {"tail": 0.05},
            "long": {"training.epochs": 200},
            "short": {"training.epochs": 2},
        }
    )

    def __post_init__(self) -> None:
        problems = [text for fails, text in self._rules() if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *((getattr(self, name) < 1, f"{name} must be 1 or more") for name in COUNTS),
            (self.width < 2 or self.width % 2 == 1, "width must be an even number"),
            (self.least_scale <= 0, "least_scale must be above 0"),
            (not 0 < self.tail < 0.5, "tail must be between 0 and 0.5"),
            (self.copula_bins < 2, "copula_bins must be 2 or more"),
            (
                self.copula and self.training.epochs <= self.margin_epochs,
                f"a copula is learned after {self.margin_epochs} epochs of margins and "
                f"training.epochs is {self.training.epochs}; give more, the reference takes 200",
            ),
        ]

    def for_grid(self, grid: str) -> "TactisConfig":
        """The same: a batch size that is not given is the largest that fits."""
        return self

    def variant(self, grid: str) -> str | None:
        """What is not the default about it, in a word each; None if nothing is."""
        default, size = TactisConfig(), self.training.batch_size
        default = replace(default, training=replace(default.training, batch_size=size))
        return variant_of(self, default, self.VARIANTS)
