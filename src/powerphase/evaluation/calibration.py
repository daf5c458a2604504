"""Calibration of the outlook: what a model said of every bus or line and day, and what happened.

Buses that always or never leave their band say nothing about a forecast, nor do lines that are
always or never overloaded. Only those count that violated their limits on some, but not all, days
of the record that models are fitted on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Shaped
from scipy.optimize import isotonic_regression
from torch import Tensor

from powerphase.axes import KINDS, THETA, V
from powerphase.errors import ForecastError, TaskError, UnknownName
from powerphase.evaluation.day_risk import (
    Sides,
    ever,
    fit_joint,
    voltage_blocks,
)
from powerphase.evaluation.day_states import StateReader, predict_states, rated_loading
from powerphase.evaluation.forecasting import Progress, check_forecaster
from powerphase.metrics.marginal import Fan, crps
from powerphase.metrics.safety import bus_band
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.models.framework.device import choose_device
from powerphase.resolution import HOUR_S
from powerphase.scenarios import READ_STEPS, Context, Layout, Scenarios, Training
from powerphase.task.windows import Task

Event = tuple[slice, Bool[Tensor, "1 M H X"], Float[Tensor, "1 M X"]]
"""Violations in the scenarios of some buses or lines, and their weights."""
EventReader = Callable[[Forecaster, Context, int], Iterator[Event]]

SPLITS = ("test", "validation")
SUBJECTS = ("buses", "lines")

CHANCE_EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
HOUR_EDGES = (0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 20.0, 24.0)
"""The bins of the reliability diagrams; longer horizons have more than the last one."""


class Bin(NamedTuple):
    """The forecasts in one bin of a reliability diagram, means of forecasts and outcomes."""

    low: float
    high: float
    """Excluded, except in the last bin."""
    cases: int
    """Forecasts: buses or lines times days."""
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
    """A model's forecasts of violations on B days at the X buses or lines that count."""

    description: Description
    """The model; `joint` is that of the scenarios that were read."""
    n_scenarios: int
    layout: Layout
    subject: str
    """One of `SUBJECTS`."""
    counts: Bool[np.ndarray, " all"]
    """Which buses, or which rated lines, count."""
    split: str
    """One of `SPLITS`."""
    days: list[str]
    limits: str
    """The voltage limits, as a task names them."""
    rating: str
    chance: Float64[np.ndarray, "B X"]
    """Forecast probability of a violation at any time of the day."""
    violated: Bool[np.ndarray, "B X"]
    """Whether there was one."""
    hours: Float64[np.ndarray, "B X"]
    """Forecast hours of violation, expected value."""
    hours_violated: Float64[np.ndarray, "B X"]
    """Hours of violation that happened."""
    hours_crps: Float64[np.ndarray, "B X"]
    """CRPS of the forecast hours [h]."""
    known: Bool[np.ndarray, "B X"]
    """Where the whole day is observed; nothing is compared elsewhere."""

    @cached_property
    def brier(self) -> Decomposition:
        """Brier score of the chance, and its parts."""
        return Decomposition.of(self.chance[self.known], self.violated[self.known].astype(float))

    @cached_property
    def squared_hours(self) -> Decomposition:
        """Squared error of the expected hours [h²], and its parts."""
        return Decomposition.of(self.hours[self.known], self.hours_violated[self.known])

    @property
    def chance_bins(self) -> list[Bin]:
        """Forecast probabilities, and how often there was a violation."""
        return _bins(self.chance[self.known], self.violated[self.known], CHANCE_EDGES)

    @property
    def hour_bins(self) -> list[Bin]:
        """Forecast hours, and the hours that happened."""
        return _bins(self.hours[self.known], self.hours_violated[self.known], HOUR_EDGES)


