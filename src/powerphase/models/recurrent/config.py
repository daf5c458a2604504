"""What can be chosen about inputs and the recurrent front end; the configs of models add to it."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from powerphase.errors import ConfigError
from powerphase.models.framework.scaling import LEAST_SCALE, REFERENCE_SCALE, ZeroScale
from powerphase.models.framework.training_config import TrainingConfig
from powerphase.models.framework.variants import SHORT, Variants, variant_of

R = TypeVar("R", bound="LaggedConfig")

REFERENCE_INPUTS = MappingProxyType({**REFERENCE_SCALE, "minute_period": 46})
"""What the reference implementation does to all inputs, and we do not."""


@dataclass(frozen=True)
class LaggedConfig:
    """How windows are scaled, what a network is told of them, and how it is trained."""

    lags: tuple[int, ...] = (1, 4, 12, 24, 48)
    """Steps back that it is shown; as many first steps of a context serve for this alone."""
    least_scale: float = LEAST_SCALE
    zero_scale: ZeroScale = "floor"
    minute_period: int = 60
    """What the minute goes round in; the reference takes the largest it saw, and one more."""

    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(weight_decay=1e-8))

    VARIANTS: ClassVar[Variants] = SHORT

    def __post_init__(self) -> None:
        problems = [text for fails, text in self._rules() if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (not self.lags or min(self.lags) < 1, "lags needs a number, and all must be 1 or more"),
            (len(set(self.lags)) < len(self.lags), "lags must differ from each other"),
            (self.least_scale <= 0, "least_scale must be above 0"),
            (self.minute_period < 1, "minute_period must be 1 or more"),
        ]

    def for_grid(self: R, grid: str) -> R:
        """The same: a batch size that is not given is the largest that fits."""
        return self

    def variant(self, grid: str) -> str | None:
        """What is not the default about it, in a word each; None if nothing is."""
        default: Any = type(self)()
        size = self.training.batch_size
        default = replace(default, training=replace(default.training, batch_size=size))
        return variant_of(self, default, self.VARIANTS)


@dataclass(frozen=True)
class RecurrentConfig(LaggedConfig):
    """The same, and the LSTM."""

    cells: int = 40
    """Of each of the two layers."""
    dropout: float = 0.1
    """Between the layers."""

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.cells < 1, "cells must be 1 or more"),
            (not 0 <= self.dropout < 1, "dropout must be in [0, 1)"),
        ]
