"""The options of FactorForge. The defaults were chosen on held-out days of the training record."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.errors import ConfigError
from powerphase.models.framework.configuration import Variants, variant_of

COUPLINGS = ("fan", "draws", "ranked", "days")


@dataclass(frozen=True)
class FactorForgeConfig:
    """How factors are found, forecast and turned into scenarios, whatever the record's step."""

    # The factors.
    rank: int = 32
    """Directions of largest variance in which factors are searched."""
    oversampling: int = 16
    """Random directions beyond the rank, which make the randomised SVD reliable."""
    factors: int = 12
    """The maximum number of factors."""
    persistence: float = 0.5
    """The least correlation of a factor with itself a quarter-hour earlier, or a step where
    steps are longer; the rest is noise."""

    # The forecast of the factors.
    festive_weekends: bool = False
    """Whether the features of Christmas also apply to days off."""
    calendar_strength: float = 0.1
    """Strength of the calendar's ridge regression, per sample."""
    lag_days: tuple[int, ...] = (1, 7)
    """The days back whose same time of day is an input, as far as the context reaches."""
    recent_steps: tuple[int, ...] = (4, 16, 48)
    """The numbers of last quarter-hours whose means are inputs."""
    recent_favour: float = 10.0
    """The factor by which the last steps are penalised less than the other inputs."""
    strengths: tuple[float, ...] = (0.05, 0.15, 0.5, 1.5)
    """Ridge strengths per sample, of which each factor's is chosen on held-out days."""
    informed: bool = True
    """Whether forecasts of load, sun and wind are inputs, if the task has them."""

    # The error, measured on held-out days.
    fold_days: int = 31
    """Days that are held out together."""
    averaged_steps: int = 9
    """Quarter-hours over which the error covariance is averaged."""

    # The scenarios.
    scenarios: int = 16
    coupling: Literal["fan", "draws", "ranked", "days"] = "fan"
    """What belongs to one scenario: the same quantile of all channels, a random draw, quantiles in
    the rank order of random draws, or a past day with its noise."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "draws": {"coupling": "draws"},
            "ranked": {"coupling": "ranked"},
            "days": {"coupling": "days", "scenarios": 100},
            "uninformed": {"informed": False},
        }
    )
    LATER: ClassVar[frozenset[str]] = frozenset({"informed"})
    """What older rows do not state."""

    def __post_init__(self) -> None:
        for name in ("rank", "factors", "fold_days", "scenarios"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, found {getattr(self, name)}")
        if not self.lag_days or min(self.lag_days) < 1 or not self.strengths:
            raise ConfigError("lag_days and strengths must not be empty, and lag_days 1 or more")
        for name in ("calendar_strength", "recent_favour", "averaged_steps"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above 0, found {getattr(self, name)}")
        if not 0 <= self.persistence < 1 or self.oversampling < 0:
            raise ConfigError("persistence must be 0 or more and below 1, oversampling 0 or more")
        if self.coupling not in COUPLINGS:
            raise ConfigError(f"coupling must be one of {COUPLINGS}, found {self.coupling!r}")
        if min(self.strengths) <= 0 or min(self.recent_steps, default=1) < 1:
            raise ConfigError("strengths must be above 0 and recent_steps 1 or more")

    def for_grid(self, grid: str) -> "FactorForgeConfig":
        """This configuration: no option depends on the grid."""
        return self

    def variant(self, grid: str) -> str | None:
        """The word of the coupling; `custom` where other options are not the default."""
        return variant_of(self, FactorForgeConfig(), self.VARIANTS)
