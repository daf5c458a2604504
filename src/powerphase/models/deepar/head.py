"""The head: a Gaussian of all channels, whose covariance is low-rank plus diagonal.

With D the diagonal, F the factors and r a residual, the determinant and the quadratic form of
D + FFᵀ need sums over channels only (Woodbury): of log d, r²/d, f r/d and f fᵀ/d. Channels can
therefore come in blocks, and what is left is algebra with matrices of rank × rank.
"""

from math import e, log, pi, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

UNIT = log(e - 1)
"""Where softplus is 1, so that variances begin there."""


class Gaussian(NamedTuple):
    """Of some channels: means, factors and the variances that channels have for themselves."""

    mean: Float[Tensor, "*B C"]
    factors: tuple[Float[Tensor, "*B C"], ...]
    diagonal: Float[Tensor, "*B C"]


class LowRankGaussian(nn.Module):
    """From K numbers to a Gaussian of all channels.

    Args:
        width: the K numbers.
        n_channels: channels, C.
        rank: factors that they share, R.
        least_variance: added to the diagonal.
    """

    def __init__(self, width: int, n_channels: int, rank: int, least_variance: float) -> None:
        super().__init__()
        self.rank, self.least_variance = rank, least_variance
        # As linear layers begin; rows of the mean, the diagonal and each factor, then by channel.
        bound, size = 1 / sqrt(width), (2 + rank, n_channels)
        self.weight = nn.Parameter(torch.empty(*size, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*size, 1).uniform_(-bound, bound))

    def forward(self, known: Float[Tensor, "*B K"]) -> Gaussian:
        """The Gaussian of all channels."""
        return self.gaussian(known, self.weight, self.bias)

    def gaussian(
        self,
        known: Float[Tensor, "*B K"],
        weight: Float[Tensor, "rows C K"],
        bias: Float[Tensor, "rows C 1"],
    ) -> Gaussian:
        """The Gaussian of those channels whose weights and biases are given."""
        mean, raw, *factors = (
            F.linear(known, *row) for row in zip(weight, bias.squeeze(2), strict=True)
        )
        diagonal = F.softplus(raw + UNIT) + self.least_variance
        return Gaussian(mean, tuple(factors), diagonal)


def channel_sums(found: Gaussian, values: Float[Tensor, "*B C"]) -> Float[Tensor, "*B sums"]:
    """Sums over channels: log d, r²/d, then f r/d by factor and f f'/d by pair of factors.

    As sums of products and not as matrix products, which may be rounded to a few digits: with
    thousands of channels their difference is what counts.
    """
    residual = values - found.mean
    shares = [factor / found.diagonal for factor in found.factors]
    pairs = [
        (shares[one] * found.factors[other]).sum(-1)
        for one in range(len(shares))
        for other in range(one + 1)
    ]
    own = [found.diagonal.log().sum(-1), (residual.square() / found.diagonal).sum(-1)]
    return torch.stack([*own, *((share * residual).sum(-1) for share in shares), *pairs], dim=-1)


def negative_log_likelihood(
    sums: Float[Tensor, "*B sums"], rank: int, n_channels: int
) -> Float[Tensor, "*B"]:
    """From the sums over all channels to −log p of their values, by elimination.

    Written out factor by factor: ranks are small, and a library would wait for the device.
    """
    log_determinant, square, *rest = sums.unbind(-1)
    cross = rest[:rank]
    inner = [[rest[rank + k * (k + 1) // 2 + m] for m in range(k + 1)] for k in range(rank)]
    for k in range(rank):
        inner[k][k] = inner[k][k] + 1
    for k in range(rank):
        pivot = inner[k][k]
        log_determinant, square = log_determinant + pivot.log(), square - cross[k].square() / pivot
        for row in range(k + 1, rank):
            share = inner[row][k] / pivot
            cross[row] = cross[row] - share * cross[k]
            for column in range(k + 1, row + 1):
                inner[row][column] = inner[row][column] - share * inner[column][k]
    return (n_channels * log(2 * pi) + log_determinant + square) / 2
