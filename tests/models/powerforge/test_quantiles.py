"""The quantile levels against SciPy's Beta distribution."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta as beta_distribution

from powerphase.models.powerforge import PowerForgeConfig, QuantileLaw
from tests.models.powerforge.straightforward import beta_cdf

SHAPES = [(1, 1), (1.1, 0.9), (0.6, 1.7), (0.5, 0.5), (0.3, 0.4), (2, 5), (7.5, 6), (40, 25)]


def law_of(alpha: float, beta: float, n: int = 16) -> QuantileLaw:
    law = QuantileLaw(PowerForgeConfig(scenarios=n)).double()
    shape = torch.tensor([alpha, beta], dtype=torch.float64)
    law.raw.data = shape + torch.log(-torch.expm1(-shape))  # the inverse of softplus
    return law


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
@pytest.mark.parametrize("n", [2, 5, 16])
def test_levels_are_the_distribution_function_at_an_even_grid(
    n: int, alpha: float, beta: float
) -> None:
    levels = law_of(alpha, beta, n).levels().detach()
    expected = beta_distribution.cdf(np.linspace(0.05, 0.95, n), alpha, beta)
    np.testing.assert_allclose(levels, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_the_oracles_levels_are_the_same(alpha: float, beta: float) -> None:
    grid = np.linspace(0.05, 0.95, 7)
    levels = beta_cdf(torch.from_numpy(grid), *torch.tensor([alpha, beta], dtype=torch.float64))
    np.testing.assert_allclose(levels, beta_distribution.cdf(grid, alpha, beta), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("alpha", "beta"), SHAPES)
def test_gradients_of_the_levels_are_differences_of_the_distribution_function(
    alpha: float, beta: float
) -> None:
    law, grid, step = law_of(alpha, beta, 5), np.linspace(0.05, 0.95, 5), 1e-5
    levels = torch.autograd.functional.jacobian(lambda raw: levels_at(law, raw), law.raw.detach())
    shape = np.array([alpha, beta])
    for k, derivative in enumerate(
        -np.expm1(-shape)
    ):  # the derivative of softplus at the raw shape
        move = step * shape * np.eye(2)[k]
        upper, lower = (beta_distribution.cdf(grid, *(shape + s * move)) for s in (1, -1))
        expected = derivative * (upper - lower) / (2 * step * shape[k])
        np.testing.assert_allclose(levels[:, k], expected, rtol=0, atol=1e-8)


def levels_at(law: QuantileLaw, raw: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(Levels(law), {"law.raw": raw}, ())


class Levels(torch.nn.Module):
    """A law as a callable module."""

    def __init__(self, law: QuantileLaw) -> None:
        super().__init__()
        self.law = law

    def forward(self) -> torch.Tensor:
        return self.law.levels()


def test_training_starts_with_the_even_grid_and_no_penalty() -> None:
    law = QuantileLaw(PowerForgeConfig())
    np.testing.assert_allclose(law.levels().detach(), np.linspace(0.05, 0.95, 16), rtol=1e-6)
    np.testing.assert_allclose(law.shape.detach(), [1, 1], rtol=1e-6)
    assert law.prior().item() == pytest.approx(0, abs=1e-12)
    border = [0.08] + [0.06] * 14 + [0.08]
    np.testing.assert_allclose(law.weights().detach(), border, rtol=1e-5)


def test_weights_follow_the_midpoints_of_the_levels() -> None:
    law = law_of(2, 3, 4)
    tau = law.levels().detach().numpy()
    border = [0, (tau[0] + tau[1]) / 2, (tau[1] + tau[2]) / 2, (tau[2] + tau[3]) / 2, 1]
    np.testing.assert_allclose(law.weights().detach(), np.diff(border), rtol=1e-13)


def test_the_prior_penalises_mean_and_concentration() -> None:
    config = replace(PowerForgeConfig(), law_mean_weight=2.0, law_concentration_weight=3.0)
    law = QuantileLaw(config).double()
    law.raw.data = law_of(3, 5).raw.data
    assert law.prior().item() == pytest.approx(2 * (3 / 8 - 1 / 2) ** 2 + 3 * log(8 / 2) ** 2)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.2, 12), st.floats(0.2, 12), st.integers(2, 32))
def test_levels_increase_and_weights_sum_to_one(alpha: float, beta: float, n: int) -> None:
    law = law_of(alpha, beta, n)
    levels, weights = law.levels(), law.weights()
    assert (levels.diff() > 0).all()
    assert levels[0] > 0
    assert levels[-1] <= 1  # a level may be closer to 1 than any double
    assert (weights > 0).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-12)
    mirrored = law_of(beta, alpha, n)
    torch.testing.assert_close(mirrored.levels(), 1 - levels.flip(0), rtol=0, atol=1e-9)
