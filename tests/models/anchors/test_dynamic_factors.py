"""The Kalman filter against statsmodels, and the state space against a planted one."""

import numpy as np
import pytest
from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

from powerphase.models import DynamicFactors, DynamicFactorsConfig
from powerphase.models.anchors import StateSpace, fit_state_space
from tests.models.anchors import training, windows

RNG = np.random.default_rng(5)


def planted(n_series: int = 30, rank: int = 2) -> StateSpace:
    """A slow and a fast state, observed by many series with noise."""
    rotation = np.array([[0.8, -0.6], [0.6, 0.8]])
    transition = rotation @ np.diag([0.9, 0.4]) @ rotation.T
    noise = np.array([[0.3, 0.1], [0.1, 0.5]])
    loading = np.linalg.qr(RNG.normal(size=(n_series, rank)))[0]
    return StateSpace(transition, noise, loading, np.full(n_series, 0.01), 2 * np.eye(rank))


def simulate(space: StateSpace, n_days: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    shocks = rng.multivariate_normal(np.zeros(2), space.state_noise, size=n_days)
    states = np.zeros((n_days, 2))
    for day in range(1, n_days):
        states[day] = space.transition @ states[day - 1] + shocks[day]
    return states @ space.loading.T + rng.normal(size=(n_days, len(space.noise))) * np.sqrt(
        space.noise
    )


def test_the_filter_is_that_of_statsmodels() -> None:
    space = planted(n_series=5)
    observed = RNG.normal(size=(6, 5))
    oracle = KalmanFilter(k_endog=5, k_states=2)
    oracle.bind(observed)
    oracle["design"], oracle["transition"] = space.loading, space.transition
    oracle["obs_cov"], oracle["state_cov"] = np.diag(space.noise), space.state_noise
    oracle["selection"] = np.eye(2)
    oracle.initialize_known(np.zeros(2), space.start)
    expected = oracle.filter()
    mean, covariance = space.filter(observed[None])
    np.testing.assert_allclose(mean[0], expected.filtered_state[:, -1], rtol=1e-9)
    np.testing.assert_allclose(covariance, expected.filtered_state_cov[..., -1], rtol=1e-9)
    next_mean, next_covariance = space.predict(mean, covariance)
    np.testing.assert_allclose(next_mean[0], expected.predicted_state[:, -1], rtol=1e-9)
    np.testing.assert_allclose(next_covariance, expected.predicted_state_cov[..., -1], rtol=1e-9)


def test_the_fit_recovers_a_planted_state_space() -> None:
    truth = planted()
    curves = simulate(truth, 4000)
    fit = fit_state_space(curves, modes=2, strength=1e-6)
    # The states are defined up to a rotation; the map from a day's curve to the next is not.
    ours, theirs = (s.loading @ s.transition @ s.loading.T for s in (fit, truth))
    np.testing.assert_allclose(ours, theirs, atol=0.05)
    spread = [s.loading @ s.state_noise @ s.loading.T for s in (fit, truth)]
    np.testing.assert_allclose(spread[0], spread[1], atol=0.05)
    np.testing.assert_allclose(fit.noise, truth.noise, rtol=0.3)


def test_paths_have_the_covariance_of_the_state_space() -> None:
    model = DynamicFactors(DynamicFactorsConfig(modes=3, scenarios=4000))
    model.fit(training())
    record, space = model.record, model._space
    assert space is not None
    curves = model._curves(record.past_deviation(windows()[0]))[0]
    paths = model.draw_paths(curves, "a name").double().numpy()
    mean, covariance = space.predict(*space.filter(curves[None]))
    drawn = (paths * model._scale).reshape(len(paths), -1)
    expected = space.loading @ covariance @ space.loading.T + np.diag(space.noise)
    np.testing.assert_allclose(drawn.mean(0), (mean @ space.loading.T)[0], atol=1e-5)
    difference = np.abs(np.cov(drawn.T) - expected).max()
    assert difference < 0.1 * np.diag(expected).max()


def test_a_record_of_few_days_has_few_modes() -> None:
    curves = RNG.normal(size=(9, 40))
    assert fit_state_space(curves, modes=16, strength=0.1).loading.shape == (40, 2)


@pytest.mark.parametrize("n_days", [1, 3])
def test_more_observed_days_leave_less_uncertainty(n_days: int) -> None:
    space = planted()
    observed = simulate(space, n_days + 1)
    before = space.filter(observed[None, -n_days:])[1]
    after = space.filter(observed[None])[1]
    assert np.trace(after) <= np.trace(before) + 1e-12
