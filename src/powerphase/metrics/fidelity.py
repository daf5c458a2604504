"""Fidelity, point by point: how close the forecast distribution is to what happened.

Everything is in the target's units. Averages are taken in `streaming` alone.
"""

from jaxtyping import Float
from torch import Tensor

from powerphase.metrics.fan import Fan, M
from powerphase.scenarios import Scenarios


def crps(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """Continuous ranked probability score of the weighted scenarios.

    Σ w|x − z| − Σ_i F_i (1 − F_i)(x_(i+1) − x_(i)), written as one sum over sorted scenarios,
    2 Σ w [(x − z)⁺ − (x − z)(F − w/2)], which needs neither pairs nor a second pass.

    Reference: doi:10.1198/016214506000001437
    """
    distance = fan.values - target.unsqueeze(M)
    level = fan.cumulative - fan.weights / 2
    return 2 * fan.expect(distance.relu() - level * distance)


def fair_crps(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """CRPS without the bias of few samples: what infinitely many would score, in expectation.

    For two or more independent samples of equal weight.

    Reference: doi:10.1002/qj.2270
    """
    error = fan.expect((fan.values - target.unsqueeze(M)).abs())
    biased = crps(fan, target)
    return biased - (error - biased) / (fan.n_scenarios - 1)


def squared_error(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """Squared error of the weighted mean."""
    # Deviations first: a mean of voltages near 1 would lose digits that the error needs.
    return fan.expect(fan.values - target.unsqueeze(M)).square()


def distortion(scenarios: Scenarios, target: Float[Tensor, "B H C"]) -> Float[Tensor, " B"]:
    """RMSE of the best scenario of each window, one scenario for the whole grid.

    It ignores the weights: a scenario of weight zero can be the best one.
    """
    error = (scenarios.values - target.unsqueeze(M)).double()
    return error.square().mean(dim=(2, 3)).amin(1).sqrt()


def coverage(fan: Fan, target: Float[Tensor, "B H C"]) -> Float[Tensor, "B H C"]:
    """1 where the target lies in the central interval, 0 elsewhere."""
    low, high = fan.central_interval
    return ((low <= target) & (target <= high)).to(target.dtype)


def width(fan: Fan) -> Float[Tensor, "B H C"]:
    """The width of the central interval."""
    low, high = fan.central_interval
    return high - low
