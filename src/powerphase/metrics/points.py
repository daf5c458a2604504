"""Every score of every point of a block: the same definitions on a CPU and on a GPU.

A point's scenarios are first summed up, by `kernels` on a CPU and by torch elsewhere; its scores
follow from these few sums.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.metrics import fidelity, kernels, proper, safety
from powerphase.metrics.fan import Fan
from powerphase.scenarios import Scenarios

Points = dict[str, Float[Tensor, "1 H C"]]


def channel_points(scenarios: Scenarios, target: Float[Tensor, "1 H C"]) -> Points:
    """The scores that every channel has."""
    crps, error, bias, low, high = channel_sums(scenarios, target).unsqueeze(1)
    n_scenarios = scenarios.values.shape[1]
    return {
        "crps": crps,
        "mse": bias.square(),
        "fair_crps": fidelity.fair_crps(crps, error, n_scenarios),
        "coverage_80": ((low <= target) & (target <= high)).to(crps.dtype),
        "width_80": high - low,
    }


def voltage_points(scenarios: Scenarios, target: Float[Tensor, "1 H N"]) -> Points:
    """The scores that voltages have, and what they are about."""
    probability, expected, twcrps, cvar = voltage_sums(scenarios, target).unsqueeze(1)
    violated, happened = safety.violates(target), safety.signed_excursion(target).abs()
    return {
        "safety_mbrier": safety.safety_mbrier(probability, violated),
        "necv": expected,
        "cvar_0.1": cvar,
        "brier": proper.brier(probability, violated),
        "twcrps": twcrps,
        "excursion_error": (expected - happened).abs(),
        "excursion_bias": expected - happened,
        # Not scores, but what the scores are about: what was forecast and what happened.
        "violation_probability": probability,
        "violation": violated,
        "excursion": happened,
    }


def channel_sums(scenarios: Scenarios, target: Float[Tensor, "1 H C"]) -> Float[Tensor, "5 H C"]:
    """CRPS, Σ w|x − z|, Σ w(x − z), and the two ends of the central interval."""
    if target.device.type == "cpu":
        return kernels.channel_sums(scenarios.values, scenarios.shares, target)
    fan = Fan.of(scenarios)
    sums = (fidelity.crps, fidelity.absolute_error, fidelity.bias)
    return torch.cat([*(made(fan, target) for made in sums), *fan.central_interval])


def voltage_sums(scenarios: Scenarios, target: Float[Tensor, "1 H N"]) -> Float[Tensor, "4 H N"]:
    """Violation probability, expected excursion, threshold-weighted CRPS and CVaR."""
    if target.device.type == "cpu":
        return kernels.voltage_sums(scenarios.values, scenarios.shares, target)
    fan = Fan.of(scenarios)
    expected = safety.violation_probability(fan), safety.expected_excursion(fan)
    return torch.cat([*expected, proper.twcrps(fan, target), safety.cvar(fan)])
