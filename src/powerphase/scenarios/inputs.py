"""What a model is given: `Training` and `Context`, read from a `Record`.

All values are normalised: P and Q are each divided by one number; V [p.u.] and θ [rad] are not
changed. A forecaster sees nothing else of a data set, and never a target: a `Context` ends at the
origin of its window, and a `Training` ends at the last step that a model may be fitted on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Shaped
from torch import Tensor

from powerphase.errors import TaskError
from powerphase.issued import DAY, Issued
from powerphase.resolution import step_of, steps_per_day, time_of_day
from powerphase.scenarios.known import Known, check_complete, check_known, join_known, known_at
from powerphase.scenarios.layout import Layout
from powerphase.seeds import stream

READ_STEPS = 960
"""Steps that are read from a record at a time, as many as in a block of a data set."""

StateReader = Callable[[slice, slice], Float32[np.ndarray, "S C"]]
"""Returns the states of some steps and channels, in MW, MVAr, p.u. and rad."""

MaskReader = Callable[[slice, slice], Bool[np.ndarray, "S C"] | None]
"""Returns which of these states are observed; None if all are."""

ForecastReader = Callable[[], Issued]
"""Returns the forecasts of national signals."""


class Record:
    """The normalised states of consecutive steps; steps outside the record cannot be read.

    Args:
        layout: the channels and their scales.
        time: start of each step, UTC; its length is the number of steps.
        read_states: returns states by step and channel, counted from the start of the record.
        read_observed: returns which of them are observed; without it all are.
        read_forecasts: returns those of national signals, which windows read as far as they had
            been issued; without it there are none.
    """

    def __init__(
        self,
        layout: Layout,
        time: Shaped[np.ndarray, " S"],
        read_states: StateReader,
        read_observed: MaskReader | None = None,
        read_forecasts: ForecastReader | None = None,
    ) -> None:
        self.layout = layout
        self.time = time
        self._read_states = read_states
        self._read_observed = read_observed
        self._read_forecasts = read_forecasts

    def __len__(self) -> int:
        return len(self.time)

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return step_of(self.time)

    def read(
        self, steps: slice = slice(None), channels: slice = slice(None)
    ) -> Float32[Tensor, "S C"]:
        """Normalised states of some steps and channels; those that are missing are filled."""
        rows, columns = self._selection(steps, channels)
        states = self._read_states(rows, columns)
        return torch.from_numpy(states / self.layout.scale[columns])

    def read_observed(
        self, steps: slice = slice(None), channels: slice = slice(None)
    ) -> Bool[Tensor, "S C"] | None:
        """Which of the states that `read` returns are observed; None if all are."""
        selection = self._selection(steps, channels)
        observed = None if self._read_observed is None else self._read_observed(*selection)
        return None if observed is None else torch.from_numpy(observed)

    def known_at(
        self, origin: Int[np.ndarray, " B"], past: int, horizon: int, *, complete: bool = True
    ) -> Known | None:
        """What is known at the origins of windows; None if the record has no forecasts.

        Args:
            origin: the first target step of each window, at most the end of the record.
            past: steps before the origin.
            horizon: steps from the origin on, which may follow the end of the record.
            complete: whether to raise if a step of a horizon has no forecast.
        """
        if self._read_forecasts is None:
            return None
        if origin.max() > len(self) or origin.min() < past:
            raise TaskError(
                f"origins from {origin.min()} to {origin.max()} with {past} steps before them do "
                f"not lie in a record of {len(self)} steps"
            )
        step, forecasts = np.timedelta64(self.step_s, "s"), self._read_forecasts()
        time = self.time[0] + (origin[:, None] + np.arange(-past, horizon)) * step
        known = known_at(forecasts, time[:, past], time, horizon)
        if complete:
            check_complete(known, time, forecasts)
        return known

    def known_a_day_ahead(self, origin_s: int) -> Known | None:
        """For every step, what was known at the latest origin at or before it.

        Args:
            origin_s: the time of day at which windows start, in seconds, UTC.
        """
        if self._read_forecasts is None:
            return None
        # From the first origin after the record, all of its steps are past ones.
        next_day = self.time[-1].astype("datetime64[D]") + DAY
        origin = np.asarray(next_day + np.timedelta64(origin_s, "s"))
        return known_at(self._read_forecasts(), origin, self.time, 0)

    def _selection(self, steps: slice, channels: slice) -> tuple[slice, slice]:
        """The steps and channels, with both ends; raise if some do not exist."""
        if {steps.step, channels.step} - {None, 1}:
            raise TaskError("steps and channels must be contiguous; select some of them afterwards")
        columns = slice(*channels.indices(self.layout.n_channels))
        rows = slice(*steps.indices(len(self)))
        if (steps.stop or 0) > len(self):
            raise TaskError(f"cannot read up to step {steps.stop} of a record of {len(self)} steps")
        return rows, columns

    def load(self, device: torch.device | str = "cpu") -> Float32[Tensor, "S C"]:
        """The whole record on a device: 7.6 GB for the training record of 36,964 channels."""
        values = torch.empty((len(self), self.layout.n_channels), device=device)
        for first in range(0, len(self), READ_STEPS):
            part = slice(first, min(first + READ_STEPS, len(self)))
            values[part] = self.read(part).to(device)
        return values

    def load_observed(self, device: torch.device | str = "cpu") -> Bool[Tensor, "S C"] | None:
        """Which states of the whole record are observed, on a device; None if all are."""
        observed = self.read_observed()
        return None if observed is None or bool(observed.all()) else observed.to(device)


@dataclass(frozen=True, eq=False)
class Context:
    """Everything that a forecaster sees when it forecasts B windows."""

    past: Float[Tensor, "B T C"]
    """Normalised states before each window's origin."""
    time: Shaped[np.ndarray, "B steps"]
    """Start of every step of context and horizon, `datetime64[s]`, UTC; see `powerphase.clock`."""
    layout: Layout
    observed: Bool[Tensor, "B T C"] | None = None
    """Which of the past states are observed: the others were missing, and are filled. None if all
    are."""
    known: Known | None = None
    """Forecasts of national signals that had been issued by the origin; None without any."""

    def __post_init__(self) -> None:
        if self.known is not None:
            check_known(self.known, self.time, self.past.shape[1])

    @property
    def horizon(self) -> int:
        """Number of steps to forecast, H."""
        return self.time.shape[1] - self.past.shape[1]

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return step_of(self.time)

    @property
    def steps_per_day(self) -> int:
        """How many steps a day has: 96 of 15 minutes."""
        return steps_per_day(self.step_s)

    @property
    def future_time(self) -> Shaped[np.ndarray, "B H"]:
        """Start of every step to forecast."""
        return self.time[:, self.past.shape[1] :]

    def of_windows(self, part: slice) -> "Context":
        """The context of some of the windows."""
        observed = None if self.observed is None else self.observed[part]
        known = None if self.known is None else self.known.of_windows(part)
        return Context(self.past[part], self.time[part], self.layout, observed, known)

    def to(self, device: torch.device | str) -> "Context":
        """A copy of the context on another device."""
        observed = None if self.observed is None else self.observed.to(device)
        known = None if self.known is None else self.known.to(device)
        return Context(self.past.to(device), self.time, self.layout, observed, known)


