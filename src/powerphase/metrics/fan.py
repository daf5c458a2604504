"""Scenarios point by point in order: the form in which nearly all scores are computed.

Sorting forgets which scenario a number came from. So a fan holds all that the marginal scores need
and nothing of the joint ones, which look at `Scenarios` themselves.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.scenarios import Scenarios

M = -3
"""Where the scenarios are among a fan's axes, counted from the right."""

TAIL = 0.1
"""What the interval whose coverage and width are reported leaves out at each end."""

ROUNDING = 2e-5
"""What float32 sums of a thousand weights may be off by, when compared with a probability."""


@dataclass(frozen=True, eq=False)
class Fan:
    """The scenarios of each point in ascending order, with their weights."""

    values: Float[Tensor, "B M H C"]
    weights: Float[Tensor, "B M #H #C"]
    """One number per scenario where all are equal."""

    @classmethod
    def of(cls, scenarios: Scenarios) -> "Fan":
        """The fan of these scenarios."""
        weights = scenarios.shares
        values, order = scenarios.values.sort(1)
        if has_equal_weights(scenarios):
            return cls(values, weights[:, :, :1].unsqueeze(2))
        return cls(values, weights.unsqueeze(2).expand_as(values).gather(1, order))

    @property
    def n_scenarios(self) -> int:
        """Number of scenarios, M."""
        return self.values.shape[M]

    @property
    def is_uniform(self) -> bool:
        """Whether a scenario has the same weight at all points of a window."""
        return self.weights.shape[-2:] == (1, 1)

    @cached_property
    def cumulative(self) -> Float[Tensor, "B M #H #C"]:
        """The weight of all scenarios up to and including each."""
        return self.weights.cumsum(M)

    def expect(self, what: Float[Tensor, "B M H C"]) -> Float[Tensor, "B H C"]:
        """The weighted mean over scenarios of something that each of them has."""
        if self.is_uniform:
            return torch.einsum("BMHC,BM->BHC", what, self.weights[..., 0, 0])
        return (self.weights * what).sum(M)

    @cached_property
    def central_interval(self) -> tuple[Float[Tensor, "B H C"], Float[Tensor, "B H C"]]:
        """The interval that leaves out less than a tenth of the weight at each end.

        From the smallest x with F(x) ≥ 0.1 to its mirror image from above. So turning the axis
        around turns the interval around, and copies or weightless scenarios do not move it.
        """
        tail = TAIL - ROUNDING
        first = (self.cumulative < tail).sum(M, keepdim=True)
        from_here_on = 1 - (self.cumulative - self.weights)
        last = (from_here_on >= tail).sum(M, keepdim=True) - 1
        n_windows, _, horizon, n_channels = self.values.shape
        low, high = (
            self.values.gather(M, index.expand(n_windows, 1, horizon, n_channels)).squeeze(M)
            for index in (first, last)
        )
        return low, high


def has_equal_weights(scenarios: Scenarios) -> bool:
    """Whether every scenario has exactly the same weight everywhere."""
    low, high = torch.aminmax(scenarios.weights)
    return bool(low == high)
