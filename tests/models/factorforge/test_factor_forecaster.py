"""The factor forecaster on simulated factors: its skill, its error estimate and its inputs."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from powerphase.axes import STEPS_PER_DAY
from powerphase.clock import slot_of_day
from powerphase.errors import TrainingError
from powerphase.models.factorforge import (
    MIN_WINDOWS,
    YEAR_DAYS,
    FactorForecaster,
    FactorForgeConfig,
    TrainingWindows,
    fit_factor_forecaster,
)
from tests.models.factorforge import autocorrelated, moments, profile

CONFIG = FactorForgeConfig()
DAY, WEEK = STEPS_PER_DAY, 7 * STEPS_PER_DAY
BERLIN = ZoneInfo("Europe/Berlin")


def history(n_days: int, seed: int, start: str = "2015-01-01", size: float = 0.5) -> np.ndarray:
    """Two factors: a calendar part, and deviations that fade within a day or half a day."""
    rng = np.random.default_rng(seed)
    time = moments(n_days * DAY, start)
    calendar = profile(time)[:, None] * [1.0, 0.5]
    return calendar + size * autocorrelated(len(time), (0.99, 0.98), rng)


def windows_in(
    series: np.ndarray, start: str, n_past: int = WEEK, horizon: int = DAY
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Past, time and future of all windows that start at midnight."""
    origins = np.arange(-(-n_past // DAY) * DAY, len(series) - horizon + 1, DAY)
    steps = origins[:, None] + np.arange(-n_past, horizon)
    return series[steps[:, :n_past]], moments(len(series), start)[steps], series[steps[:, n_past:]]


@pytest.fixture(scope="module")
def forecaster() -> FactorForecaster:
    series = history(150, seed=100)
    return fit_factor_forecaster(series, moments(len(series)), WEEK, DAY, CONFIG)


@pytest.fixture(scope="module")
def new_windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows of later months, in ten histories that the forecaster was not fitted to."""
    parts = [windows_in(history(35, seed, "2015-06-08"), "2015-06-08") for seed in range(1, 11)]
    past, time, future = (np.concatenate(column) for column in zip(*parts, strict=True))
    return past, time, future


def test_forecasts_beat_the_calendar_alone_and_last_week(
    forecaster: FactorForecaster, new_windows: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    past, time, future = new_windows
    error = ((forecaster(past, time) - future) ** 2).mean((0, 1))
    calendar = ((forecaster.expected(time[:, WEEK:]) - future) ** 2).mean((0, 1))
    last_week = ((past[:, :DAY] - future) ** 2).mean((0, 1))
    assert (error < 0.9 * calendar).all()
    assert (error < 0.5 * last_week).all()


def test_the_calendar_is_fitted(
    forecaster: FactorForecaster, new_windows: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    _, time, _ = new_windows
    expected = profile(time)[..., None] * [1.0, 0.5]
    error = forecaster.expected(time) - expected
    assert (error**2).mean() < 0.1 * (expected - expected.mean((0, 1))).var()


def test_the_covariance_is_that_of_the_errors_on_new_windows(
    forecaster: FactorForecaster, new_windows: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """Errors are small after the origin and grow over the day."""
    past, time, future = new_windows
    errors = forecaster(past, time) - future
    single = np.einsum("bhk,bhl->hkl", errors, errors) / len(errors)
    actual, forecast = (
        part.reshape(4, -1, 2, 2).mean(1) for part in (single, forecaster.covariance)
    )
    size = np.sqrt(np.einsum("hkk->hk", actual))
    relative = (forecast - actual) / (size[:, :, None] * size[:, None])
    assert np.abs(relative).max() < 0.35
    assert np.abs(relative.mean(0)).max() < 0.2
    assert (size[0] < 0.8 * size[-1]).all()


def test_the_covariance_is_symmetric_and_positive_definite(forecaster: FactorForecaster) -> None:
    assert forecaster.covariance.shape == (DAY, 2, 2)
    np.testing.assert_allclose(forecaster.covariance, forecaster.covariance.swapaxes(1, 2))
    assert np.linalg.eigvalsh(forecaster.covariance).min() > 0


def test_the_strengths_are_among_the_configured_ones(forecaster: FactorForecaster) -> None:
    assert set(forecaster.strength) <= set(CONFIG.strengths)


def held_out_forecasts(
    series: np.ndarray, n_past: int, horizon: int
) -> tuple[TrainingWindows, np.ndarray]:
    """The forecast of each window by regressions that were fitted without its week."""
    weekly = replace(CONFIG, fold_days=7)
    windows = TrainingWindows(series, moments(len(series)), n_past, horizon, weekly)
    errors = windows.held_out_errors(np.array([0.1, 1.0]))
    target = series[windows.origins[:, None] + np.arange(horizon)]
    return windows, target - errors


@pytest.mark.parametrize(("n_past", "horizon", "window"), [(DAY, DAY, 13), (100, 150, 7)])
def test_a_held_out_window_does_not_influence_its_forecast(
    n_past: int, horizon: int, window: int
) -> None:
    """The last window of a week is the past of the next; the first overlaps the week before."""
    series = history(24, seed=0)
    windows, before = held_out_forecasts(series, n_past, horizon)
    changed = series.copy()
    changed[windows.origins[window] + np.arange(horizon)] += 100
    _, after = held_out_forecasts(changed, n_past, horizon)
    moved = np.abs(after - before).max((0, 2, 3))
    assert moved[window] < 1e-10
    assert moved[window + 1] > 1  # which has it in its past


@pytest.mark.parametrize("n_past", [DAY, 100, WEEK])
def test_windows_start_at_the_first_time_of_day_of_the_record(n_past: int) -> None:
    series = history(30, seed=0)
    origins = TrainingWindows(series, moments(len(series)), n_past, DAY, CONFIG).origins
    assert (origins % DAY == 0).all()
    assert n_past <= origins[0] < n_past + DAY
    assert origins[-1] == len(series) - DAY


@pytest.mark.parametrize(
    ("n_days", "seasons"), [(int(YEAR_DAYS), False), (int(YEAR_DAYS) + 1, True)]
)
def test_a_record_of_less_than_a_year_has_no_seasons(n_days: int, seasons: bool) -> None:
    series = np.zeros((n_days * DAY, 1))
    windows = TrainingWindows(series, moments(len(series)), DAY, DAY, CONFIG)
    assert windows.seasons is seasons


def noon_values(forecaster: FactorForecaster) -> tuple[float, float]:
    """The expected factor at noon in Berlin on ordinary Tuesdays in winter and in summer."""
    days = np.array(["2017-01-31T11:00", "2017-07-11T10:00"], dtype="datetime64[s]")
    winter, summer = forecaster.expected(days)[:, 0]
    return float(winter), float(summer)


def test_only_a_record_of_a_year_gives_seasonal_expectations(forecaster: FactorForecaster) -> None:
    """Fitted to a factor that is 1 higher in winter than in summer."""
    time = moments((int(YEAR_DAYS) + 1) * DAY)
    year = 2 * np.pi * (time - time[0]) / np.timedelta64(int(YEAR_DAYS * 86_400), "s")
    noise = autocorrelated(len(time), (0.9,), np.random.default_rng(8))
    series = 0.5 * np.cos(year)[:, None] + 0.01 * noise
    winter, summer = noon_values(
        fit_factor_forecaster(series, time, DAY, 1, replace(CONFIG, fold_days=122))
    )
    assert 0.6 < winter - summer < 1.1
    winter, summer = noon_values(forecaster)
    assert winter == summer


def test_too_few_windows_raise() -> None:
    enough = history(MIN_WINDOWS + 1, seed=0)
    forecaster = fit_factor_forecaster(enough, moments(len(enough)), DAY, DAY, CONFIG)
    assert np.isfinite(forecaster.weights).all()
    short = enough[:-1]
    with pytest.raises(TrainingError, match=rf"{MIN_WINDOWS} .*{len(short)} .*{MIN_WINDOWS - 1}"):
        fit_factor_forecaster(short, moments(len(short)), DAY, DAY, CONFIG)


def test_a_context_of_less_than_a_day_raises() -> None:
    series = history(30, seed=0)
    with pytest.raises(TrainingError, match=rf"{DAY} .*{DAY - 1}"):
        fit_factor_forecaster(series, moments(len(series)), DAY - 1, DAY, CONFIG)


@pytest.mark.parametrize(("n_past", "horizon"), [(2 * DAY + 5, 250), (9 * DAY, DAY + 1)])
def test_contexts_and_horizons_of_any_length_are_forecast(n_past: int, horizon: int) -> None:
    series = history(45, seed=0)
    forecaster = fit_factor_forecaster(series, moments(len(series)), n_past, horizon, CONFIG)
    past, time, future = windows_in(history(30, 1, "2015-06-08"), "2015-06-08", n_past, horizon)
    error = ((forecaster(past, time) - future) ** 2).mean((0, 1))
    assert forecaster.covariance.shape == (horizon, 2, 2)
    assert (error < (future**2).mean((0, 1))).all()


def test_a_batch_is_forecast_like_its_single_windows(
    forecaster: FactorForecaster, new_windows: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    past, time, _ = new_windows
    batch = forecaster(past[:5], time[:5])
    for window in range(5):
        part = slice(window, window + 1)
        np.testing.assert_allclose(forecaster(past[part], time[part]), batch[part], atol=1e-12)


def test_a_series_of_the_berlin_clock_is_forecast_exactly_when_clocks_change() -> None:
    """A forecast by UTC would be off by an hour."""

    def by_the_clock(time: np.ndarray) -> np.ndarray:
        return np.sin(2 * np.pi * slot_of_day(time) / DAY)[:, None]

    fitted = moments(60 * DAY)
    forecaster = fit_factor_forecaster(by_the_clock(fitted), fitted, WEEK, DAY, CONFIG)
    for start in ("2016-03-19", "2016-10-22"):
        past, time, future = windows_in(by_the_clock(moments(12 * DAY, start)), start)
        np.testing.assert_allclose(forecaster(past, time), future, atol=1e-9)
        assert np.abs(past[:, :DAY] - future).max() > 0.2
        assert np.abs(past[:, -DAY:] - future).max() > 0.2


def test_slots_are_quarter_hours_of_the_berlin_day() -> None:
    time = np.arange("2016-03-20", "2016-11-05", np.timedelta64(35, "m"), dtype="datetime64[s]")
    local = [moment.replace(tzinfo=UTC).astimezone(BERLIN) for moment in time.astype(datetime)]
    expected = [4 * moment.hour + moment.minute // 15 for moment in local]
    assert slot_of_day(time).tolist() == expected
    assert set(expected) == set(range(DAY))
