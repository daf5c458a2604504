"""Scores of single points: CRPS and its parts, from the sorted scenarios of each point.

Sorting discards which scenario a value came from. A `Fan` therefore holds everything that scores of
one channel at one step need, and nothing that joint scores need; those use `Scenarios`. All scores
here have the target's unit. Only `streaming` averages them.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.scenarios import Scenarios

M = -3
"""The axis of the scenarios in a fan, counted from the right."""

TAIL = 0.1
"""The probability that the central interval leaves out at each end."""

ROUNDING = 2e-5
"""The rounding error of a float32 sum of a thousand weights, compared to a probability."""


@dataclass(frozen=True, eq=False)
class Fan:
    """The scenarios of each point in ascending order, with their weights."""

    values: Float[Tensor, "B M H C"]
    weights: Float[Tensor, "B M #H #C"]
    """One number per scenario where all weights are equal."""

    @classmethod
    def of(cls, scenarios: Scenarios) -> "Fan":
        """The fan of these scenarios."""
        weights = scenarios.normalised_weights
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

    def expect(self, quantity: Float[Tensor, "B M H C"]) -> Float[Tensor, "B H C"]:
        """The weighted mean of a quantity over the scenarios."""
        if self.is_uniform:
            return torch.einsum("BMHC,BM->BHC", quantity, self.weights[..., 0, 0])
        return (self.weights * quantity).sum(M)

    @cached_property
    def central_interval(self) -> tuple[Float[Tensor, "B H C"], Float[Tensor, "B H C"]]:
        """The interval that leaves out less than a tenth of the weight at each end.

        It starts at the smallest x with F(x) ≥ 0.1 and ends at the mirror image of that rule.
        Negating all values therefore mirrors the interval, and neither copies nor scenarios of
        weight 0 move it.
        """
        tail = TAIL - ROUNDING
        first = (self.cumulative < tail).sum(M, keepdim=True)
        weight_from_here = 1 - (self.cumulative - self.weights)
        last = (weight_from_here >= tail).sum(M, keepdim=True) - 1
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


def crps(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """Continuous ranked probability score of the weighted scenarios.

    Σ w|x − z| − Σ_i F_i (1 − F_i)(x_(i+1) − x_(i)), written as one sum over sorted scenarios,
    2 Σ w [(x − z)⁺ − (x − z)(F − w/2)], which needs neither pairs nor a second pass.

    Reference: doi:10.1198/016214506000001437
    """
    distance = fan.values - target.unsqueeze(M)
    level = fan.cumulative - fan.weights / 2
    return 2 * fan.expect(distance.relu() - level * distance)


def absolute_error(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """Mean absolute error of the scenarios: the part of CRPS that ignores their spread."""
    return fan.expect((fan.values - target.unsqueeze(M)).abs())


def fair_crps(
    crps: Float[Tensor, "B H C"], absolute_error: Float[Tensor, "B H C"], n_scenarios: int
) -> Float[Tensor, "B H C"]:
    """CRPS without the bias of a small sample: in expectation, that of infinitely many samples.

    For two or more independent samples of equal weight.

    Reference: doi:10.1002/qj.2270
    """
    return crps - (absolute_error - crps) / (n_scenarios - 1)


def bias(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """The weighted mean minus the target; MSE is the mean of its square."""
    # Subtract first: a mean of voltages near 1 would lose digits that the error needs.
    return fan.expect(fan.values - target.unsqueeze(M))
