"""Calibration of the outlook: what a model said of every bus and day, and what happened.

Buses that always or never leave the band say nothing about a forecast. Only those count that left
it on some, but not all, days of the record that models are fitted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Shaped
from scipy.optimize import isotonic_regression
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.errors import TaskError, UnknownName
from powerphase.evaluation.day_risk import (
    STEP_HOURS,
    Band,
    Sides,
    check_band,
    choose_scenarios,
    ever_outside,
    voltage_blocks,
)
from powerphase.evaluation.forecasting import Progress, check_forecaster
from powerphase.metrics.marginal import Fan, crps
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.models.framework.device import choose_device
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.scenarios import READ_STEPS, Layout, Scenarios, Training
from powerphase.task.windows import Task

SPLITS = ("test", "validation")

CHANCE_EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
HOUR_EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0)
"""The bins of the reliability diagrams."""


class Bin(NamedTuple):
    """The forecasts in one bin of a reliability diagram, means of forecasts and outcomes."""

    low: float
    high: float
    """Excluded, except in the last bin."""
    bus_days: int
    said: float
    happened: float


@dataclass(frozen=True)
class Decomposition:
    """Squared error of forecasts = reliability - resolution + uncertainty, without bins.

    Forecasts are compared with the best monotone function of themselves. Reliability is what that
    function would improve (0 is best), resolution what it still gains over the plain mean.

    Reference: doi:10.1073/pnas.2016191118
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float

    @classmethod
    def of(
        cls, said: Float64[np.ndarray, " K"], happened: Float64[np.ndarray, " K"]
    ) -> "Decomposition":
        """The decomposition of the mean squared error."""
        _, group, counts = np.unique(said, return_inverse=True, return_counts=True)
        means = np.bincount(group, happened) / counts
        best = isotonic_regression(means, weights=counts).x[group]
        score, least, spread = (
            float(np.mean((forecast - happened) ** 2)) for forecast in (said, best, happened.mean())
        )
        return cls(score, score - least, spread - least, spread)


@dataclass(frozen=True, eq=False)
class Calibration:
    """A model's forecasts of leaving the band on B days at the N buses that count."""

    description: Description
    """The model; `joint` is that of the scenarios that were read."""
    n_scenarios: int
    layout: Layout
    buses: Bool[np.ndarray, " all_buses"]
    """Which buses count."""
    split: str
    """One of `SPLITS`."""
    days: list[str]
    band_pu: Band
    chance: Float64[np.ndarray, "B N"]
    """Forecast probability of leaving the band at any time of the day."""
    left: Bool[np.ndarray, "B N"]
    """Whether it was left."""
    hours: Float64[np.ndarray, "B N"]
    """Forecast hours outside the band, expected value."""
    hours_outside: Float64[np.ndarray, "B N"]
    """Hours that it was outside."""
    hours_crps: Float64[np.ndarray, "B N"]
    """CRPS of the forecast hours [h]."""

    @cached_property
    def brier(self) -> Decomposition:
        """Brier score of the chance, and its parts."""
        return Decomposition.of(self.chance.ravel(), self.left.ravel().astype(float))

    @cached_property
    def squared_hours(self) -> Decomposition:
        """Squared error of the expected hours [h²], and its parts."""
        return Decomposition.of(self.hours.ravel(), self.hours_outside.ravel())

    @property
    def chance_bins(self) -> list[Bin]:
        """Forecast probabilities, and how often the band was left."""
        return _bins(self.chance, self.left, CHANCE_EDGES)

    @property
    def hour_bins(self) -> list[Bin]:
        """Forecast hours, and the hours that happened."""
        return _bins(self.hours, self.hours_outside, HOUR_EDGES)


