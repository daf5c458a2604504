"""Scores that no forecast can improve by saying something else than it believes.

In expectation, nothing beats the true distribution on them.
"""

from math import sqrt

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from powerphase.metrics.fan import Fan
from powerphase.metrics.fidelity import crps
from powerphase.metrics.kernels import spreads
from powerphase.metrics.safety import signed_excursion
from powerphase.seeds import stream

N_PROJECTIONS = 64
PAIRS_AT_ONCE = 4_000_000
"""Distances between scenarios held at a time, so that 625 scenarios need no more memory."""


def brier(
    probability: Float[Tensor, "B H N"], violated: Float[Tensor, "B H N"]
) -> Float[Tensor, "B H N"]:
    """Squared error of the probability that a voltage leaves the band.

    Reference: doi:10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2
    """
    return (probability - violated).square()


def twcrps(fan: Fan, target: Float[Tensor, "B H N"]) -> Float[Tensor, "B H N"]:
    """CRPS of the part of a voltage outside the band [p.u.], blind to everything within.

    The chaining function v(x) = min(x, 0.95) + max(x, 1.05) differs from the signed excursion by a
    constant, and does not change the order of the scenarios.

    Reference: doi:10.1137/22M1532184
    """
    chained = Fan(signed_excursion(fan.values), fan.weights)
    return crps(chained, signed_excursion(target))


def projections(n_channels: int) -> Float64[Tensor, "C R"]:
    """The fixed random directions onto which states are projected, the same for everyone.

    Scaled so that the length of a projected state estimates the root mean square of its channels.
    """
    normal = stream(0, "projections").standard_normal((n_channels, N_PROJECTIONS))
    return torch.from_numpy(normal) / sqrt(N_PROJECTIONS * n_channels)


def energy_score(
    errors: Float64[Tensor, "M H R"], weights: Float64[Tensor, " M"]
) -> Float64[Tensor, " H"]:
    """Energy score of each step: Σ w ‖x‖ − ½ Σ Σ w w' ‖x − x'‖, of scenarios less the target.

    With R projections in place of all channels: lengths are estimates, but the score of what is
    projected is exact and proper.

    Reference: doi:10.1198/016214506000001437
    """
    error = torch.einsum("MH,M->H", errors.norm(dim=-1), weights)
    return error - (spreads if errors.device.type == "cpu" else plain_spreads)(errors, weights)


def plain_spreads(
    errors: Float64[Tensor, "M H R"], weights: Float64[Tensor, " M"]
) -> Float64[Tensor, " H"]:
    """The second sum, with plain torch."""
    n_scenarios, horizon, _ = errors.shape
    spread = errors.new_empty(horizon)
    at_once = max(1, PAIRS_AT_ONCE // n_scenarios**2)
    for first in range(0, horizon, at_once):
        part = errors[:, first : first + at_once].movedim(0, 1)
        # The short cut by way of products would not see that a scenario and its copy are equal.
        pairs = torch.cdist(part, part, compute_mode="donot_use_mm_for_euclid_dist")
        spread[first : first + at_once] = torch.einsum("HMm,M,m->H", pairs, weights, weights) / 2
    return spread
