"""The encoder: a two-layer LSTM that is shown lagged values of all channels and the clock.

The first layer is linear in its inputs, so what it makes of five lags is the sum of five products
of the same values, each taken a few steps earlier. One product of all values with all five matrices
is made, and its slices are shifted and added; the lagged values, five times the data, never exist.
The LSTM then has the identity for its first input matrix, so that it runs as the usual one does.
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.errors import ConfigError
from powerphase.models.recurrent.blocks import channels_at_once, summed
from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.inputs import CLOCK_FEATURES, Window

GATES = 4
"""Of an LSTM cell: input, forget, candidate, output."""

State = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of both layers: what they put out, and what their cells hold; "1 B cells" each."""


class RecurrentEncoder(nn.Module):
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
        super().__init__()
        self.lags, self.reach, self.channel_block = config.lags, max(config.lags), channel_block
        if context_steps <= self.reach:
            raise ConfigError(
                f"lags reach {self.reach} steps back and a context has {context_steps}; give "
                "shorter lags, or longer contexts"
            )
        cells, gates = config.cells, GATES * config.cells
        # As the first input matrix of an LSTM with all lags and the clock for inputs begins.
        bound = 1 / sqrt(cells)
        self.project = nn.Parameter(
            torch.empty(n_channels, len(self.lags) * gates).uniform_(-bound, bound)
        )
        self.clock = nn.Parameter(torch.empty(CLOCK_FEATURES, gates).uniform_(-bound, bound))
        # Two of one layer each: dropout within one of two is drawn by cuDNN from a state of its
        # own, which a training that goes on after a kill could not restore.
        self.first = nn.LSTM(gates, cells, batch_first=True)
        self.second = nn.LSTM(cells, cells, batch_first=True)
        self.first.weight_ih_l0 = nn.Parameter(torch.eye(gates), requires_grad=False)
        self.dropout = nn.Dropout(config.dropout)
        self.condition = None if condition is None else nn.Linear(cells, condition)
        self.width = cells if condition is None else condition

    def forward(
        self, window: Window, clock: Float[Tensor, "B steps 6"]
    ) -> Float[Tensor, "B steps K"]:
        """What is known before each step: of the context, past the lags' reach, and the target."""
        return self.run(self.gates(window, clock))[0]

    def gates(
        self, window: Window, clock: Float[Tensor, "B steps 6"]
    ) -> Float[Tensor, "B steps gates"]:
        """What lagged values and the clock add to the gates of the first layer.

        Of a window whose target is not known, its values are missing in the sums.
        """
        projected = self._projected(window)
        n_steps = clock.shape[1]
        missing = self.reach + n_steps - projected.shape[1]
        if missing:
            projected = F.pad(projected, (0, 0, 0, missing))
        by_lag = projected.unflatten(2, (len(self.lags), -1))
        added = clock @ self.clock
        for lag, part in zip(self.lags, by_lag.unbind(2), strict=True):
            added = added + part[:, self.reach - lag : self.reach - lag + n_steps]
        return added

    def run(
        self, gates: Float[Tensor, "B steps gates"], state: State | None = None
    ) -> tuple[Float[Tensor, "B steps K"], State]:
        """Both layers and what is on top of them, from a state on; and the state after it."""
        before = (None, None) if state is None else state
        low, first = self.first(gates, before[0])
        high, second = self.second(self.dropout(low), before[1])
        output = high if self.condition is None else self.condition(high)
        return output, (first, second)

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H gates"], step: int
    ) -> None:
        """Add to the gates of the steps ahead, in place, what these values of a step tell them."""
        reached = {k: step + lag for k, lag in enumerate(self.lags) if step + lag < ahead.shape[1]}
        if not reached:
            return
        projected = (values @ self.project).unflatten(1, (len(self.lags), -1))
        for number, later in reached.items():
            ahead[:, later] += projected[:, number]

    def _projected(self, window: Window) -> Float[Tensor, "B steps products"]:
        n_windows, _, n_channels = window.past.shape
        rows = n_windows * sum(part.shape[1] for part in window[:2] if part is not None)
        at_once = channels_at_once(self.channel_block, n_channels, rows)

        def of_block(here: slice, _: Tensor | None, weight: Tensor) -> Tensor:
            # Parts may be made in half precision, and must not be added up in it.
            return (window.scaled(here) @ weight).to(weight.dtype)

        return summed(of_block, at_once, None, self.project)
