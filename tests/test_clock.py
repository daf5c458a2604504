"""The Berlin clock against the standard library's time zones and the `holidays` package."""

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import holidays
import numpy as np
import pytest

from powerphase.clock import (
    berlin_time,
    day_of_week,
    day_of_year,
    hour_of_day,
    is_public_holiday,
)

BERLIN = ZoneInfo("Europe/Berlin")
HOURS = np.arange("2014-12-31", "2017-01-02", np.timedelta64(5, "h"), dtype="datetime64[s]")
YEARS = range(1995, 2051)


def utc(*moments: str) -> np.ndarray:
    return np.array(moments, dtype="datetime64[s]")


def test_every_reading_agrees_with_the_standard_library() -> None:
    local = [moment.replace(tzinfo=UTC).astimezone(BERLIN) for moment in HOURS.astype(datetime)]
    wall = [moment.replace(tzinfo=None) for moment in local]
    assert berlin_time(HOURS).astype(datetime).tolist() == wall
    assert hour_of_day(HOURS).tolist() == [m.hour + m.minute / 60 for m in local]
    assert day_of_week(HOURS).tolist() == [m.weekday() for m in local]
    assert day_of_year(HOURS).tolist() == [m.timetuple().tm_yday for m in local]


def test_the_clock_skips_an_hour_in_march_and_repeats_one_in_october() -> None:
    march = hour_of_day(utc("2016-03-27T00:45", "2016-03-27T01:00"))
    october = hour_of_day(utc("2016-10-30T00:15", "2016-10-30T01:15"))
    assert march.tolist() == [1.75, 3.0]
    assert october.tolist() == [2.25, 2.25]


def test_a_day_begins_at_midnight_in_berlin_not_in_greenwich() -> None:
    around_new_year = utc("2015-12-31T22:45", "2015-12-31T23:00")
    assert day_of_week(around_new_year).tolist() == [3, 4]
    assert day_of_year(around_new_year).tolist() == [365, 1]
    assert is_public_holiday(around_new_year).tolist() == [False, True]


def test_holidays_are_the_nationwide_ones() -> None:
    days = np.arange(f"{YEARS[0]}-01-01", f"{YEARS[-1] + 1}-01-01", dtype="datetime64[D]")
    noon = days.astype("datetime64[s]") + np.timedelta64(11, "h")
    oracle = np.array(sorted(holidays.country_holidays("DE", years=YEARS)), dtype="datetime64[D]")
    np.testing.assert_array_equal(days[is_public_holiday(noon)], oracle)


def test_reformation_day_was_a_nationwide_holiday_once() -> None:
    days = utc("2016-10-31T12:00", "2017-10-31T12:00", "2018-10-31T12:00")
    assert is_public_holiday(days).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "reading", [berlin_time, hour_of_day, day_of_week, day_of_year, is_public_holiday]
)
@pytest.mark.parametrize("shape", [(0,), (12,), (3, 4)])
def test_readings_keep_the_shape_of_what_they_are_given(
    reading: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]
) -> None:
    time = np.resize(HOURS, shape)
    assert reading(time).shape == shape
    np.testing.assert_array_equal(reading(time).ravel(), reading(time.ravel()))


def test_finer_units_of_time_read_the_same() -> None:
    np.testing.assert_array_equal(berlin_time(HOURS.astype("datetime64[ns]")), berlin_time(HOURS))
