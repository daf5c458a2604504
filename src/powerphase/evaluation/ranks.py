"""Quantiles of scenarios, and the order of ranks in which they are put together.

A forecast of single channels says how likely each value is. Which values come together is said by
the ranks of joint scenarios: where scenario m of a template has the third largest value of a
channel and step, scenario m of the result gets the third largest quantile.
"""

import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from powerphase.scenarios import Scenarios

EQUAL = 1e-4
"""The largest relative difference between weights that are equal but for float32 rounding."""

INDEX_TYPES = (torch.uint8, torch.int16, torch.int32)
"""The types of scenario numbers, the smallest first: orders of a whole grid are large."""


def quantiles(scenarios: Scenarios, count: int) -> Float[Tensor, "B count H C"]:
    """The quantiles of every channel and step at the levels (m − ½)/count, ascending.

    Each value lies at the middle of its weight in the cumulative distribution, which is linear
    between values. Levels below the first or above the last middle have the lowest or highest
    value: nothing lies beyond the scenarios. As many quantiles as there are scenarios of equal
    weight are the sorted scenarios themselves.
    """
    weights, values = scenarios.weights, scenarios.values
    if count == values.shape[1] and weights.max() <= (1 + EQUAL) * weights.min():
        return values.sort(1).values
    weights = weights.double().unsqueeze(2).expand_as(values)
    # A scenario without weight is sorted to the end, and takes the value of the one before it.
    ordered, order = values.masked_fill(weights == 0, torch.inf).sort(dim=1, stable=True)
    highest = values.masked_fill(weights == 0, -torch.inf).amax(1, keepdim=True)
    share = weights.gather(1, order)
    levels = (share.cumsum(1) - share / 2) / share.sum(1, keepdim=True)
    return _interpolate(ordered.minimum(highest), levels, count)


def _interpolate(
    values: Float[Tensor, "B M H C"], levels: Float64[Tensor, "B M H C"], count: int
) -> Float[Tensor, "B count H C"]:
    """The values at equally spaced levels, linear between those that have a level."""
    asked = (torch.arange(count, dtype=torch.float64, device=values.device) + 0.5) / count
    each, last = levels.movedim(1, -1).contiguous(), values.shape[1] - 1
    upper = torch.searchsorted(each, asked.expand(*each.shape[:-1], count).contiguous())
    upper = upper.movedim(-1, 1)
    low, high = (upper - 1).clamp(0, last), upper.clamp(0, last)
    first, step = levels.gather(1, low), levels.gather(1, high) - levels.gather(1, low)
    part = torch.where(step > 0, (asked[:, None, None] - first) / step, 0.0)
    below, above = (values.gather(1, index).double() for index in (low, high))
    return (below + part * (above - below)).to(values)


def rank_order(values: Float[Tensor, "B M H C"]) -> Integer[Tensor, "B M H C"]:
    """The numbers of the scenarios by ascending value; of equal values, the lower number first."""
    return values.argsort(dim=1, stable=True).to(index_type(values.shape[1]))


def index_type(count: int) -> torch.dtype:
    """The smallest type that holds the numbers of so many scenarios."""
    return next(kind for kind in INDEX_TYPES if count - 1 <= torch.iinfo(kind).max)


def in_rank_order(
    ascending: Float[Tensor, "B M H C"], order: Integer[Tensor, "B M H C"]
) -> Float[Tensor, "B M H C"]:
    """The same values, the lowest in the first scenario of the order, the highest in its last."""
    return torch.empty_like(ascending).scatter_(1, order.long(), ascending)
