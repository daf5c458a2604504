"""What kind of day it is, on dates whose kind is known."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from powerphase.models.factorforge.calendar import day_features

BERLIN = ZoneInfo("Europe/Berlin")
ORDINARY = [f"2015-06-{day}" for day in range(15, 22)]
"""A week from Monday to Sunday far from any holiday."""


def at(*dates: str, seasons: bool = False) -> np.ndarray:
    """The features of these dates, read at ten o'clock UTC."""
    noon = np.array([f"{date}T10:00" for date in dates], dtype="datetime64[s]")
    return day_features(noon, seasons)


def same(one: str, other: str, seasons: bool = False) -> bool:
    first, second = at(one, other, seasons=seasons)
    return bool((first == second).all())


def alike(date: str) -> str:
    """An ordinary day of the same weekday."""
    return ORDINARY[datetime.fromisoformat(date).weekday()]


def test_no_two_weekdays_are_alike() -> None:
    assert len(np.unique(at(*ORDINARY), axis=0)) == 7


@pytest.mark.parametrize(
    "date",
    [
        *("2015-03-10", "2015-07-04", "2015-08-02", "2016-02-29", "2016-09-16", "2024-06-12"),
        *("2015-12-19", "2016-01-08", "2024-12-19"),
    ],
)
def test_without_seasons_ordinary_days_differ_by_their_weekday_alone(date: str) -> None:
    """The last three are the nearest ordinary days to Christmas and Epiphany."""
    assert same(date, alike(date))


@pytest.mark.parametrize(
    "date",
    [
        *("2015-04-03", "2015-05-14", "2015-10-03", "2016-03-28", "2016-05-16"),  # nationwide
        *("2015-01-06", "2015-06-04", "2015-10-31", "2016-11-01", "2024-08-15"),  # of some states
        *("2015-04-02", "2015-04-07", "2016-05-04", "2024-10-02"),  # a day before or after
        *("2015-05-15", "2016-05-27", "2016-10-31", "2024-05-31", "2024-12-27"),  # bridges
        *("2015-12-22", "2015-12-24", "2015-12-29", "2015-12-31", "2016-01-05", "2024-12-23"),
    ],
)
def test_days_that_are_not_ordinary_are_told_from_those_that_are(date: str) -> None:
    assert not same(date, alike(date))


def test_what_some_have_as_a_holiday_lies_between_a_holiday_and_an_ordinary_day() -> None:
    """Corpus Christi between an ordinary Thursday and Ascension, by the share who have it."""
    regional, ordinary, holiday = at("2015-06-04", "2015-06-18", "2015-05-14")
    moved = holiday != ordinary
    share = (regional - ordinary)[moved] / (holiday - ordinary)[moved]
    np.testing.assert_allclose(share, share[0])
    assert 0.6 < share[0] < 0.7
    np.testing.assert_array_equal(regional[~moved], ordinary[~moved])


def test_a_holiday_on_a_sunday_is_a_sunday() -> None:
    assert same("2016-05-01", "2016-05-08")  # Labour Day
    assert same("2021-10-03", "2021-10-10")
    assert not same("2015-10-03", "2015-10-10")  # a Saturday


def beyond_the_weekday(date: str) -> np.ndarray:
    found, ordinary = at(date, alike(date))
    return found - ordinary


@pytest.mark.parametrize(
    ("bridge", "after"),
    [("2015-05-15", "2015-05-26"), ("2016-05-06", "2016-03-29"), ("2024-10-04", "2024-05-02")],
)
def test_a_bridge_is_more_than_the_day_after_a_holiday(bridge: str, after: str) -> None:
    """Fridays after a Thursday off, against Tuesdays and a Thursday after one day off."""
    extra = beyond_the_weekday(bridge) - beyond_the_weekday(after)
    assert (extra >= 0).all()
    assert extra.max() == 1


def test_a_monday_before_a_tuesday_off_is_a_bridge_too() -> None:
    """German Unity Day of 2017 and May Day of 2018, against a Wednesday before Ascension."""
    for monday in ("2017-10-02", "2018-04-30"):
        extra = beyond_the_weekday(monday) - beyond_the_weekday("2016-05-04")
        assert (extra >= 0).all()
        assert extra.max() == 1


@pytest.mark.parametrize("holiday", ["2025-12-26", "2023-12-25"])
def test_a_holiday_is_no_bridge(holiday: str) -> None:
    """Friday after a Thursday off and Monday before a Tuesday off, but off themselves."""
    as_a_bridge = beyond_the_weekday("2024-10-04") - beyond_the_weekday("2024-05-02")
    assert (at(holiday)[0][as_a_bridge > 0] == 0).all()


