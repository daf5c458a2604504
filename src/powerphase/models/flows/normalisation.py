"""Batch normalisation as a step of a flow, applied lazily.

Given its statistics, batch normalisation is one affine map per channel, the same for every row.
Instead of applying it, the flow passes it on together with the mean and variance of the values it
will be applied to. The moments after the map follow from those before it, so the half of the
channels that a coupling leaves unchanged is normalised without being read.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.framework.device import world_size
from powerphase.models.recurrent.blocks import Moments

EPSILON = 1e-5
"""Added to variances."""
MOMENTUM = 0.1
"""Weight of a batch in the running statistics."""


class Affine(NamedTuple):
    """scale · (y − centre) + shift, for each channel.

    The centre is subtracted first: of a channel that hardly moves, only the difference counts.
    """

    scale: Float[Tensor, " C"]
    centre: Float[Tensor, " C"]
    shift: Float[Tensor, " C"]

    def __call__(self, values: Float[Tensor, "B steps C"]) -> Float[Tensor, "B steps C"]:
        """Apply the map to values."""
        return torch.addcmul(self.shift, values - self.centre, self.scale)

    def moments(self, before: Moments) -> Moments:
        """Moments after the map, from those before it."""
        mean = (before.mean - self.centre) * self.scale + self.shift
        return Moments(mean, before.variance * self.scale.square())

    def then(self, after: "Affine") -> "Affine":
        """The composition of this map and the next one."""
        shift = (self.shift - after.centre) * after.scale + after.shift
        return Affine(self.scale * after.scale, self.centre, shift)

    def split(self, block_size: int) -> list["Affine"]:
        """The maps of consecutive blocks of channels."""
        blocks = zip(*(tensor.split(block_size) for tensor in self), strict=True)
        return [Affine(*block) for block in blocks]

    def select(self, channels: slice) -> "Affine":
        """The map of some of the channels."""
        return Affine(*(tensor[channels] for tensor in self))


class FlowNorm(nn.Module):
    """Normalises channels by the batch in training, and by running averages otherwise.

    The batch spans all training processes, so that several processes learn what one would.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.log_gamma = nn.Parameter(torch.zeros(n_channels))
        self.beta = nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("mean", torch.zeros(n_channels))
        self.register_buffer("variance", torch.ones(n_channels))

    def forward(self, moments: Moments, rows: int) -> tuple[Affine, Float[Tensor, ""]]:
        """The map for a batch of `rows` rows with these moments, and its log-determinant."""
        mean, variance = self.mean, self.variance
        if self.training:
            rows *= world_size()
            mean, variance = moments.over_processes()
            variance = variance * (rows / (rows - 1))
            self.mean.lerp_(mean.detach(), MOMENTUM)
            self.variance.lerp_(variance.detach(), MOMENTUM)
        variance = variance + EPSILON
        scale = self.log_gamma.exp() * variance.rsqrt()
        return Affine(scale, mean, self.beta), (self.log_gamma - variance.log() / 2).sum()

    def inverse(self, values: Float[Tensor, "B P C"]) -> Float[Tensor, "B P C"]:
        """Invert the map by running averages."""
        width = (self.variance + EPSILON).sqrt() * (-self.log_gamma).exp()
        return (values - self.beta) * width + self.mean
