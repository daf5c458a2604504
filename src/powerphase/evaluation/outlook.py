"""The outlook: which voltages may leave their band on the day after the record, and when.

Windows that are scored lie within the record, which has their targets. This one follows its end.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int, Shaped
from torch import Tensor

from powerphase.axes import WEIGHT_TOLERANCE
from powerphase.errors import ForecastError
from powerphase.evaluation.day_risk import (
    DECIMALS,
    STEP_HOURS,
    Band,
    Sides,
    check_band,
    choose_scenarios,
    ever_outside,
    probability,
    voltage_blocks,
)
from powerphase.evaluation.forecasting import check_forecaster
from powerphase.metrics.marginal import Fan
from powerphase.models.framework.base import Description, Forecaster
from powerphase.models.framework.device import choose_device
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.scenarios import Layout, Scenarios
from powerphase.task.windows import Task

BY_STEP = ("below", "above", "low", "high")


@dataclass(frozen=True, eq=False)
class Outlook:
    """A model's forecast of every bus's voltage [p.u.] for the day after the record."""

    description: Description
    """The model; `joint` is that of the scenarios that were read."""
    n_scenarios: int
    layout: Layout
    time: Shaped[np.ndarray, " H"]
    """Start of each step, UTC."""
    band_pu: Band
    ever: Float32[np.ndarray, " N"]
    """Probability that a bus leaves the band at any time of the day.

    If `description.joint` is False, only a lower bound: the probability in the worst step.
    """
    below: Float32[np.ndarray, "H N"]
    """Probability that it is below the band in each step."""
    above: Float32[np.ndarray, "H N"]
    low: Float32[np.ndarray, "H N"]
    """Lower end of the central 80 % in each step."""
    high: Float32[np.ndarray, "H N"]

    @cached_property
    def outside(self) -> Float64[np.ndarray, "H N"]:
        """Probability that a bus is outside the band in each step."""
        return np.round(self.below.astype(float) + self.above, DECIMALS)

    @cached_property
    def hours(self) -> Float64[np.ndarray, " N"]:
        """Expected number of hours that each bus is outside the band."""
        return np.round(self.outside.sum(0) * STEP_HOURS, DECIMALS)

    @cached_property
    def margin(self) -> Float32[np.ndarray, "H N"]:
        """Distance of the central 80 % from the limits [p.u.]; negative if they leave the band."""
        lowest, highest = (np.float32(limit) for limit in self.band_pu)
        return np.minimum(self.low - lowest, highest - self.high)

    @cached_property
    def riskiest_step(self) -> Int[np.ndarray, " N"]:
        """When each bus is most likely outside; of several steps, the one with the least margin."""
        return np.where(self.outside == self.outside.max(0), self.margin, np.inf).argmin(0)

    @cached_property
    def always(self) -> Bool[np.ndarray, " N"]:
        """Which buses are outside in every step of every scenario."""
        return np.all(self.outside > 1 - WEIGHT_TOLERANCE, axis=0)

    @cached_property
    def order(self) -> Int[np.ndarray, " N"]:
        """All buses: those most likely to leave the band first, then those outside longer.

        Buses that stay within the band are ordered by their margin.
        """
        return np.lexsort((self.margin.min(0), -self.hours, -self.ever))


def outlook(
    model: Forecaster,
    task: Task,
    *,
    band_pu: Band = NORMAL_BAND_PU,
    device: str = "auto",
) -> Outlook:
    """Fit the model, and forecast the day after the record.

    Args:
        model: any object with `fit` and `predict`.
        task: has the record, and what a model is fitted on.
        band_pu: the lower and the upper limit of the voltage.
        device: cpu, cuda, or auto for a GPU if there is one.
    """
    check_band(band_pu)
    torch_device = choose_device(device)
    check_forecaster(model)
    model.fit(task.training)
    form, description = choose_scenarios(model)
    context, n_buses = task.tomorrow, task.layout.n_buses
    sizes = {"ever": (n_buses,)} | dict.fromkeys(BY_STEP, (context.horizon, n_buses))
    parts = {name: np.full(size, np.nan, np.float32) for name, size in sizes.items()}
    n_scenarios = 0
    for buses, voltages in voltage_blocks(form, context.to(torch_device)):
        n_scenarios = voltages.values.shape[1]
        for name, values in _summarise(voltages, band_pu, description.joint).items():
            parts[name][..., buses] = values[0].cpu().numpy()
    if missing := int(np.isnan(parts["ever"]).sum()):
        raise ForecastError(f"predict returned no voltages for {missing} of {n_buses} buses")
    time = context.future_time[0]
    return Outlook(description, n_scenarios, task.layout, time, band_pu, **parts)


def _summarise(voltages: Scenarios, band_pu: Band, joint: bool | None) -> dict[str, Tensor]:
    """The outlook's values for some buses."""
    sides = Sides.of(voltages.values, band_pu)
    by_step = (
        *(probability(voltages, side) for side in (sides.below, sides.above)),
        *Fan.of(voltages).central_interval,
    )
    ever = ever_outside(voltages, sides.outside, joint)
    return {"ever": ever, **dict(zip(BY_STEP, by_step, strict=True))}
