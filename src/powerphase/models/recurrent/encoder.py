"""The encoder: a two-layer LSTM that is shown lagged values of all channels and the clock.

What the first layer makes of its inputs is made by `LagProjection`. The LSTM then has the identity
for its first input matrix, so that it runs as the usual one does.
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.lags import LagProjection
from powerphase.models.recurrent.rollout import Seen

GATES = 4
"""Of an LSTM cell: input, forget, candidate, output."""

State = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Of both layers: what they put out, and what their cells hold; "1 B cells" each."""


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
        # As the first input matrix of an LSTM with all lags and the clock for inputs begins.
        bound = 1 / sqrt(cells)
        super().__init__(config.lags, n_channels, context_steps, gates, bound, channel_block)
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
        return self.run(self.shifted(window, clock))[0]

    def see(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> Seen:
        """Encode contexts once, for all paths."""
        gates = self.shifted(window, clock)
        encoded = window.past.shape[1] - self.reach
        _, state = self.run(gates[:, :encoded])
        return Seen(state, gates[:, encoded:], window.scale)

    def run(
        self, gates: Float[Tensor, "B steps gates"], state: State | None = None
    ) -> tuple[Float[Tensor, "B steps K"], State]:
        """Both layers and what is on top of them, from a state on; and the state after it."""
        before = (None, None) if state is None else state
        low, first = self.first(gates, before[0])
        high, second = self.second(self.dropout(low), before[1])
        output = high if self.condition is None else self.condition(high)
        return output, (first, second)

    def spread(self, state: State, n_paths: int) -> State:
        """The state of each window for so many paths of it."""
        spread: State = tuple(  # type: ignore[assignment]
            tuple(part.repeat_interleave(n_paths, 1) for part in layer) for layer in state
        )
        return spread
