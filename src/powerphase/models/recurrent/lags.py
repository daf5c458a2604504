"""A linear layer of lagged values and the clock, without the lagged values.

It is linear in its inputs, so what it makes of five lags is the sum of five products of the same
values, each taken a few steps earlier. One product of all values with all five matrices is made,
and its slices are shifted and added; the lagged values, five times the data, never exist.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.errors import ConfigError
from powerphase.models.recurrent.blocks import channels_at_once, summed
from powerphase.models.recurrent.inputs import CLOCK_FEATURES, Window


class LagProjection(nn.Module):
    """From windows to so many numbers for each step, by what came before it.

    Args:
        lags: steps back.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        width: numbers for each step.
        bound: of its first weights, either side of zero.
        channel_block: how many channels to project at a time.
    """

    def __init__(
        self,
        lags: tuple[int, ...],
        n_channels: int,
        context_steps: int,
        width: int,
        bound: float,
        channel_block: int | None = None,
    ) -> None:
        super().__init__()
        self.lags, self.reach, self.channel_block = lags, max(lags), channel_block
        if context_steps <= self.reach:
            raise ConfigError(
                f"lags reach {self.reach} steps back and a context has {context_steps}; give "
                "shorter lags, or longer contexts"
            )
        size = (n_channels, len(lags) * width)
        self.project = nn.Parameter(torch.empty(size).uniform_(-bound, bound))
        self.clock = nn.Parameter(torch.empty(CLOCK_FEATURES, width).uniform_(-bound, bound))

    def shifted(
        self, window: Window, clock: Float[Tensor, "B steps 6"]
    ) -> Float[Tensor, "B steps width"]:
        """What lagged values and the clock add up to, for the steps after the lags' reach.

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

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add to the sums of the steps ahead, in place, what these values of a step tell them."""
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
