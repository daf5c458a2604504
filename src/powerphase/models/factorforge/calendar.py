"""What kind of day it is: the calendar as numbers, one row per moment."""

import numpy as np
from jaxtyping import Float, Shaped

from powerphase.clock import berlin_time, day_of_week, day_of_year, holiday_share

YEAR_DAYS = 365.25
SUNDAY = 6
DAY = np.timedelta64(1, "D")


def day_features(
    time: Shaped[np.ndarray, "*S"], seasons: bool = True, festive_weekends: bool = False
) -> Float[np.ndarray, "*S F"]:
    """The features of each moment's day in Berlin.

    The weekday, where a holiday is a Sunday as far as people have it; whether it is a holiday that
    is no Sunday; then, as far as it is a day of work, the day before or after one, a bridge between
    one and a weekend, the days from Christmas Eve to New Year, both Eves, and the weeks around
    them; the season, and that of weekends.

    Args:
        time: moments, UTC.
        seasons: whether to tell the season; a record of less than a year cannot teach it.
        festive_weekends: whether the days around Christmas are special on days off too.
    """
    dates, place = np.unique(berlin_time(time).astype("datetime64[D]"), return_inverse=True)
    noon = dates.astype("datetime64[s]") + np.timedelta64(12, "h")  # the same day in Berlin
    weekday, holiday = day_of_week(noon), holiday_share(noon)
    yesterday, tomorrow = holiday_share(noon - DAY), holiday_share(noon + DAY)
    works = (weekday < 5) * (1 - holiday)
    kinds = (1 - holiday)[:, None] * np.eye(7)[weekday]
    kinds[:, SUNDAY] += holiday
    bridge = ((weekday == 4) * yesterday + (weekday == 0) * tomorrow) * works
    columns = [
        kinds,
        holiday * (weekday != SUNDAY),
        yesterday * works,
        tomorrow * works,
        bridge,
        *(period * (1 if festive_weekends else works) for period in _year_end(dates)),
    ]
    if seasons:
        season = _season(noon)
        weekend = kinds[:, 5:].sum(1, keepdims=True)
        columns += [season, weekend * season[:, :2]]
    found = np.column_stack([np.asarray(column, dtype=float) for column in columns])
    return found[place.reshape(time.shape)]


def _year_end(dates: Shaped[np.ndarray, " D"]) -> list[Shaped[np.ndarray, " D"]]:
    """From Christmas Eve to New Year; the Eves; from 20 December to 6 January."""
    month = dates.astype("datetime64[M]").astype(int) % 12 + 1
    day = (dates - dates.astype("datetime64[M]")).astype(int) + 1
    december, january = month == 12, month == 1
    return [
        (december & (day >= 24)) | (january & (day == 1)),
        december & ((day == 24) | (day == 31)),
        (december & (day >= 20)) | (january & (day <= 6)),
    ]


def _season(time: Shaped[np.ndarray, " D"]) -> Float[np.ndarray, "D 4"]:
    """Two harmonics of the year."""
    angle = 2 * np.pi * day_of_year(time) / YEAR_DAYS
    return np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)], axis=1)