def calibrate(
    model: Forecaster,
    task: Task,
    *,
    subject: str = "buses",
    split: str = "test",
    joint: bool = True,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Calibration:
    """Fit the model, and compare what it says of the task's windows with what happened.

    Args:
        model: any object with `fit` and `predict`.
        task: has the windows and the limits; with `windows="all"` every day of the test split.
        subject: `buses`, for voltages outside their band, or `lines`, for overloads.
        split: test windows, for a final score, or validation windows, for choices.
        joint: whether joint scenarios are read, as in `outlook`, or those that are scored.
        device: cpu, cuda, or auto for a GPU if there is one.
        on_progress: called with the number of windows done, and the number of all.
    """
    for kind, name, known in (("split", split, SPLITS), ("subject", subject, SUBJECTS)):
        if name not in known:
            raise UnknownName.among(kind, name, known)
    torch_device = choose_device(device)
    check_forecaster(model)
    counts = _counted(task, subject)
    form, description = _fit(model, task, joint)
    windows = task.test if split == "test" else task.training.validation
    read = _event_reader(task, subject, description.joint)
    n_scenarios, days, whole = 0, [], []
    for window in range(len(windows)):
        context = windows.context(window).to(torch_device)
        happened = _violations(task.layout, subject, windows.target(window))
        events = read(form, context, window)
        step_hours = context.step_s / HOUR_S
        n_read, day = _compare_day(events, happened, description.joint, step_hours)
        n_scenarios = max(n_scenarios, n_read)  # unsolved ones are left out
        days.append(day[:, counts])
        complete = _known_days(task.layout, subject, windows.observed(window), len(counts))
        whole.append(complete[counts])
        if on_progress:
            on_progress(window + 1, len(windows))
    if not np.any(whole):
        raise TaskError(
            f"{task.layout.grid}: no {subject} of a whole day are observed in the windows"
        )
    chance, violated, expected, hours, score = np.stack(days, axis=1)
    return Calibration(
        description,
        n_scenarios,
        task.layout,
        subject,
        counts,
        split,
        [windows.start(window) for window in range(len(windows))],
        task.protocol.limits,
        task.protocol.rating,
        chance,
        violated > 0,
        expected,
        hours,
        score,
        np.stack(whole),
    )


def _counted(task: Task, subject: str) -> Bool[np.ndarray, " X"]:
    """Which buses or lines count; raise if none does."""
    counts = _changing(task.training, task.protocol.horizon, subject)
    if not counts.any():
        raise TaskError(
            f"{task.layout.grid}: none of its {subject} violates its limits on some, but not all, "
            f"days of the training record (task {task.name}), so nothing can be said; choose other "
            "limits or another grid"
        )
    return counts


def _fit(model: Forecaster, task: Task, joint: bool) -> tuple[Forecaster, Description]:
    """The fitted model in the form whose scenarios are read, and its description."""
    if joint:
        return fit_joint(model, task.training)
    model.fit(task.training)
    return model, describe(model)


def _compare_day(
    events: Iterator[Event], happened: Tensor, joint: bool | None, step_hours: float
) -> tuple[int, Float64[np.ndarray, "5 X"]]:
    """The number of scenarios of a day, and what they say of each bus or line beside the truth."""
    n_scenarios, parts = 0, []
    for part, event, weights in events:
        n_scenarios = max(n_scenarios, event.shape[1])
        actual = happened[..., part].to(event.device)
        parts.append(_compare(event, weights, actual, joint, step_hours))
    return n_scenarios, torch.cat(parts, dim=1).cpu().numpy()


def _bins(
    said: Float64[np.ndarray, " K"], happened: Shaped[np.ndarray, " K"], edges: Sequence[float]
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


def _event_reader(task: Task, subject: str, joint: bool | None) -> EventReader:
    """How the violations in a model's scenarios are read."""
    if subject == "lines":
        return partial(_line_events, StateReader(task), joint)
    return partial(_solved_bus_events, StateReader(task)) if joint else _bus_events


def _bus_events(model: Forecaster, context: Context, window: int) -> Iterator[Event]:
    for part, voltages in voltage_blocks(model, context, window):
        yield _bus_event(context.layout, part, voltages)


def _solved_bus_events(
    reader: StateReader, model: Forecaster, context: Context, window: int
) -> Iterator[Event]:
    voltages, _ = reader.read(*predict_states(model, context, window), joint=True)
    yield _bus_event(context.layout, slice(0, context.layout.n_buses), voltages)


def _bus_event(layout: Layout, part: slice, voltages: Scenarios) -> Event:
    band = bus_band(layout.limits, voltages.values, part)
    return part, Sides.of(voltages.values, band).outside, voltages.weights


def _line_events(
    reader: StateReader, joint: bool | None, model: Forecaster, context: Context, window: int
) -> Iterator[Event]:
    _, lines = reader.read(*predict_states(model, context, window), joint)
    if not len(lines.number):
        raise ForecastError("no scenario has a power flow in all steps", window=window)
    yield slice(None), lines.overload, lines.weights


def _violations(
    layout: Layout, subject: str, states: Float32[Tensor, "D H C"]
) -> Bool[Tensor, "D H X"]:
    """Which limits the states of some days violate."""
    if subject == "lines":
        return torch.from_numpy(rated_loading(layout, states.numpy())) > 1
    voltage = states[..., V::KINDS]
    return Sides.of(voltage, bus_band(layout.limits, voltage)).outside


def _known_days(
    layout: Layout, subject: str, observed: Bool[Tensor, "1 H C"] | None, n_all: int
) -> Bool[np.ndarray, " X"]:
    """Which buses, or which rated lines, are observed in every step of a day."""
    if observed is None:
        return np.ones(n_all, dtype=bool)
    whole = observed[0].all(0).numpy()
    if subject == "buses":
        return whole[V::KINDS]
    ends = layout.circuit.ends[layout.limits.is_rated]
    return (whole[V::KINDS] & whole[THETA::KINDS])[ends].all(axis=1)


def _compare(
    event: Bool[Tensor, "1 M H X"],
    weights: Float[Tensor, "1 M X"],
    happened: Bool[Tensor, "1 H X"],
    joint: bool | None,
    step_hours: float,
) -> Float64[Tensor, "5 X"]:
    """The five quantities of a `Calibration` for one window and some buses or lines."""
    hours = step_hours * event.double().sum(2, keepdim=True)
    share = weights.double() / weights.double().sum(1, keepdim=True)
    fan = Fan.of(Scenarios(hours, share))
    true_hours = step_hours * happened.double().sum(1, keepdim=True)
    quantities = (
        ever(weights, event, joint),
        happened.any(1),
        fan.expect(fan.values)[:, 0],
        true_hours[:, 0],
        crps(fan, true_hours)[:, 0],
    )
    return torch.cat([quantity.double() for quantity in quantities])


def _changing(train: Training, horizon: int, subject: str) -> Bool[np.ndarray, " X"]:
    """Which buses or lines violated their limits on some, but not all, days of the record."""
    n_days = len(train.time) // horizon
    violated = []
    at_once = max(1, READ_STEPS // horizon)
    for first in range(0, n_days, at_once):
        last = min(first + at_once, n_days)
        days = train.read(slice(first * horizon, last * horizon)).unflatten(0, (-1, horizon))
        violated.append(_violations(train.layout, subject, days).any(1).sum(0))
    n_violated = torch.stack(violated).sum(0).numpy()
    return (n_violated > 0) & (n_violated < n_days)
