"""Joint scenarios whose every channel has the quantiles of its distribution.

The rank order of joint draws is filled with quantiles, channel by channel and step by step
(ensemble copula coupling, doi:10.1214/13-STS443). Two things are added. The draws themselves are
stratified: each random number takes every one of M quantiles once, so that sums over the grid have
less sampling error. And the total power of a draw is kept: ranks change load and generation by
different small amounts, whose sum would flow through the slack bus.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from powerphase.axes import KINDS, P

SLACK = 3
"""The slack bus in `Layout.bus_type`."""

TINY = torch.finfo(torch.float32).tiny

Normals = Callable[[np.random.Generator, tuple[int, ...]], Float32[Tensor, "M H X"]]
"""Draws standard normal numbers of a shape, which begins with the number of scenarios."""


def independent_normals(
    random: np.random.Generator, shape: tuple[int, ...]
) -> Float32[Tensor, "M H X"]:
    """Independent draws."""
    return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))


def stratified_normals(
    random: np.random.Generator, shape: tuple[int, ...]
) -> Float32[Tensor, "M H X"]:
    """The M quantiles in every column, each in a random order of its own."""
    order = torch.from_numpy(random.random(shape, dtype=np.float32))
    return normal_quantiles(shape[0]).to(torch.float32)[ranks(order)]


def normal_quantiles(count: int) -> Float[Tensor, " M"]:
    """The (m − ½)/M quantiles of the standard normal distribution."""
    return torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)


def ranks(values: Float[Tensor, "M H X"]) -> Int64[Tensor, "M H X"]:
    """The rank, from 0, of each scenario in every column; equal values keep their order."""
    return values.argsort(dim=0, stable=True).argsort(dim=0)


def fill_ranks(
    draws: Float32[Tensor, "M H C"],
    mean: Float32[Tensor, "H C"],
    deviation: Float32[Tensor, "H C"],
) -> Float32[Tensor, "M H C"]:
    """The quantiles of Gaussian channels in the rank order of the draws."""
    quantiles = normal_quantiles(len(draws)).to(draws)
    return quantiles[ranks(draws)].mul_(deviation).add_(mean)


def keep_total_power(
    ranked: Float32[Tensor, "M H C"],
    draws: Float32[Tensor, "M H C"],
    deviation: Float32[Tensor, "H C"],
    bus_type: Int[np.ndarray, " N"],
) -> None:
    """Give every step of ranked scenarios the total P of its draw, in place.

    The difference is spread over the buses by the standard deviation of their P. The slack bus does
    not count: its P follows from that of all others.
    """
    counted = torch.from_numpy(bus_type != SLACK).to(ranked)
    power, width = ranked[..., P::KINDS], deviation[..., P::KINDS] * counted
    surplus = ((power - draws[..., P::KINDS]) * counted).sum(-1, keepdim=True)
    power -= surplus * width / width.sum(-1, keepdim=True).clamp(min=TINY)
