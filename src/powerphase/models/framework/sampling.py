"""Noise that belongs to a window, whatever else is forecast before it or beside it."""

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from powerphase.seeds import stream


def window_seeds(seed: int, time: Shaped[np.ndarray, "B steps"]) -> list[int]:
    """A number for each window, fixed by the seed and by when its context begins."""
    return [int(stream(seed, "noise", str(first)).integers(2**63)) for first in time[:, 0]]


def window_generators(
    seed: int, time: Shaped[np.ndarray, "B steps"], device: torch.device
) -> list[torch.Generator]:
    """A random generator for each window, on the device, as `window_seeds` fixes it."""
    return [torch.Generator(device).manual_seed(number) for number in window_seeds(seed, time)]


class PathNoise:
    """Normal numbers for some paths of each window.

    A path's numbers are the same whichever others are asked for with it: all are drawn, and those
    of the others left out.

    Args:
        generators: one for each window, fresh.
        n_paths: paths of each window in all.
        paths: those that are asked for.
    """

    def __init__(
        self, generators: list[torch.Generator], n_paths: int, paths: slice = slice(None)
    ) -> None:
        self.generators, self.n_paths, self.paths = generators, n_paths, paths

    def normal(self, width: int, like: Tensor) -> Float[Tensor, "B P width"]:
        """The next numbers, so many for each path, of the type and on the device of a tensor."""
        size = (self.n_paths, width)
        drawn = [
            torch.randn(size, generator=one, device=like.device, dtype=like.dtype)[self.paths]
            for one in self.generators
        ]
        return torch.stack(drawn)
