"""What the LSTM is told of a window: its values by their own size, and what the clock says."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from powerphase.models.recurrent.config import LaggedConfig
from powerphase.models.scaling import mean_sizes

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60

CLOCK_FEATURES = 6


class Window(NamedTuple):
    """Windows as they are, and what to divide their channels by.

    They are divided block by block of channels, whenever a block is asked for: all of them are the
    largest tensor that there is, and one copy of it is enough.
    """

    past: Float[Tensor, "B T C"]
    target: Float[Tensor, "B H C"] | None
    """None where it is not known yet."""
    scale: Float[Tensor, "B C"]

    def scaled(self, channels: slice, first: int = 0) -> Float[Tensor, "B steps C"]:
        """z: context, from its step `first` on, and target of these channels, by their scale.

        Each number is read once and written once: this is most of what a step does with windows.
        """
        known = self.past[:, first:, channels]
        parts = [known] if self.target is None else [known, self.target[..., channels]]
        n_windows, _, n_channels = known.shape
        found = known.new_empty(n_windows, sum(part.shape[1] for part in parts), n_channels)
        begin, scale = 0, self.scale[:, None, channels]
        for part in parts:
            end = begin + part.shape[1]
            torch.div(part, scale, out=found[:, begin:end])
            begin = end
        return found

    def largest(self) -> Float[Tensor, ""]:
        """The largest |z|, found without making z."""
        found = []
        for part in (self.past, self.target):
            if part is not None:
                low, high = torch.aminmax(part, dim=1)
                found.append(torch.maximum(low.abs(), high.abs()) / self.scale)
        return torch.stack(found).amax()


def scales(
    past: Float[Tensor, "B T C"], config: LaggedConfig, in_batch: bool
) -> Float[Tensor, "B C"]:
    """Mean size of each window's channels over the steps that are encoded, with a floor.

    Args:
        past: contexts.
        config: says what the floor is, and what is done with channels that are zero all along.
        in_batch: whether these windows are a batch. Those of a forecast are not: it must not
            matter which windows are asked for together.
    """
    zero = config.zero_scale if in_batch else "floor"
    return mean_sizes(past[:, max(config.lags) :], config.least_scale, zero)


def clock(
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