class Windows:
    """Forecast windows of a record, read on demand.

    Args:
        record: contains contexts and targets.
        origins: first target step of each window.
        context: steps before the origin that a forecaster sees, T.
        horizon: steps from the origin on that it forecasts, H.
        complete: whether to raise if a step of a horizon lacks a forecast of the record; otherwise
            it is NaN.
    """

    def __init__(
        self,
        record: Record,
        origins: Int[np.ndarray, " B"],
        context: int,
        horizon: int,
        *,
        complete: bool = True,
    ) -> None:
        self.record = record
        self.origins = origins
        self.context_steps = context
        self.horizon = horizon
        self._complete = complete

    def __len__(self) -> int:
        return len(self.origins)

    def start(self, window: int) -> str:
        """Start of the window's first target step, UTC, such as `2016-07-01T00:00`."""
        return str(self.record.time[self.origins[window]].astype("datetime64[m]"))

    def context(self, window: int) -> Context:
        """The context of one window (B = 1)."""
        origin = int(self.origins[window])
        if origin < self.context_steps:
            raise TaskError(
                f"window {window} has only {origin} of {self.context_steps} context steps"
            )
        if origin + self.horizon > len(self.record):
            raise TaskError(
                f"window {window} ends at step {origin + self.horizon} of a record of "
                f"{len(self.record)} steps"
            )
        steps = slice(origin - self.context_steps, origin)
        past, observed = self.record.read(steps), self.record.read_observed(steps)
        time = self.record.time[origin - self.context_steps : origin + self.horizon]
        mask = None if observed is None else observed[None]
        known = self.record.known_at(
            np.array([origin]), self.context_steps, self.horizon, complete=self._complete
        )
        return Context(past[None], time[None], self.record.layout, mask, known)

    def check_known(self) -> None:
        """Raise if the record has forecasts, but not for all windows: before a fit, not after."""
        if len(self):
            self.record.known_at(self.origins, 0, self.horizon)

    def target(self, window: int, channels: slice = slice(None)) -> Float32[Tensor, "1 H C"]:
        """The target of one window: what happened."""
        origin = int(self.origins[window])
        return self.record.read(slice(origin, origin + self.horizon), channels)[None]

    def observed(self, window: int, channels: slice = slice(None)) -> Bool[Tensor, "1 H C"] | None:
        """Which values of the target are observed, which alone are scored; None if all are."""
        origin = int(self.origins[window])
        mask = self.record.read_observed(slice(origin, origin + self.horizon), channels)
        return None if mask is None or bool(mask.all()) else mask[None]

    def load(
        self, size: int, device: torch.device | str = "cpu"
    ) -> list[tuple[Context, Float32[Tensor, "B H C"]]]:
        """Contexts and targets of all windows on a device, in batches of `size` windows."""
        contexts = [self.context(window) for window in range(len(self))]
        batches = []
        for first in range(0, len(self), size):
            part = range(first, min(first + size, len(self)))
            context = Context(
                torch.cat([contexts[k].past for k in part]),
                np.concatenate([contexts[k].time for k in part]),
                self.record.layout,
                _join_masks([contexts[k].observed for k in part]),
                join_known([contexts[k].known for k in part]),
            )
            target = torch.cat([self.target(k) for k in part])
            batches.append((context.to(device), target.to(device)))
        return batches


