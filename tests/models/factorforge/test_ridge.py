"""Ridge regression against the normal equations and NumPy's least squares."""

import numpy as np
import pytest
import torch

from powerphase.models.factorforge import factor_forecaster, linear, ridge

STRENGTHS = np.array([1e-6, 0.1, 1.0, 30.0])


def problem(*shape: int, n_inputs: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated inputs of very different scale and mean, and two targets that depend on them."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(n_inputs, n_inputs))
    x = rng.normal(size=(*shape, n_inputs)) @ mix * 10.0 ** np.arange(n_inputs) + 7
    y = np.tanh(x / 100) @ rng.normal(size=(n_inputs, 2)) + rng.normal(size=(*shape, 2)) - 3
    return x, y


def normal_equations(
    x: np.ndarray, y: np.ndarray, strength: float, penalty: np.ndarray
) -> np.ndarray:
    """The minimum of mean (y - a - Zb)² + strength · Σ penalty b², by its gradient's zero."""
    z = (x - x.mean(0)) / x.std(0)
    inputs = np.column_stack([np.ones(len(z)), z])
    ridge_term = np.diag([0.0, *(strength * penalty)])
    weights = np.linalg.solve(inputs.T @ inputs / len(z) + ridge_term, inputs.T @ y / len(z))
    coefficients = weights[1:] / x.std(0)[:, None]
    return np.concatenate([weights[:1] - x.mean(0) @ coefficients, coefficients])


@pytest.mark.parametrize("penalty", [None, np.array([1.0, 0.1, 4.0, 1.0, 0.02])])
def test_the_weights_solve_the_normal_equations(penalty: np.ndarray | None) -> None:
    x, y = problem(60)
    weights = ridge(x, y, STRENGTHS, penalty)
    assert weights.shape == (len(STRENGTHS), 1 + x.shape[1], y.shape[1])
    for strength, row in zip(STRENGTHS, weights, strict=True):
        expected = normal_equations(x, y, strength, np.ones(5) if penalty is None else penalty)
        np.testing.assert_allclose(row, expected, rtol=1e-7, atol=1e-12)


def test_strength_zero_is_least_squares() -> None:
    x, y = problem(60)
    inputs = np.column_stack([np.ones(len(x)), x])
    expected = np.linalg.lstsq(inputs, y, rcond=None)[0]
    (weights,) = ridge(x, y, np.zeros(1))
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(linear(weights, x), inputs @ expected, rtol=1e-8)


def test_a_huge_strength_leaves_the_mean() -> None:
    x, y = problem(60)
    (weights,) = ridge(x, y, np.array([1e12]))
    np.testing.assert_allclose(linear(weights, x), np.tile(y.mean(0), (60, 1)), rtol=1e-6)


def test_the_strength_does_not_depend_on_the_number_of_samples_or_on_units() -> None:
    x, y = problem(60)
    once = ridge(x, y, STRENGTHS)
    twice = ridge(np.concatenate([x, x]), np.concatenate([y, y]), STRENGTHS)
    np.testing.assert_allclose(twice, once, rtol=1e-7, atol=1e-12)
    unit = np.array([1e-3, 1.0, 20.0, 1.0, 1e4])
    scaled = ridge(x * unit, y, STRENGTHS)
    np.testing.assert_allclose(scaled[:, 1:] * unit[:, None], once[:, 1:], rtol=1e-7, atol=1e-12)


def test_a_batch_gives_the_same_weights_as_single_regressions() -> None:
    x, y = problem(3, 4, 30)
    weights = ridge(x, y, STRENGTHS)
    values = linear(weights, x)
    for index in np.ndindex(3, 4):
        alone = ridge(x[index], y[index], STRENGTHS)
        np.testing.assert_allclose(weights[:, *index], alone, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(values[:, *index], linear(alone, x[index]), rtol=1e-8)


@pytest.mark.parametrize("level", [0.0, 1.0, -3e4])
def test_a_constant_input_has_no_weight(level: float) -> None:
    x, y = problem(60)
    without = ridge(np.delete(x, 2, axis=1), y, STRENGTHS)
    x[:, 2] = level
    weights = ridge(x, y, STRENGTHS)
    assert (weights[:, 3] == 0).all()
    np.testing.assert_allclose(np.delete(weights, 3, axis=1), without, rtol=1e-7, atol=1e-12)
    later = x.copy()
    later[:, 2] = level + np.linspace(-1e6, 1e6, 60)
    np.testing.assert_array_equal(linear(weights, later), linear(weights, x))


class FailureError(Exception):
    pass


def test_the_number_of_threads_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(60)
    before = torch.get_num_threads()

    def fail(*_: object) -> None:
        assert torch.get_num_threads() == 1
        raise FailureError

    torch.set_num_threads(3)
    try:
        ridge(x, y, STRENGTHS)
        assert torch.get_num_threads() == 3
        monkeypatch.setattr(factor_forecaster, "_ridge", fail)
        with pytest.raises(FailureError):
            ridge(x, y, STRENGTHS)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
