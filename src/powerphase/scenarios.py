"""What crosses a model's border: `Layout`, `Training` and `Context` go in, `Scenarios` come out.

All values are normalised: P and Q are divided by one number each, V [p.u.] and θ [rad] stay as they
are. A forecaster sees nothing else of a data set, and above all no target: a `Context` ends at its
window's origin, and a `Training` cannot be read past the last step that a model may be fitted on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Shaped
from torch import Tensor

from powerphase.axes import VARIABLES, WEIGHT_TOLERANCE, P, Q
from powerphase.errors import ForecastError, TaskError
from powerphase.seeds import stream

SCORED = (torch.float32, torch.float64)
"""The types of number in which scenarios can be scored."""

READ_STEPS = 960
"""Steps read from a record at a time; a data set's blocks are as long."""

StateReader = Callable[[slice, slice], Float32[np.ndarray, "S C"]]
"""States in MW, MVAr, p.u. and rad of the given steps and channels."""


@dataclass(frozen=True, eq=False)
class Layout:
    """What the channels are, [P, Q, V, θ] of bus after bus, and the grid that joins the buses."""

    grid: str
    bus_id: Int[np.ndarray, " N"]
    """Bus numbers, as the case file has them."""
    bus_type: Int[np.ndarray, " N"]
    """1 slack, 2 generator at a held voltage (PV), 3 load (PQ)."""
    nominal_kv: Float[np.ndarray, " N"]
    branch: Int[np.ndarray, "L 2"]
    """The two buses of each branch in service, as positions in `bus_id`."""
    p_scale_mw: float
    q_scale_mvar: float

    @property
    def n_buses(self) -> int:
        """Number of buses, N."""
        return len(self.bus_id)

    @property
    def n_channels(self) -> int:
        """Number of channels, C = 4N."""
        return len(VARIABLES) * self.n_buses

    @property
    def channel_type(self) -> Int[np.ndarray, " C"]:
        """The variable of each channel, a position in `axes.VARIABLES`."""
        return np.tile(np.arange(len(VARIABLES)), self.n_buses)

    @property
    def scale(self) -> Float32[np.ndarray, " C"]:
        """What each channel's state is divided by: MW, MVAr, 1 and 1."""
        one_bus = np.ones(len(VARIABLES), dtype=np.float32)
        one_bus[[P, Q]] = self.p_scale_mw, self.q_scale_mvar
        return np.tile(one_bus, self.n_buses)

    def name_of(self, channel: int) -> str:
        """A channel in words, such as `V of bus 104`."""
        bus, kind = divmod(channel, len(VARIABLES))
        return f"{VARIABLES[kind]} of bus {self.bus_id[bus]}"


class Record:
    """The normalised states of consecutive steps; what lies beyond them cannot be read through it.

    Args:
        layout: the channels and their scales.
        time: start of each step, UTC; it says how many steps there are.
        read_states: gives states by step and channel, counted from the record's first.
    """

    def __init__(
        self, layout: Layout, time: Shaped[np.ndarray, " S"], read_states: StateReader
    ) -> None:
        self.layout = layout
        self.time = time
        self._read_states = read_states

    def __len__(self) -> int:
        return len(self.time)

    def read(
        self, steps: slice = slice(None), channels: slice = slice(None)
    ) -> Float32[Tensor, "S C"]:
        """Normalised states of the chosen steps and channels, in memory."""
        if {steps.step, channels.step} - {None, 1}:
            raise TaskError("steps and channels are read one after the other; thin them afterwards")
        chosen = slice(*channels.indices(self.layout.n_channels))
        wanted = slice(*steps.indices(len(self)))
        if (steps.stop or 0) > len(self):
            raise TaskError(f"steps up to {steps.stop} asked of a record of {len(self)}")
        states = self._read_states(wanted, chosen)
        return torch.from_numpy(states / self.layout.scale[chosen])

    def load(self, device: torch.device | str = "cpu") -> Float32[Tensor, "S C"]:
        """The whole record on a device: 7.6 GB for the training record of 36,964 channels."""
        whole = torch.empty((len(self), self.layout.n_channels), device=device)
        for first in range(0, len(self), READ_STEPS):
            part = slice(first, min(first + READ_STEPS, len(self)))
            whole[part] = self.read(part).to(device)
        return whole


@dataclass(frozen=True, eq=False)
class Context:
    """All that a forecaster may look at when it forecasts B windows."""

    past: Float[Tensor, "B T C"]
    """Normalised states before each window's origin."""
    time: Shaped[np.ndarray, "B steps"]
    """Start of every step of context and horizon, `datetime64[s]`, UTC; see `powerphase.clock`."""
    layout: Layout

    @property
    def horizon(self) -> int:
        """Number of steps to forecast, H."""
        return self.time.shape[1] - self.past.shape[1]

    @property
    def future_time(self) -> Shaped[np.ndarray, "B H"]:
        """Start of every step to forecast."""
        return self.time[:, self.past.shape[1] :]

    def to(self, device: torch.device | str) -> "Context":
        """The same context on another device."""
        return Context(self.past.to(device), self.time, self.layout)


