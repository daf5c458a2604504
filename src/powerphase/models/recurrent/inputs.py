"""What the LSTM is told of a window: its values by their own size, and what the clock says."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from powerphase.models.framework.scaling import mean_sizes
from powerphase.models.recurrent.config import LaggedConfig

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60

CLOCK_FEATURES = 6


class Given(NamedTuple):
    """Values of some channels where they lie, to be divided when they are read."""

    parts: tuple[Float[Tensor, "B _ C"], ...]
    """Some steps after others: one part or two."""
    scale: Float[Tensor, "B C"] | None = None

    @classmethod
    def of_tensors(cls, first: Tensor, second: Tensor | None, scale: Tensor | None) -> "Given":
        """From what `tensors` has."""
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

    def of(self, channels: slice) -> "Given":
        """Those of some of the channels."""
        scale = None if self.scale is None else self.scale[:, channels]
        return Given(tuple(part[..., channels] for part in self.parts), scale)

    def made(self) -> Float[Tensor, "B steps C"]:
        """The values, divided.

        Each part is divided into its place: one pass reads and writes it.
        """
        if self.scale is None:
            return self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts, dim=1)
        made = self.parts[0].new_empty(self.size)
        for part, place in zip(self.parts, self._places(made), strict=True):
            torch.div(part, self.scale[:, None], out=place)
        return made

    def blurred(self, noise: float) -> "Given":
        """The values, divided, with normal noise of such a spread; in one tensor of their own."""
        made = self.parts[0].new_empty(self.size).normal_(std=noise)
        for part, place in zip(self.parts, self._places(made), strict=True):
            place.add_(part) if self.scale is None else place.addcdiv_(part, self.scale[:, None])
        return Given((made,))

    def _places(self, made: Tensor) -> tuple[Tensor, ...]:
        """Where each part has its steps."""
        return made.split([part.shape[1] for part in self.parts], dim=1)


class Window(NamedTuple):
    """Windows as they are, and what to divide their channels by.

    They are divided block by block of channels, whenever a block is asked for: all of them are the
    largest tensor that there is, and one copy of it is enough.
    """

    past: Float[Tensor, "B T C"]
    target: Float[Tensor, "B H C"] | None
    """None where it is not known yet."""
    scale: Float[Tensor, "B C"]

    def given(self, since: int = 0) -> Given:
        """Context, from a step on, and target."""
        past = self.past[:, since:]
        return Given((past,) if self.target is None else (past, self.target), self.scale)

    def scaled(self, channels: slice, since: int = 0) -> Float[Tensor, "B steps C"]:
        """z: context and target of these channels, divided by their scale, from a step on."""
        return self.given(since).of(channels).made()

    def sizes(self) -> Float[Tensor, "parts B C"]:
        """The largest absolute value of each channel: in the past, and in the target if known."""
        ends = [torch.aminmax(part, dim=1) for part in self[:2] if part is not None]
        return torch.stack([torch.maximum(low.abs(), high.abs()) for low, high in ends])


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
