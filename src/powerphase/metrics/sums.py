"""Sums of point scores in float64, kept by window, by step, by channel, and by variable type."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from powerphase.axes import KINDS


class Sums:
    """Running sums of several point scores over the same points.

    Args:
        names: the scores.
        n_windows: windows, B.
        horizon: steps, H.
        n_channels: channels, C.
        device: where to keep the sums.
    """

    def __init__(
        self,
        names: Sequence[str],
        n_windows: int,
        horizon: int,
        n_channels: int,
        device: torch.device,
    ) -> None:
        self.names = tuple(names)
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self._window = zeros((len(names), n_windows, KINDS))
        self._step = zeros((len(names), horizon, KINDS))
        self._channel = zeros((len(names), n_channels))

    def add(
        self, window: int, first: int, points: Float[Tensor, "scores H C"], every: int = 1
    ) -> None:
        """Add the points of one window, of channel `first` and every so many from there on."""
        exact = points.double()
        channels = first + every * torch.arange(points.shape[-1], device=points.device)
        is_kind = torch.nn.functional.one_hot(channels % KINDS, KINDS).double()
        by_channel = exact.sum(1)
        self._window[:, window] += by_channel @ is_kind
        self._step += exact @ is_kind
        self._channel[:, channels] += by_channel

    def by_window(self, name: str) -> Float64[np.ndarray, "B 4"]:
        """Means over steps and buses."""
        n_points = self._step.shape[1] * self._channel.shape[1] // KINDS
        return (self._window[self.names.index(name)] / n_points).cpu().numpy()

    def by_step(self, name: str) -> Float64[np.ndarray, "H 4"]:
        """Means over windows and buses."""
        n_points = self._window.shape[1] * self._channel.shape[1] // KINDS
        return (self._step[self.names.index(name)] / n_points).cpu().numpy()

    def by_bus(self, name: str) -> Float64[np.ndarray, "N 4"]:
        """Means over windows and steps."""
        n_points = self._window.shape[1] * self._step.shape[1]
        found = self._channel[self.names.index(name)] / n_points
        return found.cpu().numpy().reshape(-1, KINDS)
