"""The paper's voltage safety scores, point by point. All tensors here hold voltages [p.u.].

They are what the paper defines, and two of them never look at what happened: a forecast of 1.0 p.u.
everywhere has a perfect NECV and CVaR. `proper` has the scores that cannot be played.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.metrics.fan import Fan
from powerphase.records.scores import NORMAL_BAND_PU

LOWEST, HIGHEST = NORMAL_BAND_PU


def signed_excursion(voltage: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """How far a voltage is above (+) or below (-) the band; 0 within."""
    return voltage - voltage.clamp(LOWEST, HIGHEST)


def violates(voltage: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """1 where a voltage is outside the band, 0 elsewhere."""
    return ((voltage < LOWEST) | (voltage > HIGHEST)).to(voltage.dtype)


def violation_probability(fan: Fan) -> Float[Tensor, "B H N"]:
    """The weight of all scenarios outside the band."""
    # Rounded weights may sum to a little more than 1, a probability must not.
    return fan.expect(violates(fan.values)).clamp(0, 1)


def safety_mbrier(
    probability: Float[Tensor, "B H N"], violated: Float[Tensor, "B H N"]
) -> Float[Tensor, "B H N"]:
    """Σ w (Ŷ − Y)² over scenarios, with Ŷ and Y whether scenario and target violate the band.

    Since (Ŷ − Y)² is 0 or 1, this is |p − Y| with p the violation probability: a linear score,
    which rewards rounding p to 0 or 1.
    """
    return (probability - violated).abs()


def expected_excursion(fan: Fan) -> Float[Tensor, "B H N"]:
    """Σ w δ over scenarios, with δ the distance outside the band [p.u.]; its mean is NECV."""
    return fan.expect(signed_excursion(fan.values).abs())


def cvar(fan: Fan) -> Float[Tensor, "B H N"]:
    """The mean of the ⌈M/10⌉ largest distances outside the band [p.u.], whatever their weights."""
    n = -(-fan.n_scenarios // 10)
    # The largest distances are at the two ends of the sorted scenarios.
    ends = fan.values
    if 2 * n < fan.n_scenarios:
        ends = torch.cat([fan.values[:, :n], fan.values[:, -n:]], dim=1)
    return signed_excursion(ends).abs().topk(n, dim=1).values.mean(1)
