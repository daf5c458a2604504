"""What can be chosen about ETS."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.axes import STEPS_PER_DAY
from powerphase.errors import ConfigError
from powerphase.models.framework.variants import Variants, variant_of

ORIGINS = ("context", "training-end")


@dataclass(frozen=True)
class ETSConfig:
    """The season, where forecasts begin, and how they spread."""

    season: int = STEPS_PER_DAY
    """Its length in steps."""
    origin: Literal["context", "training-end"] = "context"
    """Whether paths begin where the context ends, or always where the training record ends."""
    trend_noise: bool = False
    """Whether errors drive the trend of paths by β, and not by αβ as in the fit."""
    samples: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"season": 24, "origin": "training-end", "trend_noise": True},
            "season-24": {"season": 24},
            "stale": {"origin": "training-end"},
            "trend-noise": {"trend_noise": True},
        }
    )

    def __post_init__(self) -> None:
        if self.season < 2:
            raise ConfigError(f"season must be 2 or more, found {self.season}")
        if self.samples < 1:
            raise ConfigError(f"samples must be 1 or more, found {self.samples}")
        if self.origin not in ORIGINS:
            raise ConfigError(f"origin must be one of {ORIGINS}, found {self.origin!r}")

    def for_grid(self, grid: str) -> "ETSConfig":
        """The same: nothing is left to the grid."""
        return self

    def variant(self, grid: str) -> str | None:
        """The words for what is not the default."""
        return variant_of(self, ETSConfig(), self.VARIANTS)
