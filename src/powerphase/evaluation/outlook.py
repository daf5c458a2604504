"""The outlook: which voltages may leave their band on the day after the record, and when.

Windows that are scored lie within the record, which has their targets. This one follows its end.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from powerphase.axes import KINDS, STEP_S, WEIGHT_TOLERANCE, V
from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError, TaskError
from powerphase.evaluation.forecasting import check_forecaster, predict_blocks
from powerphase.metrics.marginal import Fan
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.models.framework.device import choose_device
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.scenarios import Layout, Scenarios
from powerphase.task.windows import Task

BY_STEP = ("below", "above", "low", "high")


@dataclass(frozen=True, eq=False)
class Outlook:
    """A model's forecast of every bus's voltage [p.u.] for the day after the record."""

    description: Description
    n_scenarios: int
    layout: Layout
    time: Shaped[np.ndarray, " H"]
    """Start of each step, UTC."""
    band_pu: tuple[float, float]
    ever: Float32[np.ndarray, " N"]
    """Probability that a bus leaves the band at any time of the day."""
    below: Float32[np.ndarray, "H N"]
    """Probability that it is below the band in each step."""
    above: Float32[np.ndarray, "H N"]
    low: Float32[np.ndarray, "H N"]
    """Lower end of the central 80 % in each step."""
    high: Float32[np.ndarray, "H N"]

    @cached_property
    def hours(self) -> Float32[np.ndarray, " N"]:
        """Expected number of hours that each bus is outside the band."""
        return (self.below + self.above).sum(0) * np.float32(STEP_S / 3600)

    @cached_property
    def margin(self) -> Float32[np.ndarray, "H N"]:
        """Distance of the central 80 % from the limits [p.u.]; negative if they leave the band."""
        lowest, highest = (np.float32(limit) for limit in self.band_pu)
        return np.minimum(self.low - lowest, highest - self.high)

    @cached_property
    def riskiest_step(self) -> Int[np.ndarray, " N"]:
        """When each bus is most likely outside; of several steps, the one with the least margin."""
        outside = self.below + self.above
        return np.where(outside == outside.max(0), self.margin, np.inf).argmin(0)

    @cached_property
    def always(self) -> Bool[np.ndarray, " N"]:
        """Which buses are outside in every step of every scenario, up to rounding of weights."""
        return ((self.below + self.above) > 1 - WEIGHT_TOLERANCE).all(0)

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
    band_pu: tuple[float, float] = NORMAL_BAND_PU,
    device: str = "auto",
) -> Outlook:
    """Fit the model, and forecast the day after the record.

    Args:
        model: any object with `fit` and `predict`.
        task: has the record, and what a model is fitted on.
        band_pu: the lower and the upper limit of the voltage.
        device: cpu, cuda, or auto for a GPU if there is one.
    """
    lowest, highest = band_pu
    if not lowest < highest:
        raise TaskError(
            f"the band from {lowest} to {highest} p.u. is empty; give the lower limit first"
        )
    torch_device = choose_device(device)
    check_forecaster(model)
    model.fit(task.training)
    context, n_buses = task.tomorrow, task.layout.n_buses
    sizes = {"ever": (n_buses,)} | dict.fromkeys(BY_STEP, (context.horizon, n_buses))
    parts = {name: np.full(size, np.nan, np.float32) for name, size in sizes.items()}
    n_scenarios = 0
    for channels, scenarios in predict_blocks(model, context.to(torch_device), Stopwatch()):
        first = (V - channels.start) % KINDS
        voltages = scenarios.of_channels(slice(first, None, KINDS))
        _, n_scenarios, _, n_in_block = voltages.values.shape
        if n_in_block == 0:  # a block may be smaller than a bus
            continue
        bus = (channels.start + first) // KINDS
        for name, values in _summarise(voltages, band_pu).items():
            parts[name][..., bus : bus + n_in_block] = values[0].cpu().numpy()
    if missing := int(np.isnan(parts["ever"]).sum()):
        raise ForecastError(f"predict returned no voltages for {missing} of {n_buses} buses")
    time = context.future_time[0]
    return Outlook(describe(model), n_scenarios, task.layout, time, band_pu, **parts)


def _summarise(voltages: Scenarios, band_pu: tuple[float, float]) -> dict[str, Tensor]:
    """The outlook's values for some buses."""
    lowest, highest = band_pu
    outside = (voltages.values < lowest) | (voltages.values > highest)
    leaves = outside.any(2).to(voltages.values.dtype)
    fan = Fan.of(voltages)
    below, above = (
        fan.expect(side.to(fan.values.dtype)).clamp(0, 1)
        for side in (fan.values < lowest, fan.values > highest)
    )
    ever = (voltages.normalised_weights * leaves).sum(1).clamp(0, 1)
    by_step = (below, above, *fan.central_interval)
    return {"ever": ever, **dict(zip(BY_STEP, by_step, strict=True))}
