"""Constants of the inputs and the recurrent encoder; the configs of models add theirs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from powerphase.models.framework.configuration import (
    NetworkConfig,
    Rescaling,
    TrainingConfig,
    rescale_all,
)
from powerphase.models.framework.known import QUANTITIES
from powerphase.models.framework.ops import LEAST_SCALE, REFERENCE_SCALE, ZeroScale

CLOCK_FEATURES = 6
"""Cosine and sine of the minute, the hour and the weekday."""

REFERENCE_INPUTS = MappingProxyType({**REFERENCE_SCALE, "minute_period": 46})
"""The reference implementation's inputs, where they differ from our defaults."""


@dataclass(frozen=True)
class LaggedConfig(NetworkConfig):
    """How windows are scaled, what a network sees of them, and how it is trained."""

    lags: tuple[int, ...] = (1, 4, 12, 24, 48)
    """Quarter-hours back that the network sees; the first steps of a context serve only as lags."""
    least_scale: float = LEAST_SCALE
    zero_scale: ZeroScale = "floor"
    minute_period: int = 60
    """Period of the minute feature; the reference takes one more than the largest minute it saw."""
    lag_inputs: float | None = None
    """The layer that reads the lagged values starts and learns as if it had no more than so many
    inputs, n of N: its learning rate is multiplied by n / N, its initial weights by √(n / N). As it
    is (None), one step of Adam moves its outputs by several units on a large grid."""

    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(weight_decay=1e-8))

    IN_QUARTER_HOURS: ClassVar[Mapping[str, Rescaling]] = MappingProxyType({"lags": rescale_all})

    @property
    def n_features(self) -> int:
        """The inputs of a step that are no states: those of the clock."""
        return CLOCK_FEATURES

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (
                not self.lags or min(self.lags) < 1,
                "lags must not be empty, and all must be 1 or more",
            ),
            (len(set(self.lags)) < len(self.lags), "lags must differ from each other"),
            (self.least_scale <= 0, "least_scale must be above 0"),
            (self.minute_period < 1, "minute_period must be 1 or more"),
            (self.lag_inputs is not None and self.lag_inputs <= 0, "lag_inputs must be above 0"),
        ]


@dataclass(frozen=True)
class RecurrentConfig(LaggedConfig):
    """The same with an LSTM encoder."""

    cells: int = 40
    """LSTM cells of each of the two layers."""
    dropout: float = 0.1
    """Between the layers."""

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.cells < 1, "cells must be 1 or more"),
            (not 0 <= self.dropout < 1, "dropout must be in [0, 1)"),
        ]


@dataclass(frozen=True)
class StandardisedConfig(RecurrentConfig):
    """The same with targets that can be standardised."""

    standardise: bool = False
    """Whether the head predicts z less its mean and divided by its deviation, which are measured
    for each channel on the first batches. What the encoder reads stays z."""
    least_deviation: float = 1e-4
    """Added to these deviations in quadrature: the unit of a channel that never moves."""
    noise: bool = False
    """Whether training adds normal noise of `least_deviation` to the z of standardised targets.
    Without it, the density of a channel that never moves grows without bound."""
    informed: bool = False
    """Whether the encoder reads the forecasts of load, sun and wind for each step, besides its
    clock. The task must have forecasts."""

    LATER: ClassVar[frozenset[str]] = frozenset({"informed"})
    """What older rows do not state."""

    @property
    def n_features(self) -> int:
        """The inputs of a step that are no states."""
        return super().n_features + (len(QUANTITIES) if self.informed else 0)

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.least_deviation <= 0, "least_deviation must be above 0"),
            (self.noise and not self.standardise, "noise needs standardise"),
        ]
