"""Propriety: no forecast beats the true distribution.

Targets are drawn from a distribution at the lower edge of the voltage band. Forecasts are the
quantiles of that distribution, or of one that is shifted, too narrow or too wide.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from powerphase import metrics
from powerphase.axes import THETA, V
from powerphase.circuit import Circuit, Limits
from powerphase.metrics import Fan, energy_score, projections
from powerphase.records import NORMAL_BAND_PU, SCORES
from powerphase.scenarios import Layout, Scenarios

MEAN_PU, SPREAD_PU = 0.955, 0.01

RIVALS = {
    "biased upwards": (0.5, 1.0),
    "biased downwards": (-0.5, 1.0),
    "too narrow": (0.0, 0.5),
    "too wide": (0.0, 2.0),
}
"""Shift of the mean and factor of the spread, in units of the true spread."""

Pointwise = Callable[[Fan, Tensor], Tensor]


def squared_error(fan: Fan, target: Tensor) -> Tensor:
    return metrics.bias(fan, target).square()


def fair_crps(fan: Fan, target: Tensor) -> Tensor:
    error = metrics.absolute_error(fan, target)
    return metrics.fair_crps(metrics.crps(fan, target), error, fan.n_scenarios)


def brier(fan: Fan, target: Tensor) -> Tensor:
    return metrics.brier(metrics.violation_probability(fan), metrics.violates(target))


def safety_mbrier(fan: Fan, target: Tensor) -> Tensor:
    return metrics.safety_mbrier(metrics.violation_probability(fan), metrics.violates(target))


POINTWISE: dict[str, Pointwise] = {
    "crps": metrics.crps,
    "mse": squared_error,
    "brier": brier,
    "twcrps": metrics.twcrps,
}

PROPER_LINE_SCORES = {name for name in metrics.LINE_SCORES if SCORES[name].proper}

STANDARD_ERRORS = 5
"""The least significant difference."""


def targets(shape: tuple[int, ...]) -> Tensor:
    normal = np.random.default_rng(2016).normal(size=shape)
    return torch.from_numpy(MEAN_PU + SPREAD_PU * normal)


def quantiles(shift: float, factor: float, target: Tensor, n_scenarios: int = 100) -> Fan:
    """The same fan at every point, of a normal distribution."""
    levels = (np.arange(n_scenarios) + 0.5) / n_scenarios
    values = torch.from_numpy(MEAN_PU + SPREAD_PU * (shift + factor * norm.ppf(levels)))
    weights = torch.full((1, n_scenarios, 1, 1), 1 / n_scenarios, dtype=torch.float64)
    return Fan(values[None, :, None, None].expand(1, -1, *target.shape[1:]).contiguous(), weights)


def advantage(honest: Tensor, rival: Tensor) -> float:
    """How much better the honest forecast is, in standard errors of the paired difference."""
    difference = (rival - honest).flatten()
    return (difference.mean() / difference.std() * len(difference) ** 0.5).item()


def test_every_score_that_claims_to_be_proper_is_tested() -> None:
    claimed = {name for name, about in SCORES.items() if about.proper}
    assert claimed == POINTWISE.keys() | {"fair_crps", "energy"} | PROPER_LINE_SCORES


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("name", ["crps", "brier", "twcrps"])
def test_the_true_distribution_beats_other_distributions(name: str, rival: str) -> None:
    target = targets((1, 100, 200))
    honest = POINTWISE[name](quantiles(0, 1, target), target)
    wrong = POINTWISE[name](quantiles(*RIVALS[rival], target), target)
    assert advantage(honest, wrong) > STANDARD_ERRORS


def test_the_true_mean_beats_other_means_and_mse_ignores_the_spread() -> None:
    target = targets((1, 100, 200))
    honest = squared_error(quantiles(0, 1, target), target)
    for rival, (shift, factor) in RIVALS.items():
        wrong = squared_error(quantiles(shift, factor, target), target)
        if shift:
            assert advantage(honest, wrong) > STANDARD_ERRORS, rival
        else:
            torch.testing.assert_close(wrong, honest, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("n_scenarios", [2, 16])
@pytest.mark.parametrize("rival", RIVALS)
def test_samples_of_the_true_distribution_have_the_best_fair_crps(
    rival: str, n_scenarios: int
) -> None:
    """Even two samples, for which plain CRPS prefers a narrow distribution."""
    target = targets((1, 100, 200))
    normal = np.random.default_rng(n_scenarios).normal(size=(1, n_scenarios, 100, 200))
    weights = torch.full((1, n_scenarios, 200), 1 / n_scenarios, dtype=torch.float64)

    def samples(shift: float, factor: float) -> Fan:
        values = torch.from_numpy(MEAN_PU + SPREAD_PU * (shift + factor * normal))
        return Fan.of(Scenarios(values, weights))

    honest, wrong = samples(0, 1), samples(*RIVALS[rival])
    assert advantage(*(fair_crps(fan, target) for fan in (honest, wrong))) > (STANDARD_ERRORS)
    if (rival, n_scenarios) == ("too narrow", 2):
        plain = advantage(*(metrics.crps(fan, target) for fan in (honest, wrong)))
        assert plain < -STANDARD_ERRORS


N_CHANNELS, N_STEPS = 8, 1500


def joint(
    random: np.random.Generator, n: int, shift: float, factor: float, correlation: float
) -> Tensor:
    """Draws of all channels in n scenarios; any two channels have the same correlation."""
    independent = random.normal(size=(n, N_STEPS, N_CHANNELS))
    common = random.normal(size=(n, N_STEPS, 1))
    normal = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * independent
    return torch.from_numpy(MEAN_PU + SPREAD_PU * (shift + factor * normal))


JOINT_RIVALS = {name: (*rival, 0.8) for name, rival in RIVALS.items()} | {
    "right margins, no correlation": (0.0, 1.0, 0.0),
    "right margins, too much correlation": (0.0, 1.0, 1.0),
}


@cache
def joint_scores(shift: float, factor: float, correlation: float, n: int = 24) -> Tensor:
    truth = joint(np.random.default_rng(1), 1, 0, 1, 0.8)
    scenarios = joint(np.random.default_rng(2), n, shift, factor, correlation)
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    return energy_score((scenarios - truth) @ projections(N_CHANNELS), weights)


@pytest.mark.parametrize("rival", JOINT_RIVALS)
def test_the_true_joint_distribution_has_the_best_energy_score(rival: str) -> None:
    honest, wrong = joint_scores(0, 1, 0.8), joint_scores(*JOINT_RIVALS[rival])
    assert advantage(honest, wrong) > STANDARD_ERRORS


LINE_STEPS = 1500
LINE_CIRCUIT = Circuit.chain(4)
LINE_LAYOUT = Layout(
    "chain", np.arange(4), np.full(4, 3), np.full(4, 110.0), LINE_CIRCUIT,
    Limits.equal(LINE_CIRCUIT, NORMAL_BAND_PU, 12.0), 1.0, 1.0,
)  # fmt: skip
LINE_RIVALS = {
    "too narrow": {"factor": 0.5},
    "too wide": {"factor": 2.0},
    "right margins, no correlation": {"correlation": 0.0},
}
"""A line's flow depends on differences: only the first two rivals have wrong margins."""