class Windows:
    """Forecast windows of a record, read when they are asked for.

    Args:
        record: holds contexts and targets.
        origins: first target step of each window.
        context: steps before the origin that a forecaster sees, T.
        horizon: steps from the origin on that it forecasts, H.
    """

    def __init__(
        self, record: Record, origins: Int[np.ndarray, " B"], context: int, horizon: int
    ) -> None:
        self.record = record
        self.origins = origins
        self.context_steps = context
        self.horizon = horizon

    def __len__(self) -> int:
        return len(self.origins)

    def start(self, window: int) -> str:
        """When the window's first target step starts, UTC, to the minute."""
        return str(self.record.time[self.origins[window]].astype("datetime64[m]"))

    def context(self, window: int) -> Context:
        """What a forecaster sees of one window (B = 1)."""
        origin = int(self.origins[window])
        if origin < self.context_steps:
            raise TaskError(f"window {window} has {origin} of {self.context_steps} context steps")
        past = self.record.read(slice(origin - self.context_steps, origin))
        time = self.record.time[origin - self.context_steps : origin + self.horizon]
        return Context(past[None], time[None], self.record.layout)

    def target(self, window: int, channels: slice = slice(None)) -> Float32[Tensor, "1 H C"]:
        """What happened in one window."""
        origin = int(self.origins[window])
        return self.record.read(slice(origin, origin + self.horizon), channels)[None]

    def load(
        self, size: int, device: torch.device | str = "cpu"
    ) -> list[tuple[Context, Float32[Tensor, "B H C"]]]:
        """Contexts and targets of all windows on a device, so many to a batch."""
        past = [self.context(window) for window in range(len(self))]
        found = []
        for first in range(0, len(self), size):
            part = range(first, min(first + size, len(self)))
            context = Context(
                torch.cat([past[k].past for k in part]),
                np.concatenate([past[k].time for k in part]),
                self.record.layout,
            )
            target = torch.cat([self.target(k) for k in part])
            found.append((context.to(device), target.to(device)))
        return found


class Batches:
    """Batches of random windows, context and target, gathered from a copy of the record.

    Batch k is fixed by the seed and k alone, so a training that goes on with batch k sees what it
    would have seen. Origins are uniform over all windows that lie in the record. The copy lives as
    long as this object.

    Args:
        record: where windows are taken from.
        context: steps before each origin, T.
        horizon: steps from the origin on, H.
        size: windows of a batch, B.
        seed: fixes the origins.
        device: where the copy and the batches are.
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
                f"{len(record)} training steps hold no window of {context} + {horizon} steps"
            )
        self.record, self.context_steps, self.horizon = record, context, horizon
        self.size, self.seed = size, seed
        self.share = slice(None)
        """Which windows of each batch to give, where several processes divide them."""
        self._values = record.load(device)
        self._around = torch.arange(-context, horizon, device=device)

    def __getitem__(self, number: int) -> tuple[Context, Float32[Tensor, "B H C"]]:
        past, last = self.context_steps, len(self.record) - self.horizon
        drawn = stream(self.seed, "batch", number).integers(past, last + 1, self.size)
        origins = drawn[self.share, None]
        # Only the origins travel, and nobody waits for them: the device is to be kept busy.
        travelling = torch.from_numpy(origins).to(self._values.device, non_blocking=True)
        steps = travelling + self._around
        values = self._values[steps]
        time = self.record.time[origins + np.arange(-past, self.horizon)]
        context = Context(values[:, :past], time, self.record.layout)
        return context, values[:, past:]

    def __iter__(self) -> Iterator[tuple[Context, Float32[Tensor, "B H C"]]]:
        """All batches, without end."""
        return map(self.__getitem__, count())


class Training:
    """What a forecaster is fitted on, and the windows on which it may choose.

    Closed-form models `read` the record by block; trained ones draw `batches` of random windows
    from a copy on their device.
    """

    def __init__(
        self, record: Record, validation: Windows, data: Mapping[str, Any] | None = None
    ) -> None:
        self.record = record
        self.validation = validation
        self.data = dict(data or {})
        """Which data set and task this is of; what was trained on one is not used on another."""
        self.read = record.read
        self.time = record.time

    @property
    def layout(self) -> Layout:
        """What the channels are."""
        return self.record.layout

    def batches(self, size: int, seed: int, device: torch.device | str = "cpu") -> Batches:
        """Random windows as long as those that are to be forecast, on the device."""
        windows = self.validation
        return Batches(self.record, windows.context_steps, windows.horizon, size, seed, device)


@dataclass(frozen=True, eq=False)
class Scenarios:
    """M weighted joint trajectories per window: the only thing that a model may return.

    Scenario m is one future of the whole grid. Its weight may differ between channels; over the
    scenarios of a window and channel, weights sum to 1.
    """

    values: Float[Tensor, "B M H C"]
    weights: Float[Tensor, "B M C"]

    def __post_init__(self) -> None:
        _check_shapes(self.values, self.weights)
        _check_values(self.values)
        _check_weights(self.weights)

    @classmethod
    def equal(cls, values: Float[Tensor, "B M H C"]) -> "Scenarios":
        """Scenarios of equal weight, such as samples."""
        _check_dimensions(values)
        n_windows, n_scenarios, _, n_channels = values.shape
        weight = torch.full((1, 1, 1), 1 / n_scenarios, device=values.device, dtype=values.dtype)
        return cls(values, weight.expand(n_windows, n_scenarios, n_channels))

    def of_channels(self, channels: slice) -> "Scenarios":
        """The scenarios of some channels alone."""
        return self._unchecked(self.values[..., channels], self.weights[..., channels])

    def like(self, target: Tensor) -> "Scenarios":
        """The same scenarios on the target's device and in its precision, without gradients."""
        values, weights = self.values.detach(), self.weights.detach()
        return self._unchecked(values.to(target), weights.to(target))

    @property
    def normalised_weights(self) -> Float[Tensor, "B M C"]:
        """The weights divided by their sum, which may differ from 1 by rounding."""
        exact = self.weights.double()
        return (exact / exact.sum(1, keepdim=True)).to(self.values.dtype)

    def sample(self, n: int, seed: int) -> "Scenarios":
        """`n` scenarios of equal weight, drawn by weight.

        A draw is one number for the whole grid, looked up in each channel's cumulative weights.
        Where the weights are the same for all channels, a draw is one of the scenarios, unbroken;
        where they differ, every channel still follows its own weights.
        """
        n_windows, n_scenarios, horizon, _ = self.values.shape
        draws = torch.from_numpy(stream(seed, "scenarios").random((n_windows, 1, n)))
        cumulative = self.weights.double().cumsum(1).movedim(1, 2).contiguous()
        # Times the sum of the weights, which rounding may have left below 1.
        draws = draws.to(self.values.device) * cumulative[..., -1:]
        chosen = torch.searchsorted(cumulative, draws, right=True).clamp(max=n_scenarios - 1)
        index = chosen.movedim(2, 1)[:, :, None].expand(-1, -1, horizon, -1)
        return Scenarios.equal(self.values.gather(1, index))

    @classmethod
    def _unchecked(cls, values: Tensor, weights: Tensor) -> "Scenarios":
        """Scenarios that are part of checked ones, without a second look at every number."""
        part = object.__new__(cls)
        object.__setattr__(part, "values", values)
        object.__setattr__(part, "weights", weights)
        return part


