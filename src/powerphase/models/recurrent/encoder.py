"""The recurrent encoder, a two-layer LSTM, and the rollout of paths step by step.

The input of the first layer, lagged values of all channels and the clock, is projected by
`LagProjection`. The LSTM then has the identity as its first input matrix, so that it can run as
usual.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.errors import ForecastError
from powerphase.models.recurrent.blocks import BLOCK_NUMBERS
from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.inputs import LagProjection, Window

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

    def encode(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> EncodedContext:
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
        super().__init__(config.lags, *size, config.lag_inputs)
        # Two LSTMs of one layer each: cuDNN draws the dropout within one of two layers from a state
        # that a training which continues after a kill could not restore.
        self.first = nn.LSTM(gates, cells, batch_first=True)
        self.second = nn.LSTM(cells, cells, batch_first=True)
        self.first.weight_ih_l0 = nn.Parameter(torch.eye(gates), requires_grad=False)
        self.dropout = nn.Dropout(config.dropout)
        self.condition = None if condition is None else nn.Linear(cells, condition)
        self.width = cells if condition is None else condition

    def forward(
        self, window: Window, clock: Float[Tensor, "B steps 6"]
    ) -> Float[Tensor, "B steps K"]:
        """The output before each step of the context after the longest lag, and of the target."""
        return self.run(self.project_window(window, clock))[0]

    def encode(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> EncodedContext:
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
