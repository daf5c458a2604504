"""What can be chosen about FactorForge. The values were chosen on left-out days of training."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from powerphase.errors import ConfigError
from powerphase.models.framework.variants import Variants, variant_of

COUPLINGS = ("fan", "draws")


@dataclass(frozen=True)
class FactorForgeConfig:
    """How factors are found, forecast and turned into scenarios."""

    # The factors.
    rank: int = 32
    """Directions of largest variance among which factors are looked for."""
    oversampling: int = 16
    """Random directions beyond the rank, which make the search for it safe."""
    factors: int = 12
    """The most factors that are kept."""
    persistence: float = 0.5
    """A factor's least correlation with itself a step earlier: below it, it is noise."""

    # The forecast of the factors.
    festive_weekends: bool = False
    """Whether the days around Christmas are special also where they are days off anyway."""
    calendar_strength: float = 0.1
    """Of the ridge that fits the calendar, per sample."""
    lag_days: tuple[int, ...] = (1, 7)
    """The days back whose same time of day is looked at, as far as the context has them."""
    recent_steps: tuple[int, ...] = (4, 16, 48)
    """The last steps are looked at as their means over so many."""
    recent_favour: float = 10.0
    """How much less the last steps are penalised than the rest."""
    strengths: tuple[float, ...] = (0.05, 0.15, 0.5, 1.5)
    """Of the ridge per sample, among which each factor's is chosen on days left out."""

    # The error, measured on days left out.
    fold_days: int = 31
    """Days that are left out together."""
    averaged_steps: int = 9
    """Neighbouring steps that share an error covariance."""

    # The scenarios.
    scenarios: int = 16
    coupling: Literal["fan", "draws"] = "fan"
    """Whether scenarios are quantiles that all channels take together, or draws of everything."""

    VARIANTS: ClassVar[Variants] = MappingProxyType({"draws": {"coupling": "draws"}})

    def __post_init__(self) -> None:
        for name in ("rank", "factors", "fold_days", "scenarios"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, found {getattr(self, name)}")
        if not self.lag_days or min(self.lag_days) < 1 or not self.strengths:
            raise ConfigError("lag_days and strengths need a number each, days of 1 or more")
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
        """The same: nothing is left to the grid."""
        return self

    def variant(self, grid: str) -> str | None:
        """`draws` where scenarios are such, `custom` where anything else is not the default."""
        return variant_of(self, FactorForgeConfig(), self.VARIANTS)