def test_christmas_is_told_apart_day_by_day() -> None:
    """In 2015: the week before, both Eves, between the years."""
    before, eve, between, last = map(
        beyond_the_weekday, ("2015-12-22", "2015-12-24", "2015-12-29", "2015-12-31")
    )
    day_before_a_holiday = beyond_the_weekday("2016-05-04")
    assert ((before != 0) <= (between != 0)).all()  # what is lower before stays so
    assert (before != between).any()
    for one in (eve, last):
        assert (one - between != day_before_a_holiday).any()


def test_days_off_around_christmas_are_days_off_unless_they_are_to_be_special() -> None:
    """A Sunday between the years, and Boxing Day of 2016, on a Monday."""
    sundays = np.array(["2015-12-27T10:00", "2015-06-21T10:00"], dtype="datetime64[s]")
    holidays = np.array(["2016-12-26T10:00", "2016-05-16T10:00"], dtype="datetime64[s]")
    for days in (sundays, holidays):
        for special in (False, True):
            one, other = day_features(days, seasons=False, festive_weekends=special)
            assert (one != other).any() == special


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2015-05-15", "2024-05-10"),  # Friday after Ascension
        ("2016-05-26", "2024-05-30"),  # Corpus Christi
        ("2015-04-06", "1999-04-05"),  # Easter Monday
        ("2016-12-29", "2044-12-29"),  # a Thursday between the years
        ("2016-05-16", "2050-05-30"),  # Whit Monday
    ],
)
def test_other_years_have_the_same_kinds_of_days(one: str, other: str) -> None:
    assert same(one, other)


def test_seasons_are_told_only_where_they_are_asked_for() -> None:
    winter, summer = "2015-02-10", "2015-07-14"
    assert same(winter, summer)
    assert not same(winter, summer, seasons=True)


def test_a_season_comes_back_after_a_year_and_not_before() -> None:
    tuesdays = np.arange("2015-01-13", "2017-12-12", 7, dtype="datetime64[D]").astype(str)
    usual = (at(*tuesdays) == at(alike(tuesdays[0]))).all(1)
    ordinary = list(tuesdays[usual])
    rows = at(*ordinary, seasons=True)
    apart = np.array(ordinary, dtype="datetime64[D]") - np.datetime64(ordinary[0])
    weeks, away = apart.astype(int) // 7, np.abs(rows - rows[0]).max(1)
    assert away[weeks % 52 == 0].max() < 0.2
    assert away[(weeks % 52 > 8) & (weeks % 52 < 44)].min() > 0.2


@pytest.mark.parametrize("seasons", [True, False])
def test_nothing_counts_but_the_date_in_berlin(seasons: bool) -> None:
    """Every five hours of two years, among them four nights in which the clock is changed."""
    time = np.arange("2014-12-31", "2017-01-02", np.timedelta64(5, "h"), dtype="datetime64[s]")
    local = [moment.replace(tzinfo=UTC).astimezone(BERLIN) for moment in time.astype(datetime)]
    dates = [str(moment.date()) for moment in local]
    np.testing.assert_array_equal(day_features(time, seasons), at(*dates, seasons=seasons))


@pytest.mark.parametrize(("first", "n_hours"), [("2016-03-26T23", 23), ("2016-10-29T22", 25)])
def test_the_days_on_which_the_clock_is_changed_are_one_day_each(first: str, n_hours: int) -> None:
    """Both are Sundays, so that the hours around them are of other days."""
    start = np.datetime64(first, "s")
    rows = day_features(start + np.arange(-4, 4 * n_hours + 4) * np.timedelta64(900, "s"), False)
    assert (rows[4:-4] == rows[4]).all()
    assert (rows[:4] != rows[4]).any(1).all()
    assert (rows[-4:] != rows[4]).any(1).all()


def test_features_keep_the_shape_of_what_they_are_given() -> None:
    time = np.arange("2015-12-01", "2016-01-06", np.timedelta64(18, "h"), dtype="datetime64[s]")
    flat = day_features(time)
    table = day_features(time.reshape(2, 3, -1))
    assert table.shape == (2, 3, len(time) // 6, flat.shape[1])
    np.testing.assert_array_equal(table.reshape(flat.shape), flat)
    for moment, row in zip(time, flat, strict=True):
        np.testing.assert_array_equal(day_features(moment[None])[0], row)