def line_states(random: np.random.Generator, n: int, factor: float, correlation: float) -> Tensor:
    """Draws (n, H, C) of four buses: all angles share one swing, all voltages another."""
    common, alone = (random.normal(size=(2, n, LINE_STEPS, width)) for width in (1, 4))
    normal = factor * (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * alone)
    values = np.zeros((n, LINE_STEPS, 16))
    values[..., THETA::4] = 0.02 * normal[0]
    values[..., V::4] = 0.965 + 0.01 * normal[1]
    return torch.from_numpy(values)


@cache
def line_scores(factor: float = 1.0, correlation: float = 0.9, n: int = 60) -> dict[str, Tensor]:
    """All scores of each step; those of lines as means over lines."""
    truth = line_states(np.random.default_rng(1), 1, 1.0, 0.9)[0]
    scenarios = line_states(np.random.default_rng(2), n, factor, correlation)
    weights = torch.full((n,), 1 / n, dtype=torch.float64)
    sums = metrics.Lines(LINE_LAYOUT).sums(scenarios, weights, truth)
    lines = {name: points.mean(-1) for name, points in metrics.branch_points(sums).items()}
    return {**lines, **metrics.state_points(sums, weights)}


@pytest.mark.parametrize("rival", LINE_RIVALS)
@pytest.mark.parametrize("name", sorted(PROPER_LINE_SCORES))
def test_the_true_distribution_has_the_best_scores_of_lines(name: str, rival: str) -> None:
    honest, wrong = line_scores()[name], line_scores(**LINE_RIVALS[rival])[name]
    assert advantage(honest, wrong) > STANDARD_ERRORS


def test_scores_of_lines_see_what_scores_of_channels_cannot() -> None:
    """Independent channels have the right margins, and the power balance is no score."""
    assert advantage(*(x["balance_rms_mva"] for x in (line_scores(), line_scores(0.5)))) < 0


def forecast_of(probability: float) -> Fan:
    """Two scenarios of one voltage: outside the band with this weight, otherwise inside."""
    values = torch.tensor([0.90, 1.00], dtype=torch.float64).reshape(1, 2, 1, 1)
    weights = torch.tensor([probability, 1 - probability], dtype=torch.float64)
    return Fan.of(Scenarios(values, weights.reshape(1, 2, 1)))


def expected_score(score: Pointwise, probability: float, true: float) -> float:
    """The mean score of forecasting one probability where another is true."""
    fan = forecast_of(probability)
    outside, inside = (torch.full((1, 1, 1), v, dtype=torch.float64) for v in (0.90, 1.00))
    return (true * score(fan, outside) + (1 - true) * score(fan, inside)).item()


@pytest.mark.parametrize("true", [0.1, 0.3, 0.45, 0.6, 0.9])
def test_safety_mbrier_rewards_rounding_and_brier_does_not(true: float) -> None:
    """The true probability scores 2p(1 - p) in expectation, the rounded one only min(p, 1 - p)."""
    honest = expected_score(safety_mbrier, true, true)
    rounded = expected_score(safety_mbrier, round(true), true)
    assert honest == pytest.approx(2 * true * (1 - true))
    assert rounded == pytest.approx(min(true, 1 - true))
    assert rounded < honest
    for probability in (0, 0.2, 0.5, 0.8, 1):
        assert expected_score(brier, true, true) < expected_score(brier, probability, true)


def test_safety_mbrier_rewards_rounding_in_a_simulation_too() -> None:
    """Three in ten voltages are outside the band; forecasting 0 beats forecasting 0.3."""
    outside = np.random.default_rng(5).random((1, 100, 100)) < 0.3
    target = torch.from_numpy(np.where(outside, 0.90, 1.00))

    def scores(score: Pointwise, probability: float) -> Tensor:
        fan = forecast_of(probability)
        return score(Fan(fan.values.expand(1, 2, 100, 100), fan.weights), target)

    honest, rounded = (scores(safety_mbrier, p) for p in (0.3, 0.0))
    assert advantage(honest, rounded) < -STANDARD_ERRORS
    honest, rounded = (scores(brier, p) for p in (0.3, 0.0))
    assert advantage(honest, rounded) > STANDARD_ERRORS
