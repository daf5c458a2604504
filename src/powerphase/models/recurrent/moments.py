"""Mean and variance of channels, pooled over blocks, batches and processes."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.device import process_mean

MEASURED_BATCHES = 10
"""Batches whose moments standardise the channels."""


class Moments(NamedTuple):
    """Mean and (biased) variance of each channel over all rows."""

    mean: Float[Tensor, " C"]
    variance: Float[Tensor, " C"]

    @classmethod
    def of(cls, values: Float[Tensor, "B steps C"]) -> "Moments":
        """Moments over all windows and steps."""
        variance, mean = torch.var_mean(values, dim=(0, 1), correction=0)
        return cls(mean, variance)

    def over_processes(self) -> "Moments":
        """Moments over the rows of all training processes, which have equally many rows."""
        mean = process_mean(self.mean)
        return Moments(mean, process_mean(self.variance + (self.mean - mean).square()))

    @classmethod
    def concatenate(cls, blocks: list["Moments"]) -> "Moments":
        """Moments of several blocks of channels, as one."""
        return cls(*(torch.cat(block) for block in zip(*blocks, strict=True)))

    @classmethod
    def pool(cls, batches: list["Moments"]) -> "Moments":
        """Moments over several batches of the same channels, with equally many rows."""
        means, variances = (torch.stack(batch) for batch in zip(*batches, strict=True))
        return cls(means.mean(0), variances.mean(0) + means.var(0, correction=0))
