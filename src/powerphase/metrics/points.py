"""Every score of every point of a block, with the same definitions on a CPU and on a GPU.

The scenarios of a point are first reduced to a few sums, by `kernels` on a CPU and by torch on a
GPU; the scores follow from these sums.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.metrics import kernels, marginal, safety
from powerphase.metrics.marginal import Fan
from powerphase.metrics.safety import Band
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.scenarios import Scenarios

Points = dict[str, Float[Tensor, "1 H C"]]


def channel_points(scenarios: Scenarios, target: Float[Tensor, "1 H C"]) -> Points:
    """The scores that every channel has."""
    crps, error, bias, low, high = channel_sums(scenarios, target).unsqueeze(1)
    n_scenarios = scenarios.values.shape[1]
    return {
        "crps": crps,
        "mse": bias.square(),
        "fair_crps": marginal.fair_crps(crps, error, n_scenarios),
        "coverage_80": ((low <= target) & (target <= high)).to(crps.dtype),
        "width_80": high - low,
        # No score.
        "mean": target + bias,
    }


def voltage_points(
    scenarios: Scenarios, target: Float[Tensor, "1 H N"], band: Band = NORMAL_BAND_PU
) -> Points:
    """The scores of voltages, and the probabilities, violations and excursions behind them."""
    probability, expected, twcrps, cvar = voltage_sums(scenarios, target, band).unsqueeze(1)
    violated, signed = safety.violates(target, band), safety.signed_excursion(target, band)
    excursion = signed.abs()
    return {
        "safety_mbrier": safety.safety_mbrier(probability, violated),
        "necv": expected,
        "cvar_0.1": cvar,
        "brier": safety.brier(probability, violated),
        "twcrps": twcrps,
        "excursion_error": (expected - excursion).abs(),
        "excursion_bias": expected - excursion,
        # Not scores: what was forecast and what happened.
        "violation_probability": probability,
        "violation": violated,
        "excursion": excursion,
    }


def channel_sums(scenarios: Scenarios, target: Float[Tensor, "1 H C"]) -> Float[Tensor, "5 H C"]:
    """CRPS, Σ w|x − z|, Σ w(x − z), and the two ends of the central interval."""
    if target.device.type == "cpu":
        return kernels.channel_sums(scenarios.values, scenarios.normalised_weights, target)
    fan = Fan.of(scenarios)
    scores = (marginal.crps, marginal.absolute_error, marginal.bias)
    return torch.cat([*(score(fan, target) for score in scores), *fan.central_interval])


def voltage_sums(
    scenarios: Scenarios, target: Float[Tensor, "1 H N"], band: Band = NORMAL_BAND_PU
) -> Float[Tensor, "4 H N"]:
    """Violation probability, expected excursion, threshold-weighted CRPS and CVaR."""
    if target.device.type == "cpu":
        return kernels.voltage_sums(scenarios.values, scenarios.normalised_weights, target, band)
    fan = Fan.of(scenarios)
    expected = safety.violation_probability(fan, band), safety.expected_excursion(fan, band)
    return torch.cat([*expected, safety.twcrps(fan, target, band), safety.cvar(fan, band)])
