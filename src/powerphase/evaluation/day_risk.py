"""The risk of a whole day, of buses or lines: one definition behind `outlook` and `calibrate`.

Whether a bus leaves its band at any time of a day depends on how its steps belong together. Only
joint scenarios, each of which is one future of the whole grid, say so. Quantiles of every step do
not: read as futures, they move all steps of a day together and hide risk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError
from powerphase.evaluation.coupling import MIN_SCENARIOS, SCHAAKE, Coupled, Coupling
from powerphase.evaluation.forecasting import predict_blocks
from powerphase.metrics.safety import Band
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.scenarios import Context, Scenarios, Training

JOINT_SCENARIOS = 100
"""Scenarios of a model that can make any number, so that rare events appear; docs/tomorrow.md
compares numbers on validation days."""

COUPLED_SCENARIOS = 16
"""Scenarios of a model that is coupled to past days; chosen on the same days."""

DECIMALS = 6
"""Probabilities are rounded to so many, because a float sum of weights must not break ties."""


def fit_joint(model: Forecaster, train: Training) -> tuple[Forecaster, Description]:
    """Fit the model; returns the form whose scenarios are read for whole days, and who it is.

    A model may have the method `joint_form(count)`, which returns it with so many joint scenarios.
    Any other model whose scenarios are not joint is coupled to past days, which need neither a fit
    nor a long record. A model that does not state whether its scenarios are joint is taken as it
    is. `joint_form` changes only `joint` in the description.
    """
    model.fit(train)
    description, make = describe(model), getattr(model, "joint_form", None)
    if description.joint:
        return model, description
    if make is not None:
        form: Forecaster = make(JOINT_SCENARIOS)
        joint = describe(form).joint
        if joint is False:
            raise ForecastError(
                f"joint_form of {description.model} returns a model with joint_scenarios = False; "
                "return one whose scenarios are joint, or leave the method out"
            )
        return form, replace(description, joint=joint)
    if description.joint is None:
        return model, description
    coupling = Coupling(SCHAAKE, description, count=_past_days(train))
    coupling.fit(train)
    coupled = Coupled(model, coupling)
    return coupled, describe(coupled)


def _past_days(train: Training) -> int:
    """How many past days a model is coupled to, which a short record limits."""
    # A day of local time begins an hour before or after that of the record, which costs one.
    n_days = len(train.time) // train.steps_per_day - 1
    return min(COUPLED_SCENARIOS, max(n_days, MIN_SCENARIOS))


def voltage_blocks(
    model: Forecaster, context: Context, window: int = 0
) -> Iterator[tuple[slice, Scenarios]]:
    """The voltages of a prediction, by consecutive buses."""
    for channels, scenarios in predict_blocks(model, context, Stopwatch(), window):
        first = (V - channels.start) % KINDS
        voltages = scenarios.of_channels(slice(first, None, KINDS))
        n_buses = voltages.values.shape[-1]
        if n_buses:  # a block may be smaller than a bus
            bus = (channels.start + first) // KINDS
            yield slice(bus, bus + n_buses), voltages


@dataclass(frozen=True, eq=False)
class Sides:
    """Which voltages are below and above the band."""

    below: Bool[Tensor, "*S N"]
    above: Bool[Tensor, "*S N"]

    @classmethod
    def of(cls, voltage: Tensor, band: Band) -> "Sides":
        """The sides of these voltages."""
        low, high = band
        return cls(voltage < low, voltage > high)

    @property
    def outside(self) -> Bool[Tensor, "*S N"]:
        """Which are on either side."""
        return self.below | self.above


def probability(
    weights: Float[Tensor, "B M X"], event: Bool[Tensor, "B M *H X"]
) -> Float64[Tensor, "B *H X"]:
    """The weight of the scenarios in which something happens, of X buses or branches."""
    exact = weights.double()
    exact = exact / exact.sum(1, keepdim=True)
    if event.ndim == 4:
        exact = exact.unsqueeze(2)
    return (exact * event).sum(1).round(decimals=DECIMALS).clamp(0, 1)


def ever(
    weights: Float[Tensor, "B M X"], event: Bool[Tensor, "B M H X"], joint: bool | None
) -> Float64[Tensor, "B X"]:
    """The probability that something happens at any time of the day.

    Scenarios that are not joint give a lower bound only: the probability of the worst step.
    """
    if joint is False:
        return probability(weights, event).amax(1)
    return probability(weights, event.any(2))
