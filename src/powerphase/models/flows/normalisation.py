"""Batch normalisation as a step of a flow: the same for every row, so it can wait.

Given its statistics it is one affine map for each channel. It is not carried out but handed on,
together with the mean and the variance of the values that it is a map of. Those after it follow
from these: a half of the channels that a coupling leaves alone is normalised without being read.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.framework.device import process_mean, world_size

EPSILON = 1e-5
"""Added to variances."""
NEWS = 0.1
"""What a batch changes of the running statistics."""


class Moments(NamedTuple):
    """Of each channel over all rows; the variance by their number, not by one less."""

    mean: Float[Tensor, " C"]
    variance: Float[Tensor, " C"]

    @classmethod
    def of(cls, values: Float[Tensor, "B steps C"]) -> "Moments":
        """Those of all windows and steps."""
        variance, mean = torch.var_mean(values, dim=(0, 1), correction=0)
        return cls(mean, variance)

    def of_team(self) -> "Moments":
        """Those over the rows of all processes that train together, which have as many each."""
        mean = process_mean(self.mean)
        return Moments(mean, process_mean(self.variance + (self.mean - mean).square()))

    @classmethod
    def joined(cls, parts: list["Moments"]) -> "Moments":
        """Those of some channels and others."""
        return cls(*(torch.cat(part) for part in zip(*parts, strict=True)))

    @classmethod
    def pooled(cls, parts: list["Moments"]) -> "Moments":
        """Those of the same channels over some rows and others, as many each."""
        means, variances = (torch.stack(part) for part in zip(*parts, strict=True))
        return cls(means.mean(0), variances.mean(0) + means.var(0, correction=0))


class Affine(NamedTuple):
    """scale · (y − centre) + shift, channel by channel.

    The centre is taken off first: of a channel that hardly moves, only the difference counts.
    """

    scale: Float[Tensor, " C"]
    centre: Float[Tensor, " C"]
    shift: Float[Tensor, " C"]

    def __call__(self, values: Float[Tensor, "B steps C"]) -> Float[Tensor, "B steps C"]:
        """What it makes of values."""
        return torch.addcmul(self.shift, values - self.centre, self.scale)

    def moments(self, before: Moments) -> Moments:
        """Those of what it makes of values with such ones."""
        mean = (before.mean - self.centre) * self.scale + self.shift
        return Moments(mean, before.variance * self.scale.square())

    def then(self, after: "Affine") -> "Affine":
        """Both, one after the other."""
        shift = (self.shift - after.centre) * after.scale + after.shift
        return Affine(self.scale * after.scale, self.centre, shift)

    def split(self, at_once: int) -> list["Affine"]:
        """That of some channels after others."""
        parts = zip(*(one.split(at_once) for one in self), strict=True)
        return [Affine(*part) for part in parts]


class FlowNorm(nn.Module):
    """Normalises channels by the batch in training, and by running averages otherwise.

    The batch is that of all processes which train together: what they learn is what one would.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.log_gamma = nn.Parameter(torch.zeros(n_channels))
        self.beta = nn.Parameter(torch.zeros(n_channels))
        self.register_buffer("mean", torch.zeros(n_channels))
        self.register_buffer("variance", torch.ones(n_channels))

    def forward(self, found: Moments, rows: int) -> tuple[Affine, Float[Tensor, ""]]:
        """The map for so many rows with these moments, and its log-determinant."""
        mean, variance = self.mean, self.variance
        if self.training:
            rows *= world_size()
            mean, variance = found.of_team()
            variance = variance * (rows / (rows - 1))
            self.mean.lerp_(mean.detach(), NEWS)
            self.variance.lerp_(variance.detach(), NEWS)
        width = variance + EPSILON
        scale = self.log_gamma.exp() * width.rsqrt()
        return Affine(scale, mean, self.beta), (self.log_gamma - width.log() / 2).sum()

    def inverse(self, values: Float[Tensor, "B P C"]) -> Float[Tensor, "B P C"]:
        """What the map by running averages makes these of."""
        wide = (self.variance + EPSILON).sqrt() * (-self.log_gamma).exp()
        return (values - self.beta) * wide + self.mean
