"""The recurrent encoder: its inputs, a two-layer LSTM, and the rollout of paths step by step.

The input of the first layer, scaled lagged values of all channels and the clock, is projected by
`LagProjection`. The LSTM then has the identity as its first input matrix, so that it can run as
usual.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.framework.ops import mean_scale
from powerphase.models.recurrent.blocks import BLOCK_NUMBERS, channels_at_once, sum_blocks
from powerphase.models.recurrent.config import CLOCK_FEATURES, LaggedConfig, RecurrentConfig

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60


class ScaledValues(NamedTuple):
    """Values of some channels, and the scale that they are divided by when they are read."""

    parts: tuple[Float[Tensor, "B _ C"], ...]
    """One part or two, consecutive in time."""
    scale: Float[Tensor, "B C"] | None = None

    @classmethod
    def from_tensors(
        cls, first: Tensor, second: Tensor | None, scale: Tensor | None
    ) -> "ScaledValues":
        """The inverse of `tensors`."""
        return cls((first,) if second is None else (first, second), scale)

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Both parts, and the scale."""
        return self.parts[0], self.parts[1] if len(self.parts) > 1 else None, self.scale

    @property
    def size(self) -> tuple[int, int, int]:
        """Windows, steps and channels."""
        n_windows, _, n_channels = self.parts[0].shape
        return n_windows, sum(part.shape[1] for part in self.parts), n_channels

    def select(self, channels: slice) -> "ScaledValues":
        """The values of some of the channels."""
        scale = None if self.scale is None else self.scale[:, channels]
        return ScaledValues(tuple(part[..., channels] for part in self.parts), scale)

    def compute(self) -> Float[Tensor, "B steps C"]:
        """The scaled values in one tensor; one pass divides and writes each part."""
        if self.scale is None:
            return self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts, dim=1)
        values = self.parts[0].new_empty(self.size)
        for part, out in zip(self.parts, self._split(values), strict=True):
            torch.div(part, self.scale[:, None], out=out)
        return values

    def add_noise(self, deviation: float) -> "ScaledValues":
        """The scaled values with normal noise of that deviation, in a new tensor."""
        values = self.parts[0].new_empty(self.size).normal_(std=deviation)
        for part, out in zip(self.parts, self._split(values), strict=True):
            out.add_(part) if self.scale is None else out.addcdiv_(part, self.scale[:, None])
        return ScaledValues((values,))

    def _split(self, values: Tensor) -> tuple[Tensor, ...]:
        """The steps of each part."""
        return values.split([part.shape[1] for part in self.parts], dim=1)


class Window(NamedTuple):
    """Windows as they are, and what to divide their channels by.

    Blocks of channels are divided when they are needed: all windows are the largest tensor of a
    training, and one copy of it is enough.
    """

    past: Float[Tensor, "B T C"]
    target: Float[Tensor, "B H C"] | None
    """None if it is not known yet."""
    scale: Float[Tensor, "B C"]

    def values(self, since: int = 0) -> ScaledValues:
        """Context, from a step on, and target."""
        past = self.past[:, since:]
        return ScaledValues((past,) if self.target is None else (past, self.target), self.scale)

    def scaled(self, channels: slice, since: int = 0) -> Float[Tensor, "B steps C"]:
        """z: context and target of these channels, divided by their scale, from a step on."""
        return self.values(since).select(channels).compute()

    def max_abs(self) -> Float[Tensor, "parts B C"]:
        """The largest absolute value of each channel: in the past, and in the target if known."""
        ranges = [torch.aminmax(part, dim=1) for part in self[:2] if part is not None]
        return torch.stack([torch.maximum(low.abs(), high.abs()) for low, high in ranges])


def window_scale(
    past: Float[Tensor, "B T C"], config: LaggedConfig, in_batch: bool
) -> Float[Tensor, "B C"]:
    """Mean absolute value of each window's channels over the encoded steps, with a floor.

    Args:
        past: contexts.
        config: has the floor, and what a channel that is zero throughout is divided by.
        in_batch: whether these windows are a training batch. Those of a forecast are not: it must
            not matter which windows are forecast together.
    """
    zero = config.zero_scale if in_batch else "floor"
    return mean_scale(past[:, max(config.lags) :], config.least_scale, zero)


