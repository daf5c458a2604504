"""The size of a window's channels, by which baselines divide what they are shown of it."""

from types import MappingProxyType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

ZeroScale = Literal["floor", "batch"]
"""What a channel that is zero all along is divided by: the floor, or the channel's average over the
batch that the window happens to be in."""

LEAST_SCALE = 1e-4
"""Floor of a channel's mean size in a context, normalised."""

REFERENCE_SCALE = MappingProxyType({"least_scale": 1e-10, "zero_scale": "batch"})
"""What the reference implementation does: windows depend on the company they are in."""


def mean_sizes(
    past: Float[Tensor, "B T C"], least: float, zero: ZeroScale = "floor"
) -> Float[Tensor, "B C"]:
    """The mean absolute value of each context, and no less than the floor."""
    size = torch.linalg.vector_norm(past, ord=1, dim=1) / past.shape[1]
    if zero == "batch":
        size = torch.where(size > 0, size, size.mean(0))
    return size.clamp(min=least)
