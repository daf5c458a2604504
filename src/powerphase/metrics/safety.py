"""Scores of voltages at the normal band, point by point. All tensors here hold voltages [p.u.].

Safety_mBrier, NECV and CVaR are the paper's. Two of them never look at what happened: a forecast of
1.0 p.u. everywhere has a perfect NECV and CVaR. The Brier score and the threshold-weighted CRPS are
proper: in expectation, no forecast beats the true distribution.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.circuit import Limits
from powerphase.metrics.marginal import Fan, crps
from powerphase.records.scores import NORMAL_BAND_PU

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