def calibrate(
    model: Forecaster,
    task: Task,
    *,
    split: str = "test",
    joint: bool = True,
    band_pu: Band = NORMAL_BAND_PU,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Calibration:
    """Fit the model, and compare what it says of the task's windows with what happened.

    Args:
        model: any object with `fit` and `predict`.
        task: has the windows; with `windows="all"` every day of the test split.
        split: test windows, for a final score, or validation windows, for choices.
        joint: whether joint scenarios are used where the model can make them, as in `outlook`, or
            always those that are scored.
        band_pu: the lower and the upper limit of the voltage.
        device: cpu, cuda, or auto for a GPU if there is one.
        on_progress: called with the number of windows done, and the number of all.
    """
    check_band(band_pu)
    if split not in SPLITS:
        raise UnknownName.among("split", split, SPLITS)
    torch_device = choose_device(device)
    check_forecaster(model)
    buses = _changing_buses(task.training, task.protocol.horizon, band_pu)
    if not buses.any():
        low, high = band_pu
        raise TaskError(
            f"no bus of {task.layout.grid} leaves {low:g} to {high:g} p.u. on some but not all "
            "days of the training record, so there is nothing to calibrate; choose another band "
            "or grid"
        )
    model.fit(task.training)
    form, description = choose_scenarios(model) if joint else (model, describe(model))
    windows = task.test if split == "test" else task.training.validation
    n_scenarios, days = 0, []
    for window in range(len(windows)):
        context, target = windows.context(window).to(torch_device), windows.target(window)
        happened = target[..., V::KINDS].to(torch_device)
        parts = []
        for part, voltages in voltage_blocks(form, context, window):
            n_scenarios = voltages.values.shape[1]
            parts.append(_compare(voltages, happened[..., part], band_pu, description.joint))
        days.append(torch.cat(parts, dim=1).cpu().numpy()[:, buses])
        if on_progress:
            on_progress(window + 1, len(windows))
    chance, left, *hours = np.stack(days, axis=1)
    starts = [windows.start(window) for window in range(len(windows))]
    facts = (description, n_scenarios, task.layout, buses, split, starts, band_pu)
    return Calibration(*facts, chance, left > 0, *hours)


def _compare(
    voltages: Scenarios, target: Float32[Tensor, "1 H N"], band_pu: Band, joint: bool | None
) -> Float64[Tensor, "5 N"]:
    """The five quantities of a `Calibration` for one window and some buses."""
    outside, happened = (Sides.of(v, band_pu).outside for v in (voltages.values, target))
    hours = Scenarios(STEP_HOURS * outside.double().sum(2, keepdim=True), voltages.weights.double())
    true_hours = STEP_HOURS * happened.double().sum(1, keepdim=True)
    fan = Fan.of(hours)
    quantities = (
        ever_outside(voltages, outside, joint),
        happened.any(1),
        fan.expect(fan.values)[:, 0],
        true_hours[:, 0],
        crps(fan, true_hours)[:, 0],
    )
    return torch.cat([quantity.double() for quantity in quantities])


def _bins(
    said: Float64[np.ndarray, "B N"], happened: Shaped[np.ndarray, "B N"], edges: Sequence[float]
) -> list[Bin]:
    """The bins that hold any forecasts."""
    number = np.digitize(said, edges[1:-1])
    filled = [(k, number == k) for k in range(len(edges) - 1)]
    return [
        Bin(
            edges[k],
            edges[k + 1],
            int(part.sum()),
            *(float(x[part].mean()) for x in (said, happened)),
        )
        for k, part in filled
        if part.any()
    ]


def _changing_buses(train: Training, horizon: int, band_pu: Band) -> Bool[np.ndarray, " N"]:
    """Which buses left the band on some, but not all, days of the record."""
    n_days = len(train.time) // horizon
    counts = np.zeros(train.layout.n_buses, dtype=int)
    at_once = max(1, READ_STEPS // horizon)
    for first in range(0, n_days, at_once):
        last = min(first + at_once, n_days)
        voltage = train.read(slice(first * horizon, last * horizon))[:, V::KINDS]
        outside = Sides.of(voltage, band_pu).outside.unflatten(0, (last - first, horizon))
        counts += outside.any(1).sum(0).numpy()
    return (counts > 0) & (counts < n_days)
