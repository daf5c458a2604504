"""Berlin time against the standard library's time zones and the `holidays` package."""

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import holidays
import numpy as np
import pytest

from powerphase.clock import (
    GERMANY,
    Calendar,
    berlin_time,
    day_of_week,
    day_of_year,
    holiday_share,
    hour_of_day,
    is_public_holiday,
    local_time,
    slot_of_day,
)
from powerphase.errors import CalendarError

BERLIN = ZoneInfo("Europe/Berlin")
HOURS = np.arange("2014-12-31", "2017-01-02", np.timedelta64(5, "h"), dtype="datetime64[s]")
YEARS = range(1995, 2051)


def utc(*moments: str) -> np.ndarray:
    return np.array(moments, dtype="datetime64[s]")


def test_all_functions_agree_with_the_standard_library() -> None:
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


POPULATION = {
    **{"BW": 10.88, "BY": 12.84, "BE": 3.52, "BB": 2.48, "HB": 0.67, "HH": 1.79, "HE": 6.18},
    **{"MV": 1.61, "NI": 7.93, "NW": 17.87, "RP": 4.05, "SL": 1.00, "SN": 4.08, "ST": 2.25},
    **{"SH": 2.86, "TH": 2.17},
}
"""Millions of people in each German state at the end of 2015."""


def test_the_share_of_a_holiday_is_the_population_of_its_states() -> None:
    """Up to 0.05, which is more than Saxony's day of repentance and Brandenburg's Sundays.

    Two differ: Easter and Whit Sunday count for all, and Assumption is a holiday in the Saarland
    and in the Catholic parts of Bavaria.
    """
    days = np.arange("2015-01-01", "2017-01-01", dtype="datetime64[D]")
    expected = np.zeros(len(days))
    for state, people in POPULATION.items():
        free = holidays.country_holidays("DE", subdiv=state, years=(2015, 2016))
        expected += people * np.isin(days, np.array(sorted(free), dtype="datetime64[D]"))
    expected /= sum(POPULATION.values())
    share = holiday_share(days.astype("datetime64[s]") + np.timedelta64(11, "h"))
    sundays = np.isin(days.astype(str), ["2015-04-05", "2015-05-24", "2016-03-27", "2016-05-15"])
    assumption = np.isin(days.astype(str), ["2015-08-15", "2016-08-15"])
    assert (share[sundays] == 1).all()
    saarland, bavaria = (POPULATION[state] / sum(POPULATION.values()) for state in ("SL", "BY"))
    assert (saarland < share[assumption]).all()
    assert (share[assumption] < saarland + bavaria).all()
    usual = ~(sundays | assumption)
    np.testing.assert_allclose(share[usual], expected[usual], atol=0.05)
    np.testing.assert_array_equal(share[usual] == 1, expected[usual] > 0.99)


def test_a_public_holiday_counts_for_all_in_any_year() -> None:
    days = np.arange("1995-01-01", "2051-01-01", dtype="datetime64[D]")
    noon = days.astype("datetime64[s]") + np.timedelta64(11, "h")
    share = holiday_share(noon)
    assert (share[is_public_holiday(noon)] == 1).all()
    assert share.min() == 0
    assert share.max() == 1
    others = share[~is_public_holiday(noon)]
    assert len(np.unique(others)) == 7  # nobody, five groups of states, and all on two Sundays


@pytest.mark.parametrize(
    ("date", "corpus_christi"),
    [("2015-06-04", True), ("2016-05-26", True), ("2024-05-30", True), ("2024-05-23", False)],
)
def test_corpus_christi_moves_with_easter(date: str, corpus_christi: bool) -> None:
    (share,) = holiday_share(utc(f"{date}T12:00"))
    assert (0.6 < share < 0.7) == corpus_christi


def test_shares_change_at_midnight_in_berlin() -> None:
    around_epiphany = utc("2016-01-05T22:45", "2016-01-05T23:00", "2016-01-06T22:45")
    before, first, last = holiday_share(around_epiphany)
    assert before == 0
    assert first == last > 0


