"""Forecasts as inputs of FactorForge: what it gains from good ones, and loses by useless ones."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from powerphase.axes import STEPS_PER_DAY
from powerphase.clock import GERMANY
from powerphase.errors import ForecastError
from powerphase.models.factorforge import (
    FactorForecaster,
    FactorForgeConfig,
    KnownColumns,
    fit_factor_forecaster,
    known_inputs,
    window_origins,
)
from powerphase.scenarios import Known
from tests.models.factorforge import autocorrelated, moments, profile

CONFIG = FactorForgeConfig()
PAST, HORIZON, N_DAYS = STEPS_PER_DAY, 24, 200
LATER = "2015-09-07"


def known_of(values: np.ndarray, names: tuple[str, ...] = ("load", "wind")) -> Known:
    """Forecasts for the steps of a record, or of windows."""
    shape = (*values.shape[:-1], len(names))
    issued = np.full(shape, np.datetime64("2014-12-31", "s"))
    return Known(names, ("MW",) * len(names), torch.from_numpy(values), issued, 0)


def history(n_days: int, seed: int, start: str = "2015-01-01") -> tuple[np.ndarray, np.ndarray]:
    """Two factors, and the load and wind that they follow: the second one along a curve."""
    rng = np.random.default_rng(seed)
    time = moments(n_days * STEPS_PER_DAY, start)
    load, wind = autocorrelated(len(time), (0.99, 0.98), rng).T
    noise = 0.05 * rng.normal(size=(len(time), 2))
    factors = np.stack([profile(time) + load, 0.5 * wind + 0.3 * wind**2], 1) + noise
    return factors, np.stack([50e3 + 1e3 * (profile(time) + load), 2e3 * (3 + wind)], 1)


FACTORS, DRIVERS = history(N_DAYS, seed=1)


def fit(drivers: np.ndarray | None, factors: np.ndarray = FACTORS) -> FactorForecaster:
    time = moments(len(factors))
    fitted = partial(fit_factor_forecaster, factors, time, PAST, HORIZON, CONFIG)
    return fitted(known=None if drivers is None else known_of(drivers))


def size_of(errors: np.ndarray) -> np.ndarray:
    """The root mean square of each factor's errors."""
    return np.asarray(np.sqrt((errors**2).mean((0, 1))))


def error_of_forecast(size: float) -> np.ndarray:
    """Errors of load and wind that last for hours, in standard deviations of what is uncertain."""
    rng = np.random.default_rng(2)
    return size * autocorrelated(len(DRIVERS), (0.97, 0.97), rng) * [1e3, 2e3]


@pytest.fixture(scope="module")
def uninformed() -> FactorForecaster:
    return fit(None)


@pytest.fixture(scope="module")
def informed() -> FactorForecaster:
    """With perfect forecasts."""
    return fit(DRIVERS)


def new_windows() -> tuple[np.ndarray, np.ndarray, Known, np.ndarray]:
    """Past, time, forecasts and future of windows that no regression was fitted to."""
    factors, drivers = history(60, 5, LATER)
    origins = np.arange(PAST, len(factors) - HORIZON + 1, STEPS_PER_DAY)
    steps = origins[:, None] + np.arange(-PAST, HORIZON)
    past, future = np.split(factors[steps], [PAST], axis=1)
    return past, moments(len(factors), LATER)[steps], known_of(drivers[steps]), future


def test_with_perfect_forecasts_little_more_than_noise_is_left(
    informed: FactorForecaster, uninformed: FactorForecaster
) -> None:
    assert (size_of(uninformed.errors) > 0.2).all()
    assert (size_of(informed.errors) < [0.07, 0.1]).all()


def test_the_error_grows_with_that_of_the_forecasts_up_to_that_without_them(
    informed: FactorForecaster, uninformed: FactorForecaster
) -> None:
    sizes = [fit(DRIVERS + error_of_forecast(size)).errors for size in (0.2, 0.7)]
    path = np.stack([size_of(part) for part in (informed.errors, *sizes, uninformed.errors)])
    assert (np.diff(path, axis=0) > 0).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_forecasts_that_are_pure_noise_cost_nothing(
    seed: int, uninformed: FactorForecaster
) -> None:
    days = np.random.default_rng(seed).permutation(DRIVERS.reshape(N_DAYS, -1, 2))
    informed = fit(days.reshape(-1, 2))
    past, time, known, future = new_windows()
    noise = known_of(known.values.numpy()[::-1].copy())
    after, before = informed(past, time, noise), uninformed(past, time)
    assert (size_of(after - future) < 1.02 * size_of(before - future)).all()


