"""Scores of single points, from the sorted scenarios of each point, and of voltages at a band.

Sorting discards which scenario a value came from. A `Fan` therefore holds everything that scores of
one channel at one step need, and nothing that joint scores need; those use `Scenarios`. All scores
here have the target's unit. Only `streaming` averages them.

The scores at a band take voltages [p.u.]. Safety_mBrier, NECV and CVaR are the paper's. Two of them
never look at what happened: a forecast of 1.0 p.u. everywhere has a perfect NECV and CVaR. The
Brier score and the threshold-weighted CRPS are proper: in expectation, no forecast beats the true
distribution.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.circuit import Limits
from powerphase.records.scores import NORMAL_BAND_PU
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


Band = tuple[float, float] | tuple[Float[Tensor, " N"], Float[Tensor, " N"]]
"""The lower and the upper limit, of all voltages or of each bus."""


def bus_band(
    limits: Limits,
    voltage: Float[Tensor, "*S N"],
    buses: slice | Int[np.ndarray, " N"] = slice(None),
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The limits of the voltage's N buses, in its precision and on its device."""
    low, high = (torch.from_numpy(limit[buses]) for limit in (limits.v_min_pu, limits.v_max_pu))
    return low.to(voltage), high.to(voltage)


def signed_excursion(
    voltage: Float[Tensor, "*S"], band: Band = NORMAL_BAND_PU
) -> Float[Tensor, "*S"]:
    """How far a voltage is above (+) or below (-) the band; 0 inside it."""
    return voltage - voltage.clamp(*band)


def violates(voltage: Float[Tensor, "*S"], band: Band = NORMAL_BAND_PU) -> Float[Tensor, "*S"]:
    """1 where a voltage is outside the band, 0 elsewhere."""
    low, high = band
    return ((voltage < low) | (voltage > high)).to(voltage.dtype)


def violation_probability(fan: Fan, band: Band = NORMAL_BAND_PU) -> Float[Tensor, "B H N"]:
    """The total weight of the scenarios outside the band."""
    # Rounded weights may sum to slightly more than 1; a probability must not.
    return fan.expect(violates(fan.values, band)).clamp(0, 1)


def safety_mbrier(
    probability: Float[Tensor, "B H N"], violated: Float[Tensor, "B H N"]
) -> Float[Tensor, "B H N"]:
    """Σ w (Ŷ − Y)² over scenarios, where Ŷ and Y say whether scenario and target violate the band.

    Since (Ŷ − Y)² is 0 or 1, this equals |p − Y| with p the violation probability: a linear score,
    which rewards rounding p to 0 or 1.
    """
    return (probability - violated).abs()


def brier(probability: Float[Tensor, "*S"], violated: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Squared error of the probability of a violation.

    Reference: doi:10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2
    """
    return (probability - violated).square()


def twcrps(
    fan: Fan, target: Float[Tensor, "B H N"], band: Band = NORMAL_BAND_PU
) -> Float[Tensor, "B H N"]:
    """CRPS of the part of a voltage outside the band [p.u.]; values inside the band do not count.

    The chaining function v(x) = min(x, low) + max(x, high) differs from the signed excursion by a
    constant, and does not change the order of the scenarios.

    Reference: doi:10.1137/22M1532184
    """
    chained = Fan(signed_excursion(fan.values, band), fan.weights)
    return crps(chained, signed_excursion(target, band))


def expected_excursion(fan: Fan, band: Band = NORMAL_BAND_PU) -> Float[Tensor, "B H N"]:
    """Σ w δ over scenarios, with δ the distance outside the band [p.u.]; its mean is NECV."""
    return fan.expect(signed_excursion(fan.values, band).abs())


def cvar(fan: Fan, band: Band = NORMAL_BAND_PU) -> Float[Tensor, "B H N"]:
    """The mean of the ⌈M/10⌉ largest distances outside the band [p.u.], ignoring weights."""
    n = -(-fan.n_scenarios // 10)
    # The largest distances are at the two ends of the sorted scenarios.
    ends = fan.values
    if 2 * n < fan.n_scenarios:
        ends = torch.cat([fan.values[:, :n], fan.values[:, -n:]], dim=1)
    return signed_excursion(ends, band).abs().topk(n, dim=1).values.mean(1)