class Batches:
    """Batches of random windows, context and target, gathered from a copy of the record.

    Batch k depends only on the seed and k, so a training that resumes at batch k sees the same
    windows. Origins are uniform over all windows of the record. The copy lives as long as this
    object.

    Args:
        record: the source of the windows.
        context: steps before each origin, T.
        horizon: steps from the origin on, H.
        size: windows of a batch, B.
        seed: fixes the origins.
        device: the device of the copy and of the batches.
    """

    def __init__(
        self,
        record: Record,
        context: int,
        horizon: int,
        size: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(record) < context + horizon:
            raise TaskError(
                f"a record of {len(record)} steps has no window of {context} + {horizon} steps"
            )
        self.record, self.context_steps, self.horizon = record, context, horizon
        self.size, self.seed = size, seed
        self.share = slice(None)
        """The windows of each batch that this process gets, if several processes share a batch."""
        self._values = record.load(device)
        self._observed = record.load_observed(device)
        self._offsets = torch.arange(-context, horizon, device=device)

    def __getitem__(self, number: int) -> tuple[Context, Float32[Tensor, "B H C"]]:
        past, last = self.context_steps, len(self.record) - self.horizon
        random = stream(self.seed, "batch", number).integers(past, last + 1, self.size)
        origins = random[self.share, None]
        # Only the origins are copied, without waiting for them, which keeps the device busy.
        on_device = torch.from_numpy(origins).to(self._values.device, non_blocking=True)
        steps = on_device + self._offsets
        values = self._values[steps]
        time = self.record.time[origins + np.arange(-past, self.horizon)]
        mask = None if self._observed is None else self._observed[steps[:, :past]]
        known = self.record.known_at(origins[:, 0], past, self.horizon, complete=False)
        if known is not None:
            known = known.to(self._values.device)
        context = Context(values[:, :past], time, self.record.layout, mask, known)
        return context, values[:, past:]

    def __iter__(self) -> Iterator[tuple[Context, Float32[Tensor, "B H C"]]]:
        """All batches; the iteration never ends."""
        return map(self.__getitem__, count())


def _join_masks(masks: "list[Bool[Tensor, '1 T C'] | None]") -> Bool[Tensor, "B T C"] | None:
    """The masks of several windows, which all have one or none."""
    present = [mask for mask in masks if mask is not None]
    return torch.cat(present) if present else None


class Training:
    """The record that a forecaster is fitted on, and the windows for its validation.

    Closed-form models `read` the record in blocks; neural networks draw `batches` of random windows
    from a copy on their device.

    Args:
        record: what a model may be fitted on.
        validation: windows of the same size as those to forecast.
        data: what identifies data set and task.
        origin_s: the time of day at which windows start, in seconds, UTC; by default that of the
            validation windows, or without any that of the record.
    """

    def __init__(
        self,
        record: Record,
        validation: Windows,
        data: Mapping[str, Any] | None = None,
        origin_s: int | None = None,
    ) -> None:
        self.record = record
        self.validation = validation
        self._origin_s = origin_s
        self.data = dict(data or {})
        """What identifies data set and task; a model trained on one is rejected on another."""
        self.read = record.read
        self.read_observed = record.read_observed
        self.time = record.time

    @property
    def layout(self) -> Layout:
        """The meaning of the channels."""
        return self.record.layout

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return self.record.step_s

    @property
    def steps_per_day(self) -> int:
        """How many steps a day has: 96 of 15 minutes."""
        return steps_per_day(self.step_s)

    @property
    def origin_s(self) -> int:
        """The time of day at which windows start, in seconds, UTC."""
        if self._origin_s is not None:
            return self._origin_s
        windows = self.validation
        first = windows.record.time[windows.origins[0]] if len(windows) else self.time[0]
        return time_of_day(first)

    @property
    def known(self) -> Known | None:
        """For every step of the record, what was known a day ahead; None without forecasts.

        Compared with what happened, it shows how good the forecasts have been.
        """
        return self.record.known_a_day_ahead(self.origin_s)

    def batches(self, size: int, seed: int, device: torch.device | str = "cpu") -> Batches:
        """Random windows of the same size as the validation windows, on the device."""
        windows = self.validation
        return Batches(self.record, windows.context_steps, windows.horizon, size, seed, device)
