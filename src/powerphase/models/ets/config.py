"""The options of ETS."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.errors import ConfigError
from powerphase.models.framework.configuration import Variants, variant_of
from powerphase.resolution import rescale_steps

ORIGINS = ("context", "training-end")


@dataclass(frozen=True)
class ETSConfig:
    """The season, where forecasts start, and their noise."""

    season: int = 96
    """Length of the season in quarter-hours, whatever the step of the record is."""
    origin: Literal["context", "training-end"] = "context"
    """Whether paths start at the end of the context or at the end of the training record."""
    trend_noise: bool = False
    """Whether errors change the trend of paths by β instead of αβ, which the fit uses."""
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

    def season_steps(self, step_s: int) -> int:
        """Length of the season in steps of so many seconds."""
        return rescale_steps(self.season, step_s)

    def for_grid(self, grid: str) -> "ETSConfig":
        """This configuration: no option depends on the grid."""
        return self

    def variant(self, grid: str) -> str | None:
        """The name of the options that are not the default."""
        return variant_of(self, ETSConfig(), self.VARIANTS)
