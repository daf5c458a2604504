"""The head: a Gaussian of all channels, whose covariance is low-rank plus diagonal.

With D the diagonal, F the factors and r a residual, the determinant and the quadratic form of
D + FFᵀ need sums over channels only (Woodbury): of log d, r²/d, f r/d and f fᵀ/d. Channels can
therefore come in blocks, and what is left is algebra with matrices of rank × rank.
"""

from math import e, log, pi
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


class Maps(NamedTuple):
    """The linear maps to the Gaussian of some channels: of the mean, the factors, the diagonal."""

    weight: Float[Tensor, "rows C K"]
    bias: Float[Tensor, "rows C"]


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
        # One linear layer, so that it begins as such; its rows by what they tell, then by channel.
        rows = nn.Linear(width, (2 + rank) * n_channels)
        self.weight = nn.Parameter(rows.weight.detach().unflatten(0, (-1, n_channels)))
        self.bias = nn.Parameter(rows.bias.detach().unflatten(0, (-1, n_channels)))

    @property
    def maps(self) -> Maps:
        """Of all channels."""
        return Maps(self.weight, self.bias)

    def blocks(self, at_once: int) -> list[Maps]:
        """The maps of some channels after others."""
        parts = zip(self.weight.split(at_once, 1), self.bias.split(at_once, 1), strict=True)
        return [Maps(*part) for part in parts]

    def gaussian(self, known: Float[Tensor, "*B K"], maps: Maps) -> Gaussian:
        """The Gaussian of the channels of these maps."""
        mean, raw, *factors = (
            F.linear(known, *row) for row in zip(maps.weight, maps.bias, strict=True)
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
