"""Ridge regression against the normal equations and NumPy's least squares."""

import numpy as np
import pytest
import torch

from powerphase.models.factorforge import ridge as ridge_module
from powerphase.models.factorforge.ridge import applied, ridge

STRENGTHS = np.array([1e-6, 0.1, 1.0, 30.0])


def problem(*shape: int, n_inputs: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated inputs of very different size and middle, and two outputs that need them."""
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
    kept = np.diag([0.0, *(strength * penalty)])
    found = np.linalg.solve(inputs.T @ inputs / len(z) + kept, inputs.T @ y / len(z))
    slopes = found[1:] / x.std(0)[:, None]
    return np.concatenate([found[:1] - x.mean(0) @ slopes, slopes])


@pytest.mark.parametrize("penalty", [None, np.array([1.0, 0.1, 4.0, 1.0, 0.02])])
def test_the_weights_solve_the_normal_equations(penalty: np.ndarray | None) -> None:
    x, y = problem(60)
    found = ridge(x, y, STRENGTHS, penalty)
    assert found.shape == (len(STRENGTHS), 1 + x.shape[1], y.shape[1])
    for strength, weights in zip(STRENGTHS, found, strict=True):
        wanted = normal_equations(x, y, strength, np.ones(5) if penalty is None else penalty)
        np.testing.assert_allclose(weights, wanted, rtol=1e-7, atol=1e-12)


def test_without_strength_it_is_least_squares() -> None:
    x, y = problem(60)
    inputs = np.column_stack([np.ones(len(x)), x])
    wanted = np.linalg.lstsq(inputs, y, rcond=None)[0]
    (found,) = ridge(x, y, np.zeros(1))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(applied(found, x), inputs @ wanted, rtol=1e-8)


def test_all_strength_leaves_the_mean() -> None:
    x, y = problem(60)
    (found,) = ridge(x, y, np.array([1e12]))
    np.testing.assert_allclose(applied(found, x), np.tile(y.mean(0), (60, 1)), rtol=1e-6)


def test_the_strength_is_per_sample_and_for_inputs_of_any_unit() -> None:
    x, y = problem(60)
    once = ridge(x, y, STRENGTHS)
    twice = ridge(np.concatenate([x, x]), np.concatenate([y, y]), STRENGTHS)
    np.testing.assert_allclose(twice, once, rtol=1e-7, atol=1e-12)
    unit = np.array([1e-3, 1.0, 20.0, 1.0, 1e4])
    other = ridge(x * unit, y, STRENGTHS)
    np.testing.assert_allclose(other[:, 1:] * unit[:, None], once[:, 1:], rtol=1e-7, atol=1e-12)


def test_many_at_once_are_each_what_they_are_alone() -> None:
    x, y = problem(3, 4, 30)
    found = ridge(x, y, STRENGTHS)
    values = applied(found, x)
    for one in np.ndindex(3, 4):
        alone = ridge(x[one], y[one], STRENGTHS)
        np.testing.assert_allclose(found[:, *one], alone, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(values[:, *one], applied(alone, x[one]), rtol=1e-8)


@pytest.mark.parametrize("level", [0.0, 1.0, -3e4])
def test_an_input_that_never_moved_has_no_weight_and_no_say(level: float) -> None:
    x, y = problem(60)
    without = ridge(np.delete(x, 2, axis=1), y, STRENGTHS)
    x[:, 2] = level
    found = ridge(x, y, STRENGTHS)
    assert (found[:, 3] == 0).all()
    np.testing.assert_allclose(np.delete(found, 3, axis=1), without, rtol=1e-7, atol=1e-12)
    later = x.copy()
    later[:, 2] = level + np.linspace(-1e6, 1e6, 60)
    np.testing.assert_array_equal(applied(found, later), applied(found, x))


class Broken(Exception):
    pass


def test_the_number_of_threads_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(60)
    before = torch.get_num_threads()

    def broken(*_: object) -> None:
        assert torch.get_num_threads() == 1
        raise Broken

    torch.set_num_threads(3)
    try:
        ridge(x, y, STRENGTHS)
        assert torch.get_num_threads() == 3
        monkeypatch.setattr(ridge_module, "_ridge", broken)
        with pytest.raises(Broken):
            ridge(x, y, STRENGTHS)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