def test_the_covariance_is_that_of_the_errors_on_new_windows(informed: FactorForecaster) -> None:
    past, time, known, future = new_windows()
    actual = size_of(informed(past, time, known) - future)
    expected = np.sqrt(np.einsum("hkk->hk", informed.covariance).mean(0))
    np.testing.assert_allclose(expected, actual, rtol=0.25)


def test_a_record_without_any_forecast_is_fitted_as_without_them(
    uninformed: FactorForecaster,
) -> None:
    informed = fit(np.full_like(DRIVERS, np.nan))
    np.testing.assert_allclose(informed.errors, uninformed.errors, atol=1e-9)


def test_forecasts_from_some_day_on_are_used(uninformed: FactorForecaster) -> None:
    """The spread is that of windows which have forecasts."""
    partly = DRIVERS.copy()
    partly[: len(partly) // 2] = np.nan
    informed = fit(partly)
    assert len(informed.errors) == len(uninformed.errors) - N_DAYS // 2 + 1
    assert (size_of(informed.errors) < 0.6 * size_of(uninformed.errors)).all()


def test_a_day_that_follows_another_origin_counts_as_it_was_forecast_before() -> None:
    """Two days ahead nothing is known, although the second day has a perfect forecast by then."""
    time, days = moments(len(FACTORS)), 2 * STEPS_PER_DAY
    origins = window_origins(time, PAST, days, CONFIG)
    steps = origins[:, None] + np.arange(-PAST, days)
    noise = np.random.default_rng(3).permutation(DRIVERS)
    values = np.where(np.arange(-PAST, days)[:, None] < STEPS_PER_DAY, DRIVERS[steps], noise[steps])
    ahead = replace(known_of(values), horizon=days)
    parts = (FACTORS, time, PAST, days, CONFIG, None, GERMANY)
    informed = fit_factor_forecaster(*parts, known_of(DRIVERS), ahead)
    uninformed = fit_factor_forecaster(*parts)
    first, second = (slice(0, STEPS_PER_DAY), slice(STEPS_PER_DAY, None))
    gain = [
        size_of(informed.errors[:, day]) / size_of(uninformed.errors[:, day])
        for day in (first, second)
    ]
    assert (gain[0] < 0.6).all()
    assert (gain[1] > 0.8).all()


def test_forecasts_may_come_in_another_order(informed: FactorForecaster) -> None:
    past, time, known, _ = new_windows()
    values = known.values.numpy()[..., [1, 1, 0]]
    other = known_of(values, ("wind", "solar", "load"))
    np.testing.assert_array_equal(informed(past, time, other), informed(past, time, known))


def test_a_forecast_without_what_was_known_in_training_raises(informed: FactorForecaster) -> None:
    past, time, known, _ = new_windows()
    only_load = known_of(known.values.numpy()[..., :1], ("load",))
    with pytest.raises(ForecastError, match="wind"):
        informed(past, time, only_load)
    with pytest.raises(ForecastError, match="load, wind"):
        informed(past, time)


def test_columns_are_scaled_forecasts_and_their_products() -> None:
    known = known_of(DRIVERS)
    columns = KnownColumns.of(known)(known)
    np.testing.assert_allclose(columns[:, :2].mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(columns[:, :2].std(0), 1)
    load, wind = columns[:, :2].T
    np.testing.assert_allclose(columns[:, 2:], np.stack([load**2, load * wind, wind**2], 1))


def test_inputs_come_column_by_column_those_of_products_last() -> None:
    """Forecasts alone are a first part of the inputs, so that products can be left out."""
    rng = np.random.default_rng(0)
    past, future = rng.normal(size=(3, PAST, 5)), rng.normal(size=(3, HORIZON, 5))
    inputs = known_inputs(past, future, step_s=900)
    ignored, used, with_products = KnownColumns.of(known_of(DRIVERS)).counts
    assert (ignored, with_products) == (0, inputs.shape[-1])
    np.testing.assert_array_equal(
        inputs[..., :used], known_inputs(past[..., :2], future[..., :2], 900)
    )
    by_column = inputs.reshape(3, HORIZON, 5, -1)
    np.testing.assert_array_equal(by_column[..., 0], future)
    np.testing.assert_allclose(by_column[:, 10, :, 1], future[:, 6:15].mean(1))
    np.testing.assert_allclose(by_column[:, 0, :, 3], future.mean(1))
    np.testing.assert_allclose(by_column[:, 5, :, 4], past[:, -16:].mean(1))
