"""Calendar features of dates whose kind is known."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from powerphase.models.factorforge import day_features

BERLIN = ZoneInfo("Europe/Berlin")
ORDINARY = [f"2015-06-{day}" for day in range(15, 22)]
"""A week from Monday to Sunday without holidays nearby."""


def features_of(*dates: str, seasons: bool = False) -> np.ndarray:
    """The features of these dates, read at ten o'clock UTC."""
    noon = np.array([f"{date}T10:00" for date in dates], dtype="datetime64[s]")
    return day_features(noon, seasons)


def same(date: str, reference: str, seasons: bool = False) -> bool:
    first, second = features_of(date, reference, seasons=seasons)
    return bool((first == second).all())


def ordinary_day(date: str) -> str:
    """An ordinary day of the same weekday."""
    return ORDINARY[datetime.fromisoformat(date).weekday()]


def test_no_two_weekdays_have_the_same_features() -> None:
    assert len(np.unique(features_of(*ORDINARY), axis=0)) == 7


@pytest.mark.parametrize(
    "date",
    [
        *("2015-03-10", "2015-07-04", "2015-08-02", "2016-02-29", "2016-09-16", "2024-06-12"),
        *("2015-12-19", "2016-01-08", "2024-12-19"),
    ],
)
def test_without_seasons_ordinary_days_differ_only_by_weekday(date: str) -> None:
    """The last three are the nearest ordinary days to Christmas and Epiphany."""
    assert same(date, ordinary_day(date))


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
def test_special_days_differ_from_ordinary_days(date: str) -> None:
    assert not same(date, ordinary_day(date))


def test_a_regional_holiday_lies_between_a_holiday_and_an_ordinary_day() -> None:
    """Corpus Christi, between an ordinary Thursday and Ascension by its share of people."""
    regional, ordinary, holiday = features_of("2015-06-04", "2015-06-18", "2015-05-14")
    differs = holiday != ordinary
    share = (regional - ordinary)[differs] / (holiday - ordinary)[differs]
    np.testing.assert_allclose(share, share[0])
    assert 0.6 < share[0] < 0.7
    np.testing.assert_array_equal(regional[~differs], ordinary[~differs])


def test_a_holiday_on_a_sunday_is_a_sunday() -> None:
    assert same("2016-05-01", "2016-05-08")  # Labour Day
    assert same("2021-10-03", "2021-10-10")
    assert not same("2015-10-03", "2015-10-10")  # a Saturday


def beyond_the_weekday(date: str) -> np.ndarray:
    special, ordinary = features_of(date, ordinary_day(date))
    return special - ordinary


@pytest.mark.parametrize(
    ("bridge", "after"),
    [("2015-05-15", "2015-05-26"), ("2016-05-06", "2016-03-29"), ("2024-10-04", "2024-05-02")],
)
def test_a_bridge_has_one_feature_more_than_the_day_after_a_holiday(
    bridge: str, after: str
) -> None:
    """Fridays after a Thursday off, against Tuesdays and a Thursday after one day off."""
    extra = beyond_the_weekday(bridge) - beyond_the_weekday(after)
    assert (extra >= 0).all()
    assert extra.max() == 1


def test_a_monday_before_a_holiday_on_tuesday_is_a_bridge() -> None:
    """German Unity Day of 2017 and May Day of 2018, against a Wednesday before Ascension."""
    for monday in ("2017-10-02", "2018-04-30"):
        extra = beyond_the_weekday(monday) - beyond_the_weekday("2016-05-04")
        assert (extra >= 0).all()
        assert extra.max() == 1


@pytest.mark.parametrize("holiday", ["2025-12-26", "2023-12-25"])
def test_a_holiday_is_not_a_bridge(holiday: str) -> None:
    """A Friday after a Thursday off and a Monday before a Tuesday off, both holidays themselves."""
    bridge = beyond_the_weekday("2024-10-04") - beyond_the_weekday("2024-05-02")
    assert (features_of(holiday)[0][bridge > 0] == 0).all()


