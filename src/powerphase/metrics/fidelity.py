"""Fidelity, point by point: how close the forecast distribution is to what happened.

Everything is in the target's units. Averages are taken in `streaming` alone.
"""

from jaxtyping import Float
from torch import Tensor

from powerphase.metrics.fan import Fan, M


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
    """CRPS without the bias of few samples: what infinitely many would score, in expectation.

    For two or more independent samples of equal weight.

    Reference: doi:10.1002/qj.2270
    """
    return crps - (absolute_error - crps) / (n_scenarios - 1)


def bias(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """The weighted mean, less the target; MSE is the mean of its square."""
    # Deviations first: a mean of voltages near 1 would lose digits that the error needs.
    return fan.expect(fan.values - target.unsqueeze(M))
