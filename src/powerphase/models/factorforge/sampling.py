"""Joint scenarios whose every channel has the quantiles of its distribution.

The rank order of joint draws is filled with quantiles, channel by channel and step by step
(ensemble copula coupling, doi:10.1214/13-STS443). Two things are added. The draws themselves are
stratified: each random number takes every one of M quantiles once, so that sums over the grid have
less sampling error. And the total power of a draw is kept: ranks change load and generation by
different small amounts, whose sum would flow through the slack bus.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from powerphase.axes import KINDS, P

SLACK = 3
"""The slack bus in `Layout.bus_type`."""

TINY = torch.finfo(torch.float32).tiny

SORTED_AT_ONCE = 2**18
"""Numbers that are sorted at a time: as many as a processor's cache holds."""

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
    return normal_scores(torch.from_numpy(random.random(shape, dtype=np.float32)))


def normal_quantiles(count: int) -> Float[Tensor, " M"]:
    """The (m − ½)/M quantiles of the standard normal distribution."""
    return torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)


def normal_scores(values: Float32[Tensor, "M H X"]) -> Float32[Tensor, "M H X"]:
    """The M normal quantiles in the rank order of each column; equal values keep their order."""
    quantiles = normal_quantiles(len(values)).float()
    columns = values.cpu().flatten(1)
    scores, width = torch.empty_like(columns), max(1, SORTED_AT_ONCE // len(values))

    def rank(first: int) -> None:
        part = columns[:, first : first + width].T.contiguous()
        part.scatter_(1, _order(part), quantiles.expand_as(part))
        scores[:, first : first + width] = part.T

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # sorting takes most of the time
        list(pool.map(rank, range(0, columns.shape[1], width)))
    return scores.view_as(values).to(values)


def _order(rows: Float32[Tensor, "X M"]) -> Int64[Tensor, "X M"]:
    """The numbers of each row's values, from the smallest on.

    Value and number are sorted as one integer, which takes a tenth of the time of a stable sort.
    """
    bits = (rows + 0.0).view(torch.int32)  # the sum, since -0.0 is as large as 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ascending.long() << 32) | torch.arange(rows.shape[1])
    keys.numpy().sort(axis=1)
    return keys & 0xFFFFFFFF


def fill_ranks(
    draws: Float32[Tensor, "M H C"],
    mean: Float32[Tensor, "H C"],
    deviation: Float32[Tensor, "H C"],
) -> Float32[Tensor, "M H C"]:
    """The quantiles of Gaussian channels in the rank order of the draws."""
    return normal_scores(draws).mul_(deviation).add_(mean)


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
    excess = Excess()
    excess.add(ranked, draws, deviation, bus_type)
    excess.take_from(ranked, deviation, bus_type)


class Excess:
    """The total P of ranked scenarios less that of their draws, summed block by block of buses."""

    def __init__(self) -> None:
        self._power: Float32[Tensor, "M H 1"] | float = 0.0
        self._width: Float32[Tensor, "H 1"] | float = 0.0

    def add(
        self,
        ranked: Float32[Tensor, "M H C"],
        draws: Float32[Tensor, "M H C"],
        deviation: Float32[Tensor, "H C"],
        bus_type: Int[np.ndarray, " N"],
    ) -> None:
        """Add the buses of a block."""
        counted = torch.from_numpy(bus_type != SLACK).to(ranked)
        difference = (ranked[..., P::KINDS] - draws[..., P::KINDS]) * counted
        width = deviation[..., P::KINDS] * counted
        self._power = difference.sum(-1, keepdim=True) + self._power
        self._width = width.sum(-1, keepdim=True) + self._width

    def take_from(
        self,
        ranked: Float32[Tensor, "M H C"],
        deviation: Float32[Tensor, "H C"],
        bus_type: Int[np.ndarray, " N"],
    ) -> None:
        """Subtract the share of a block's buses in the sum of all blocks, in place."""
        counted = torch.from_numpy(bus_type != SLACK).to(ranked)
        width = deviation[..., P::KINDS] * counted
        total = torch.as_tensor(self._width).clamp(min=TINY)
        ranked[..., P::KINDS] -= self._power * width / total