def _check_dimensions(values: object) -> None:
    if not isinstance(values, Tensor):
        raise ForecastError(f"scenarios must be a torch.Tensor, found {type(values).__name__}")
    if values.ndim != 4 or 0 in values.shape:
        raise ForecastError(
            f"scenarios have the shape {tuple(values.shape)}; give them four axes, none of them "
            "empty: windows, scenarios, steps, channels"
        )


def _check_shapes(values: Tensor, weights: Tensor) -> None:
    _check_dimensions(values)
    n_windows, n_scenarios, _, n_channels = values.shape
    if values.dtype not in SCORED or weights.dtype not in SCORED:
        raise ForecastError(
            f"values are {values.dtype} and weights {weights.dtype}; make them float32 or float64"
        )
    if weights.shape != (n_windows, n_scenarios, n_channels):
        raise ForecastError(
            f"weights have the shape {tuple(weights.shape)}; {n_windows} windows x {n_scenarios} "
            f"scenarios x {n_channels} channels are needed, as the values have"
        )


def _check_values(values: Tensor) -> None:
    low, high = values.aminmax()  # one pass and no copy; NaN comes through
    if low.isfinite() and high.isfinite():
        return
    broken = ~values.isfinite()
    window, step, channel = broken.any(1).nonzero()[0].tolist()
    scenario = int(broken[window, :, step, channel].nonzero()[0])
    found = values[window, scenario, step, channel].item()
    raise ForecastError(
        f"scenario {scenario} is {found}; every value must be a finite number",
        window=window,
        step=step,
        channel=channel,
    )


def _check_weights(weights: Tensor) -> None:
    negative = ~(weights >= 0)  # NaN is not >= 0
    if negative.any():
        window, scenario, channel = negative.nonzero()[0].tolist()
        found = weights[window, scenario, channel].item()
        raise ForecastError(
            f"scenario {scenario} has the weight {found}; weights must be 0 or more",
            window=window,
            channel=channel,
        )
    total = weights.sum(1, dtype=torch.float64)
    wrong = ~((total - 1).abs() <= WEIGHT_TOLERANCE)
    if wrong.any():
        window, channel = wrong.nonzero()[0].tolist()
        raise ForecastError(
            f"the scenarios' weights sum to {total[window, channel].item():.6g} and not to 1; "
            "divide them by their sum",
            window=window,
            channel=channel,
        )
