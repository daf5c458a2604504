"""The outlook on simulated factors: what it gains, how wrong it says it is, and what it may see."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from powerphase.axes import STEPS_PER_DAY
from powerphase.clock import quarter_of_day
from powerphase.errors import TrainingError
from powerphase.models.factorforge.calendar import YEAR_DAYS
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.outlook import (
    LEAST_WINDOWS,
    Lessons,
    Outlook,
    learn_outlook,
)
from tests.models.factorforge import moments, profile, wandering

CONFIG = FactorForgeConfig()
DAY, WEEK = STEPS_PER_DAY, 7 * STEPS_PER_DAY
BERLIN = ZoneInfo("Europe/Berlin")


def history(n_days: int, seed: int, start: str = "2015-01-01", size: float = 0.5) -> np.ndarray:
    """Two factors: what the calendar says, and deviations that fade within a day or half of one."""
    rng = np.random.default_rng(seed)
    time = moments(n_days * DAY, start)
    calendar = profile(time)[:, None] * [1.0, 0.5]
    return calendar + size * wandering(len(time), (0.99, 0.98), rng)


def windows_in(
    series: np.ndarray, start: str, n_past: int = WEEK, horizon: int = DAY
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Past, time and future of all windows that begin at midnight."""
    origins = np.arange(-(-n_past // DAY) * DAY, len(series) - horizon + 1, DAY)
    steps = origins[:, None] + np.arange(-n_past, horizon)
    return series[steps[:, :n_past]], moments(len(series), start)[steps], series[steps[:, n_past:]]


@pytest.fixture(scope="module")
def outlook() -> Outlook:
    series = history(150, seed=100)
    return learn_outlook(series, moments(len(series)), WEEK, DAY, CONFIG)


@pytest.fixture(scope="module")
def fresh() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows of later months, in ten histories that were not learned from."""
    parts = [windows_in(history(35, seed, "2015-06-08"), "2015-06-08") for seed in range(1, 11)]
    past, time, future = (np.concatenate(column) for column in zip(*parts, strict=True))
    return past, time, future


def test_the_past_of_a_window_helps_the_calendar_and_beats_last_week(
    outlook: Outlook, fresh: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    past, time, future = fresh
    error = ((outlook(past, time) - future) ** 2).mean((0, 1))
    calendar = ((outlook.expected(time[:, WEEK:]) - future) ** 2).mean((0, 1))
    last_week = ((past[:, :DAY] - future) ** 2).mean((0, 1))
    assert (error < 0.9 * calendar).all()
    assert (error < 0.5 * last_week).all()


def test_the_calendar_is_learned(
    outlook: Outlook, fresh: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    _, time, _ = fresh
    wanted = profile(time)[..., None] * [1.0, 0.5]
    wrong = outlook.expected(time) - wanted
    assert (wrong**2).mean() < 0.1 * (wanted - wanted.mean((0, 1))).var()


def test_it_is_as_wrong_as_it_says(
    outlook: Outlook, fresh: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """Soon after the origin little is wrong, a day later all that the calendar does not know."""
    past, time, future = fresh
    errors = outlook(past, time) - future
    single = np.einsum("bhk,bhl->hkl", errors, errors) / len(errors)
    found, said = (part.reshape(4, -1, 2, 2).mean(1) for part in (single, outlook.covariance))
    size = np.sqrt(np.einsum("hkk->hk", found))
    relative = (said - found) / (size[:, :, None] * size[:, None])
    assert np.abs(relative).max() < 0.35
    assert np.abs(relative.mean(0)).max() < 0.2
    assert (size[0] < 0.8 * size[-1]).all()


def test_a_covariance_is_symmetric_and_positive(outlook: Outlook) -> None:
    assert outlook.covariance.shape == (DAY, 2, 2)
    np.testing.assert_allclose(outlook.covariance, outlook.covariance.swapaxes(1, 2))
    assert np.linalg.eigvalsh(outlook.covariance).min() > 0


def test_the_strengths_are_among_those_to_choose_from(outlook: Outlook) -> None:
    assert set(outlook.strength) <= set(CONFIG.strengths)


def left_out(series: np.ndarray, n_past: int, horizon: int) -> tuple[Lessons, np.ndarray]:
    """What is predicted for each window by what was learned without its week."""
    weekly = replace(CONFIG, fold_days=7)
    lessons = Lessons(series, moments(len(series)), n_past, horizon, weekly)
    errors = lessons.errors_left_out(np.array([0.1, 1.0]))
    target = series[lessons.origins[:, None] + np.arange(horizon)]
    return lessons, target - errors


@pytest.mark.parametrize(("n_past", "horizon", "window"), [(DAY, DAY, 13), (100, 150, 7)])
def test_what_happens_in_a_window_left_out_cannot_reach_its_prediction(
    n_past: int, horizon: int, window: int
) -> None:
    """The last window of a week is the past of the next; the first overlaps the week before."""
    series = history(24, seed=0)
    lessons, before = left_out(series, n_past, horizon)
    changed = series.copy()
    changed[lessons.origins[window] + np.arange(horizon)] += 100
    _, after = left_out(changed, n_past, horizon)
    moved = np.abs(after - before).max((0, 2, 3))
    assert moved[window] < 1e-10
    assert moved[window + 1] > 1  # whose past it is


@pytest.mark.parametrize("n_past", [DAY, 100, WEEK])
def test_windows_begin_at_the_record_s_first_time_of_day(n_past: int) -> None:
    series = history(30, seed=0)
    origins = Lessons(series, moments(len(series)), n_past, DAY, CONFIG).origins
    assert (origins % DAY == 0).all()
    assert n_past <= origins[0] < n_past + DAY
    assert origins[-1] == len(series) - DAY


@pytest.mark.parametrize(("n_days", "knows"), [(int(YEAR_DAYS), False), (int(YEAR_DAYS) + 1, True)])
def test_a_record_of_less_than_a_year_knows_no_seasons(n_days: int, knows: bool) -> None:
    series = np.zeros((n_days * DAY, 1))
    assert Lessons(series, moments(len(series)), DAY, DAY, CONFIG).seasons is knows


def noons(outlook: Outlook) -> tuple[float, float]:
    """What is expected at noon in Berlin on ordinary Tuesdays in winter and in summer."""
    days = np.array(["2017-01-31T11:00", "2017-07-11T10:00"], dtype="datetime64[s]")
    winter, summer = outlook.expected(days)[:, 0]
    return float(winter), float(summer)


def test_only_who_knows_seasons_expects_them(outlook: Outlook) -> None:
    """Learned from a factor that is 1 higher in winter than in summer."""
    time = moments((int(YEAR_DAYS) + 1) * DAY)
    year = 2 * np.pi * (time - time[0]) / np.timedelta64(int(YEAR_DAYS * 86_400), "s")
    noise = wandering(len(time), (0.9,), np.random.default_rng(8))
    series = 0.5 * np.cos(year)[:, None] + 0.01 * noise
    winter, summer = noons(learn_outlook(series, time, DAY, 1, replace(CONFIG, fold_days=122)))
    assert 0.6 < winter - summer < 1.1
    winter, summer = noons(outlook)
    assert winter == summer


def test_too_few_windows_are_refused_in_a_sentence() -> None:
    enough = history(LEAST_WINDOWS + 1, seed=0)
    found = learn_outlook(enough, moments(len(enough)), DAY, DAY, CONFIG)
    assert np.isfinite(found.weights).all()
    short = enough[:-1]
    sentence = f"learns from {LEAST_WINDOWS} days or more .* {len(short)} training steps have "
    with pytest.raises(TrainingError, match=f"{sentence}{LEAST_WINDOWS - 1}; make a longer record"):
        learn_outlook(short, moments(len(short)), DAY, DAY, CONFIG)


def test_a_context_of_less_than_a_day_is_refused_in_a_sentence() -> None:
    series = history(30, seed=0)
    sentence = f"looks 1 days back or more, and a context has {DAY - 1} steps; give it {DAY}"
    with pytest.raises(TrainingError, match=re.escape(sentence)):
        learn_outlook(series, moments(len(series)), DAY - 1, DAY, CONFIG)


@pytest.mark.parametrize(("n_past", "horizon"), [(2 * DAY + 5, 250), (9 * DAY, DAY + 1)])
def test_windows_of_any_size_from_a_day_on_are_forecast(n_past: int, horizon: int) -> None:
    series = history(45, seed=0)
    found = learn_outlook(series, moments(len(series)), n_past, horizon, CONFIG)
    past, time, future = windows_in(history(30, 1, "2015-06-08"), "2015-06-08", n_past, horizon)
    error = ((found(past, time) - future) ** 2).mean((0, 1))
    assert found.covariance.shape == (horizon, 2, 2)
    assert (error < (future**2).mean((0, 1))).all()


def test_windows_together_are_forecast_as_each_alone(
    outlook: Outlook, fresh: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    past, time, _ = fresh
    together = outlook(past[:5], time[:5])
    for window in range(5):
        one = slice(window, window + 1)
        np.testing.assert_allclose(outlook(past[one], time[one]), together[one], atol=1e-12)


def test_what_follows_the_clock_of_berlin_is_forecast_exactly_when_it_is_changed() -> None:
    """By whoever looks at the time in Greenwich, it is missed by an hour."""

    def by_the_clock(time: np.ndarray) -> np.ndarray:
        return np.sin(2 * np.pi * quarter_of_day(time) / DAY)[:, None]

    learned = moments(60 * DAY)
    found = learn_outlook(by_the_clock(learned), learned, WEEK, DAY, CONFIG)
    for start in ("2016-03-19", "2016-10-22"):
        past, time, future = windows_in(by_the_clock(moments(12 * DAY, start)), start)
        np.testing.assert_allclose(found(past, time), future, atol=1e-9)
        assert np.abs(past[:, :DAY] - future).max() > 0.2
        assert np.abs(past[:, -DAY:] - future).max() > 0.2


def test_slots_are_the_quarter_hours_of_the_day_in_berlin() -> None:
    time = np.arange("2016-03-20", "2016-11-05", np.timedelta64(35, "m"), dtype="datetime64[s]")
    local = [moment.replace(tzinfo=UTC).astimezone(BERLIN) for moment in time.astype(datetime)]
    wanted = [4 * moment.hour + moment.minute // 15 for moment in local]
    assert quarter_of_day(time).tolist() == wanted
    assert set(wanted) == set(range(DAY))