@pytest.mark.parametrize(
    "reading",
    [berlin_time, hour_of_day, day_of_week, day_of_year, is_public_holiday, holiday_share],
)
@pytest.mark.parametrize("shape", [(0,), (12,), (3, 4)])
def test_functions_keep_the_shape_of_their_input(
    reading: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]
) -> None:
    time = np.resize(HOURS, shape)
    assert reading(time).shape == shape
    np.testing.assert_array_equal(reading(time).ravel(), reading(time.ravel()))


def test_finer_units_of_time_give_the_same() -> None:
    np.testing.assert_array_equal(berlin_time(HOURS.astype("datetime64[ns]")), berlin_time(HOURS))


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Asia/Kathmandu", "UTC"])
def test_the_clock_of_any_zone_agrees_with_the_standard_library(zone: str) -> None:
    calendar = Calendar(None, zone)
    moments = [moment.replace(tzinfo=UTC) for moment in HOURS.astype(datetime)]
    local = [moment.astimezone(ZoneInfo(zone)) for moment in moments]
    wall = [moment.replace(tzinfo=None) for moment in local]
    assert local_time(HOURS, calendar).astype(datetime).tolist() == wall
    assert day_of_week(HOURS, calendar).tolist() == [m.weekday() for m in local]
    assert day_of_year(HOURS, calendar).tolist() == [m.timetuple().tm_yday for m in local]
    assert slot_of_day(HOURS, 24, calendar).tolist() == [m.hour for m in local]
    fives = slot_of_day(HOURS, 288, calendar)
    assert fives.tolist() == [12 * m.hour + m.minute // 5 for m in local]


@pytest.mark.parametrize(
    ("country", "zone"), [("FR", "Europe/Paris"), ("JP", "Asia/Tokyo"), ("IN", "Asia/Kolkata")]
)
def test_holidays_of_a_country_are_its_national_ones_and_count_for_all(
    country: str, zone: str
) -> None:
    calendar = Calendar.of(country.lower())
    assert calendar == Calendar(country, zone)
    days = np.arange("2015-01-01", "2018-01-01", dtype="datetime64[D]")
    noon = days.astype("datetime64[s]") + np.timedelta64(4, "h")  # of the same day in all of them
    free = sorted(holidays.country_holidays(country, years=range(2015, 2018)))
    np.testing.assert_array_equal(
        days[is_public_holiday(noon, calendar)], np.array(free, dtype="datetime64[D]")
    )
    np.testing.assert_array_equal(holiday_share(noon, calendar), is_public_holiday(noon, calendar))


def test_without_a_country_there_are_no_holidays() -> None:
    nobody = Calendar.of("none")
    assert nobody == Calendar(None, "UTC")
    assert not is_public_holiday(HOURS, nobody).any()
    assert not holiday_share(HOURS, nobody).any()


def test_a_country_brings_its_zone_unless_one_is_given() -> None:
    assert GERMANY.override(None, None) == GERMANY
    assert GERMANY.override("fr", None) == Calendar("FR", "Europe/Paris")
    assert GERMANY.override("none", None) == Calendar(None, "Europe/Berlin")
    assert GERMANY.override(None, "UTC") == Calendar("DE", "UTC")
    assert GERMANY.override("US", "America/Chicago") == Calendar("US", "America/Chicago")
    assert Calendar("FR", "UTC").override("DE", None) == GERMANY


@pytest.mark.parametrize("country", ["Germany", "XX", "D", "", "US", "au"])
def test_an_unknown_country_or_one_with_several_zones_raises(country: str) -> None:
    with pytest.raises(CalendarError):
        Calendar.of(country)


@pytest.mark.parametrize("zone", ["Berlin", "europe/berlin", "", "../../etc/passwd", "CEST"])
def test_an_unknown_zone_raises(zone: str) -> None:
    with pytest.raises(CalendarError):
        Calendar("DE", zone)
