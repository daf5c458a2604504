"""Scenarios point by point in order: the form in which nearly all scores are computed.

Sorting forgets which scenario a number came from. So a fan holds all that the marginal scores need
and nothing of the joint ones, which look at `Scenarios` themselves.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.metrics.sorting import sort_values, sort_weighted
from powerphase.scenarios import Scenarios

M = -3
"""Where the scenarios are among a fan's axes, counted from the right."""

CENTRAL = 0.8
"""The share of probability in the interval whose coverage and width are reported."""

ROUNDING = 1e-6
"""What float32 sums of weights may be off by when they are compared with a probability."""


@dataclass(frozen=True, eq=False)
class Fan:
    """The scenarios of each point in ascending order, with their weights."""

    values: Float[Tensor, "B M H C"]
    weights: Float[Tensor, "B M #H #C"]
    """One number per scenario where all are equal."""

    @classmethod
    def of(cls, scenarios: Scenarios) -> "Fan":
        """The fan of these scenarios."""
        if has_equal_weights(scenarios):
            return cls(sort_values(scenarios.values), scenarios.weights[:, :, :1].unsqueeze(2))
        return cls(*sort_weighted(scenarios.values, scenarios.weights))

    @property
    def n_scenarios(self) -> int:
        """Number of scenarios, M."""
        return self.values.shape[M]

    @cached_property
    def cumulative(self) -> Float[Tensor, "B M #H #C"]:
        """The weight of all scenarios up to and including each."""
        return self.weights.cumsum(M)

    def expect(self, what: Float[Tensor, "B M H C"]) -> Float[Tensor, "B H C"]:
        """The weighted mean over scenarios of something that each of them has."""
        if self.weights.shape[-1] == 1:
            return torch.einsum("BMHC,BM->BHC", what, self.weights[..., 0, 0])
        return (self.weights * what).sum(M)

    @cached_property
    def central_interval(self) -> tuple[Float[Tensor, "B H C"], Float[Tensor, "B H C"]]:
        """The interval that leaves out less than a tenth of the weight at each end.

        From the smallest x with F(x) ≥ 0.1 to its mirror image from above. So turning the axis
        around turns the interval around, and copies or weightless scenarios do not move it.
        """
        tail = (1 - CENTRAL) / 2 - ROUNDING
        first = (self.cumulative < tail).sum(M, keepdim=True)
        from_here_on = 1 - (self.cumulative - self.weights)
        last = (from_here_on >= tail).sum(M, keepdim=True) - 1
        n_windows, _, horizon, n_channels = self.values.shape
        low, high = (
            self.values.gather(M, index.expand(n_windows, 1, horizon, n_channels)).squeeze(M)
            for index in (first, last)
        )
        return low, high

    def of_channels(self, channels: slice) -> "Fan":
        """The fan of some channels alone."""
        weights = self.weights if self.weights.shape[-1] == 1 else self.weights[..., channels]
        return Fan(self.values[..., channels], weights)


def has_equal_weights(scenarios: Scenarios) -> bool:
    """Whether every scenario has exactly the same weight everywhere."""
    low, high = torch.aminmax(scenarios.weights)
    return bool(low == high)