def test_the_days_around_christmas_have_different_features() -> None:
    """In 2015: the week before, both Eves, between the years."""
    before, eve, between, last = map(
        beyond_the_weekday, ("2015-12-22", "2015-12-24", "2015-12-29", "2015-12-31")
    )
    day_before_a_holiday = beyond_the_weekday("2016-05-04")
    assert ((before != 0) <= (between != 0)).all()  # features of the week before remain
    assert (before != between).any()
    for day in (eve, last):
        assert (day - between != day_before_a_holiday).any()


def test_days_off_around_christmas_are_special_only_if_configured() -> None:
    """A Sunday between the years, and Boxing Day of 2016, on a Monday."""
    sundays = np.array(["2015-12-27T10:00", "2015-06-21T10:00"], dtype="datetime64[s]")
    holidays = np.array(["2016-12-26T10:00", "2016-05-16T10:00"], dtype="datetime64[s]")
    for days in (sundays, holidays):
        for special in (False, True):
            festive, ordinary = day_features(days, seasons=False, festive_weekends=special)
            assert (festive != ordinary).any() == special


@pytest.mark.parametrize(
    ("date", "reference"),
    [
        ("2015-05-15", "2024-05-10"),  # Friday after Ascension
        ("2016-05-26", "2024-05-30"),  # Corpus Christi
        ("2015-04-06", "1999-04-05"),  # Easter Monday
        ("2016-12-29", "2044-12-29"),  # a Thursday between the years
        ("2016-05-16", "2050-05-30"),  # Whit Monday
    ],
)
def test_other_years_have_the_same_kinds_of_days(date: str, reference: str) -> None:
    assert same(date, reference)


def test_seasons_are_optional() -> None:
    winter, summer = "2015-02-10", "2015-07-14"
    assert same(winter, summer)
    assert not same(winter, summer, seasons=True)


def test_a_season_repeats_after_a_year_and_not_before() -> None:
    tuesdays = np.arange("2015-01-13", "2017-12-12", 7, dtype="datetime64[D]").astype(str)
    usual = (features_of(*tuesdays) == features_of(ordinary_day(tuesdays[0]))).all(1)
    ordinary = list(tuesdays[usual])
    rows = features_of(*ordinary, seasons=True)
    apart = np.array(ordinary, dtype="datetime64[D]") - np.datetime64(ordinary[0])
    weeks, away = apart.astype(int) // 7, np.abs(rows - rows[0]).max(1)
    assert away[weeks % 52 == 0].max() < 0.2
    assert away[(weeks % 52 > 8) & (weeks % 52 < 44)].min() > 0.2


@pytest.mark.parametrize("seasons", [True, False])
def test_features_depend_only_on_the_date_in_berlin(seasons: bool) -> None:
    """Every five hours of two years, including four nights with a change of clocks."""
    time = np.arange("2014-12-31", "2017-01-02", np.timedelta64(5, "h"), dtype="datetime64[s]")
    local = [moment.replace(tzinfo=UTC).astimezone(BERLIN) for moment in time.astype(datetime)]
    dates = [str(moment.date()) for moment in local]
    np.testing.assert_array_equal(day_features(time, seasons), features_of(*dates, seasons=seasons))


@pytest.mark.parametrize(("first", "n_hours"), [("2016-03-26T23", 23), ("2016-10-29T22", 25)])
def test_days_with_a_change_of_clocks_are_one_day_each(first: str, n_hours: int) -> None:
    """Both are Sundays, so the hours before and after belong to other days."""
    start = np.datetime64(first, "s")
    rows = day_features(start + np.arange(-4, 4 * n_hours + 4) * np.timedelta64(900, "s"), False)
    assert (rows[4:-4] == rows[4]).all()
    assert (rows[:4] != rows[4]).any(1).all()
    assert (rows[-4:] != rows[4]).any(1).all()


def test_features_keep_the_shape_of_their_input() -> None:
    time = np.arange("2015-12-01", "2016-01-06", np.timedelta64(18, "h"), dtype="datetime64[s]")
    flat = day_features(time)
    table = day_features(time.reshape(2, 3, -1))
    assert table.shape == (2, 3, len(time) // 6, flat.shape[1])
    np.testing.assert_array_equal(table.reshape(flat.shape), flat)
    for k, row in enumerate(flat):
        np.testing.assert_array_equal(day_features(time[k : k + 1])[0], row)
