"""Made forecasts: errors are as large as asked for, grow with lead time and can be repeated."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from jaxtyping import Float

from powerphase.errors import SignalError
from powerphase.synthesis import SIGNALS, Signals, day_ahead_forecasts, synthetic_signals

N_DAYS, PER_DAY = 120, 96
LOAD, SOLAR, WIND = range(3)
INSTALLED_MW = 40e3

Made = Callable[..., Float[np.ndarray, "days steps 3"]]


@pytest.fixture(scope="module")
def signals() -> Signals:
    return synthetic_signals(end="2015-04-30")


@pytest.fixture(scope="module")
def made(signals: Signals) -> Made:
    """The forecasts of each day from its midnight on, by the options of the service."""

    @cache
    def forecasts(wind: float = 1.0, seed: int = 0) -> Float[np.ndarray, "days steps 3"]:
        table = day_ahead_forecasts(signals, PER_DAY, wind=wind, seed=seed)
        assert table.names == SIGNALS
        time = signals.time.reshape(-1, PER_DAY)
        return table.seen_from(time[:, 0], time).values.astype(np.float64)

    return forecasts


@pytest.fixture(scope="module")
def truth(signals: Signals) -> Float[np.ndarray, "days steps 3"]:
    return signals.values_mw.reshape(-1, PER_DAY, 3)


def rmse(error: Float[np.ndarray, "*S"]) -> float:
    return float(np.sqrt(np.mean(error**2)))


def test_a_day_has_the_errors_of_published_forecasts(made: Made, truth: np.ndarray) -> None:
    error = made() - truth
    daylight = truth[..., SOLAR] > 0
    assert 0.02 < np.mean(np.abs(error[..., LOAD] / truth[..., LOAD])) < 0.03
    assert 0.03 < rmse(error[..., SOLAR][daylight]) / INSTALLED_MW < 0.05
    assert 0.035 < rmse(error[..., WIND]) / INSTALLED_MW < 0.055
    largest_bias = np.array([150.0, 150.0, 300.0])
    assert (np.abs(error.mean((0, 1))) < largest_bias).all()


def test_errors_grow_with_lead_time_and_last_for_hours(made: Made, truth: np.ndarray) -> None:
    error = made() - truth
    for signal in (LOAD, WIND):
        early, late = error[:, : PER_DAY // 4, signal], error[:, -PER_DAY // 4 :, signal]
        assert rmse(early) < 0.8 * rmse(late)
        hours = [np.corrcoef(error[:, 40, signal], error[:, 40 + 4 * h, signal]) for h in (1, 12)]
        soon, later = (float(pair[0, 1]) for pair in hours)
        assert soon > 0.8
        assert soon > later + 0.3


def test_the_wind_may_be_forecast_perfectly_or_not_at_all(made: Made, truth: np.ndarray) -> None:
    scales = (0.0, 0.5, 1.0, 3.0, 100.0)
    wind = truth[..., WIND]
    errors = [rmse(made(wind=scale)[..., WIND] - wind) for scale in scales]
    assert errors[0] < 1  # whole MW
    assert errors == sorted(errors)
    useless = made(wind=100.0)[..., WIND]
    # Twenty times as many days would be needed to tell this from no correlation at all.
    assert abs(np.corrcoef(useless.ravel(), wind.ravel())[0, 1]) < 0.15
    assert 0.8 < useless.std() / wind.std() < 1.2
    for scale in scales:
        np.testing.assert_array_equal(made(wind=scale)[..., :WIND], made()[..., :WIND])


def test_no_forecast_is_impossible(made: Made, truth: np.ndarray) -> None:
    night = truth[..., SOLAR].max(0) == 0
    for scale in (1.0, 100.0):
        forecast = made(wind=scale)
        assert (forecast >= 0).all()
        assert (forecast[..., WIND] <= truth[..., WIND].max() + 1).all()
        assert (forecast[:, night, SOLAR] == 0).all()


def test_forecasts_are_the_same_everywhere() -> None:
    """Other ones would change the scores of informed tasks, and need another protocol."""
    signals = synthetic_signals(end="2015-01-10")
    assert day_ahead_forecasts(signals, PER_DAY).sha256[:8] == "5651e62f"


def test_seeds_fix_the_errors(signals: Signals, made: Made) -> None:
    again = day_ahead_forecasts(signals, PER_DAY)
    assert again.sha256 == day_ahead_forecasts(signals, PER_DAY).sha256
    assert not np.array_equal(made(seed=1), made())
    first, second = (made(seed=seed) - made() for seed in (1, 2))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.7


def test_a_longer_horizon_adds_steps_and_changes_little(signals: Signals) -> None:
    day, two = (day_ahead_forecasts(signals, n * PER_DAY) for n in (1, 2))
    time = signals.time[:PER_DAY]
    short, long = (table.seen_from(time[:1], time[None]).values for table in (day, two))
    np.testing.assert_allclose(short, long, atol=1.0)


@pytest.mark.parametrize("wind", [-1.0, np.nan, np.inf])
def test_an_impossible_error_is_rejected(signals: Signals, wind: float) -> None:
    with pytest.raises(SignalError):
        day_ahead_forecasts(signals, PER_DAY, wind=wind)


def test_a_constant_signal_is_known(signals: Signals) -> None:
    values = np.broadcast_to([50e3, 0.0, 7e3], signals.values_mw.shape)
    constant = replace(signals, values_mw=values)
    time = signals.time[:PER_DAY]
    seen = day_ahead_forecasts(constant, PER_DAY).seen_from(time[:1], time[None])
    np.testing.assert_array_equal(seen.values[0], values[:PER_DAY])
