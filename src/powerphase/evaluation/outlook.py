"""The day after a record: which voltages may leave their band, how likely, and when.

Windows that are scored lie within a record, since what happened must be known. This one lies after
its end.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped
from torch import Tensor

from powerphase.axes import KINDS, STEP_S, WEIGHT_TOLERANCE, V
from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError, TaskError
from powerphase.evaluation.forecasting import blocks_of, check_forecaster
from powerphase.metrics.marginal import Fan
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.models.framework.device import choose_device
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.scenarios import Layout, Scenarios
from powerphase.task.windows import Task

STEP_BY_STEP = ("below", "above", "low", "high")


@dataclass(frozen=True, eq=False)
class Outlook:
    """What a model expects of every bus's voltage [p.u.] on the day after the record."""

    description: Description
    n_scenarios: int
    layout: Layout
    time: Shaped[np.ndarray, " H"]
    """Start of each step, UTC."""
    band_pu: tuple[float, float]
    ever: Float32[np.ndarray, " N"]
    """How likely a bus leaves the band at any time of the day."""
    below: Float32[np.ndarray, "H N"]
    """How likely it is below the band in each step."""
    above: Float32[np.ndarray, "H N"]
    low: Float32[np.ndarray, "H N"]
    """Where the central 80 % begin in each step."""
    high: Float32[np.ndarray, "H N"]

    @cached_property
    def hours(self) -> Float32[np.ndarray, " N"]:
        """For how many hours each bus is expected outside the band."""
        return (self.below + self.above).sum(0) * np.float32(STEP_S / 3600)

    @cached_property
    def room(self) -> Float32[np.ndarray, "H N"]:
        """How far the central 80 % stay within the band [p.u.]; below 0, how far they leave it."""
        lowest, highest = (np.float32(limit) for limit in self.band_pu)
        return np.minimum(self.low - lowest, highest - self.high)

    @cached_property
    def riskiest_step(self) -> Int[np.ndarray, " N"]:
        """When each bus is most likely outside; of several steps, the one with the least room."""
        outside = self.below + self.above
        return np.where(outside == outside.max(0), self.room, np.inf).argmin(0)

    @cached_property
    def always(self) -> Bool[np.ndarray, " N"]:
        """Which buses are outside in every step of every scenario, up to rounded weights."""
        return ((self.below + self.above) > 1 - WEIGHT_TOLERANCE).all(0)

    @cached_property
    def order(self) -> Int[np.ndarray, " N"]:
        """All buses: the likeliest to leave first; of two alike, the one that is outside longer.

        Of two that stay within the band, the one with less room.
        """
        return np.lexsort((self.room.min(0), -self.hours, -self.ever))


def outlook(
    model: Forecaster,
    task: Task,
    *,
    band_pu: tuple[float, float] = NORMAL_BAND_PU,
    device: str = "auto",
) -> Outlook:
    """Fit the model, and ask it about the day after the record.

    Args:
        model: any object with `fit` and `predict`.
        task: whose record it is, and what a model is fitted on.
        band_pu: the lowest and the highest voltage that is no cause for concern.
        device: cpu, cuda, or auto for a GPU where there is one.
    """
    lowest, highest = band_pu
    if not lowest < highest:
        raise TaskError(
            f"a band from {lowest} to {highest} p.u. holds nothing; the lower one first"
        )
    place = choose_device(device)
    check_forecaster(model)
    model.fit(task.training)
    context, n_buses = task.tomorrow, task.layout.n_buses
    sizes = {"ever": (n_buses,)} | dict.fromkeys(STEP_BY_STEP, (context.horizon, n_buses))
    parts = {name: np.full(size, np.nan, np.float32) for name, size in sizes.items()}
    n_scenarios = 0
    for channels, scenarios in blocks_of(model, context.to(place), Stopwatch()):
        first = (V - channels.start) % KINDS
        voltages = scenarios.of_channels(slice(first, None, KINDS))
        _, n_scenarios, _, n_here = voltages.values.shape
        if n_here == 0:  # a block may be smaller than a bus
            continue
        bus = (channels.start + first) // KINDS
        for name, found in _expected(voltages, band_pu).items():
            parts[name][..., bus : bus + n_here] = found[0].cpu().numpy()
    if missing := int(np.isnan(parts["ever"]).sum()):
        raise ForecastError(f"predict gave no voltages of {missing} of {n_buses} buses")
    time = context.future_time[0]
    return Outlook(describe(model), n_scenarios, task.layout, time, band_pu, **parts)


def _expected(voltages: Scenarios, band_pu: tuple[float, float]) -> dict[str, Tensor]:
    """What an outlook says of some buses."""
    lowest, highest = band_pu
    outside = (voltages.values < lowest) | (voltages.values > highest)
    leaves = outside.any(2).to(voltages.values.dtype)
    fan = Fan.of(voltages)
    below, above = (
        fan.expect(side.to(fan.values.dtype)).clamp(0, 1)
        for side in (fan.values < lowest, fan.values > highest)
    )
    ever = (voltages.normalised_weights * leaves).sum(1).clamp(0, 1)
    found = (below, above, *fan.central_interval)
    return {"ever": ever, **dict(zip(STEP_BY_STEP, found, strict=True))}