def clock_features(
    time: Shaped[np.ndarray, "B steps"], minute_period: int
) -> Float[Tensor, "B steps features"]:
    """Cosine and sine of the minute, the hour and the weekday (UTC)."""
    second = time.astype("datetime64[s]").astype(np.int64)
    turns = (
        second // MINUTE_S % 60 / minute_period,
        second // HOUR_S % 24 / 24,
        (second // DAY_S + 3) % 7 / 7,  # the epoch was a Thursday
    )
    waves = [wave(2 * np.pi * turn) for turn in turns for wave in (np.cos, np.sin)]
    return torch.from_numpy(np.stack(waves, axis=2))


def input_share(inputs: float | None, n_inputs: int) -> float:
    """The factor n / N on the learning rate of a layer of N inputs that learns like one of n."""
    return 1.0 if inputs is None else min(1.0, inputs / n_inputs)


class LagProjection(nn.Module):
    """A linear layer of lagged values and the clock that never builds the lagged values.

    The layer is linear, so its output for five lags is the sum of five products of the same values,
    each taken some steps earlier. All values are multiplied once with all five matrices, and the
    slices of the product are shifted and added; the lagged values, five times the data, never
    exist.

    Args:
        lags: steps back.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        width: numbers for each step.
        bound: initial weights lie in ±bound.
        channel_block: how many channels to project at a time.
        inputs: the layer starts and learns as if it had so many inputs; None for all it has.
        n_features: other inputs of a step, F: those of the clock, and forecasts if there are any.
    """

    def __init__(
        self,
        lags: tuple[int, ...],
        n_channels: int,
        context_steps: int,
        width: int,
        bound: float,
        channel_block: int | None = None,
        inputs: float | None = None,
        n_features: int = CLOCK_FEATURES,
    ) -> None:
        super().__init__()
        self.lags, self.reach, self.channel_block = lags, max(lags), channel_block
        if context_steps <= self.reach:
            raise ConfigError(
                f"lags reach {self.reach} steps back and a context has {context_steps}; give "
                "shorter lags, or longer contexts"
            )
        size = (n_channels, len(lags) * width)
        self.rate_factor = input_share(inputs, n_channels * len(lags))
        bound_of_values = bound * sqrt(self.rate_factor)
        self.project = nn.Parameter(torch.empty(size).uniform_(-bound_of_values, bound_of_values))
        self.clock = nn.Parameter(torch.empty(n_features, width).uniform_(-bound, bound))

    def project_window(
        self, window: Window, clock: Float[Tensor, "B steps F"]
    ) -> Float[Tensor, "B steps width"]:
        """The layer's output for the steps after the longest lag.

        If the target is not known, its values are missing in the sums.
        """
        products = self._products(window)
        n_steps = clock.shape[1]
        missing = self.reach + n_steps - products.shape[1]
        if missing:
            products = F.pad(products, (0, 0, 0, missing))
        by_lag = products.unflatten(2, (len(self.lags), -1))
        output = clock @ self.clock
        for lag, part in zip(self.lags, by_lag.unbind(2), strict=True):
            output = output + part[:, self.reach - lag : self.reach - lag + n_steps]
        return output

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add the contribution of a step's values to the layer's output for later steps."""
        reached = {k: step + lag for k, lag in enumerate(self.lags) if step + lag < ahead.shape[1]}
        if not reached:
            return
        products = (values @ self.project).unflatten(1, (len(self.lags), -1))
        for number, later in reached.items():
            ahead[:, later] += products[:, number]

    def _products(self, window: Window) -> Float[Tensor, "B steps products"]:
        n_windows, _, n_channels = window.past.shape
        rows = n_windows * sum(part.shape[1] for part in window[:2] if part is not None)
        at_once = channels_at_once(self.channel_block, n_channels, rows)

        def product(channels: slice, _: Tensor | None, weight: Tensor) -> Tensor:
            # The products may be in half precision, and must not be added up in it.
            return (window.scaled(channels) @ weight).to(weight.dtype)

        return sum_blocks(product, at_once, None, self.project)


GATES = 4
"""Of an LSTM cell: input, forget, candidate, output."""

State = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Hidden and cell state of both layers, "1 B cells" each."""

Draw = Callable[[Float[Tensor, "B P K"]], Float[Tensor, "B P C"]]
"""From the encoder's output for P paths of each window to their next values, scaled."""


class EncodedContext(NamedTuple):
    """Contexts as the encoder leaves them."""

    state: Any
    """After the last step of the context."""
    ahead: Float[Tensor, "B H width"]
    """What contexts and the clock contribute to the input of each later step."""
    scale: Float[Tensor, "B C"]


@runtime_checkable
class StepwiseEncoder(Protocol):
    """An encoder that can continue step by step."""

    def encode(self, window: Window, clock: Float[Tensor, "B steps F"]) -> EncodedContext:
        """Encode contexts once, for all paths."""

    def repeat_state(self, state: Any, n_paths: int) -> Any:
        """The state of each window, once for each of its paths."""

    def run(
        self, inputs: Float[Tensor, "N steps width"], state: Any
    ) -> tuple[Float[Tensor, "N steps K"], Any]:
        """The output for the next steps, and the state after them."""

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add the contribution of a step's values to the inputs of later steps."""


class RecurrentEncoder(LagProjection):
    """From windows to one vector of K numbers for each step.

    Args:
        config: all constants.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        channel_block: how many channels to project at a time.
        condition: width of a linear layer on top; None for none.
    """

    def __init__(
        self,
        config: RecurrentConfig,
        n_channels: int,
        context_steps: int,
        channel_block: int | None = None,
        condition: int | None = None,
    ) -> None:
        cells, gates = config.cells, GATES * config.cells
        # The initial bound of an LSTM whose inputs are all lags and the clock.
        bound = 1 / sqrt(cells)
        size = (n_channels, context_steps, gates, bound, channel_block)
        super().__init__(config.lags, *size, config.lag_inputs, config.n_features)
        # Two LSTMs of one layer each: cuDNN draws the dropout within one of two layers from a state
        # that a training which continues after a kill could not restore.
        self.first = nn.LSTM(gates, cells, batch_first=True)
        self.second = nn.LSTM(cells, cells, batch_first=True)
        self.first.weight_ih_l0 = nn.Parameter(torch.eye(gates), requires_grad=False)
        self.dropout = nn.Dropout(config.dropout)
        self.condition = None if condition is None else nn.Linear(cells, condition)
        self.width = cells if condition is None else condition

    def forward(
        self, window: Window, clock: Float[Tensor, "B steps F"]
    ) -> Float[Tensor, "B steps K"]:
        """The output before each step of the context after the longest lag, and of the target."""
        return self.run(self.project_window(window, clock))[0]

    def encode(self, window: Window, clock: Float[Tensor, "B steps F"]) -> EncodedContext:
        """Encode contexts once, for all paths."""
        gates = self.project_window(window, clock)
        encoded = window.past.shape[1] - self.reach
        _, state = self.run(gates[:, :encoded])
        return EncodedContext(state, gates[:, encoded:], window.scale)

    def run(
        self, gates: Float[Tensor, "B steps gates"], state: State | None = None
    ) -> tuple[Float[Tensor, "B steps K"], State]:
        """The output of both layers and the linear layer, and the state after the last step."""
        before = (None, None) if state is None else state
        low, first = self.first(gates, before[0])
        high, second = self.second(self.dropout(low), before[1])
        output = high if self.condition is None else self.condition(high)
        return output, (first, second)

    def repeat_state(self, state: State, n_paths: int) -> State:
        """The state of each window, once for each of its paths."""
        (hidden, cell), (hidden_2, cell_2) = state
        return (
            (hidden.repeat_interleave(n_paths, 1), cell.repeat_interleave(n_paths, 1)),
            (hidden_2.repeat_interleave(n_paths, 1), cell_2.repeat_interleave(n_paths, 1)),
        )


def roll_out(
    encoder: StepwiseEncoder, context: EncodedContext, draw: Draw, out: Float[Tensor, "B P H C"]
) -> Any:
    """Write P paths of each window to `out`, step by step; return the state after the last step.

    All windows and paths are one batch. The contribution of a value to later steps is added to
    their inputs as soon as it is drawn, so that it is projected once and need not be kept.
    """
    n_windows, n_paths, horizon, _ = out.shape
    ahead = context.ahead.repeat_interleave(n_paths, 0)
    state = encoder.repeat_state(context.state, n_paths)
    for step in range(horizon):
        output, state = encoder.run(ahead[:, step : step + 1], state)
        values = draw(output.unflatten(0, (n_windows, n_paths)).squeeze(2))
        out[:, :, step] = values * context.scale[:, None]
        encoder.feed(values.flatten(0, 1), ahead, step)
    return state


def path_slices(n_paths: int, at_once: int | None, n_windows: int, n_channels: int) -> list[slice]:
    """All paths, so many at a time, or as many as keep the values of a step small."""
    at_once = at_once or max(1, BLOCK_NUMBERS // (n_windows * n_channels))
    return [slice(k, min(k + at_once, n_paths)) for k in range(0, n_paths, at_once)]


def check_paths(values: Float[Tensor, "B P H C"], name: str) -> None:
    """Raise if a path is not finite: values are neither clamped nor dropped."""
    lost = torch.stack([~part.isfinite().flatten(1).all(1) for part in values.unbind(2)], dim=1)
    if lost.any():
        window, step = lost.nonzero()[0].tolist()
        raise ForecastError(
            f"paths of {name} diverge, as each value is fed back; train it longer, or with a "
            "larger least_scale",
            window=window,
            step=step,
        )
