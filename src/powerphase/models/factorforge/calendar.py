"""Calendar features: weekday, holidays, the end of the year and the season of each moment."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int, Shaped

from powerphase.clock import (
    GERMANY,
    Calendar,
    day_of_week,
    day_of_year,
    holiday_share,
    local_time,
)

YEAR_DAYS = 365.25
SUNDAY = 6
DAY = np.timedelta64(1, "D")


def day_features(
    time: Shaped[np.ndarray, "*S"],
    seasons: bool = True,
    festive_weekends: bool = False,
    calendar: Calendar = GERMANY,
) -> Float[np.ndarray, "*S F"]:
    """The features of each moment's local day.

    First the weekday, where a holiday counts as a Sunday for the share of people who have it, and
    whether the day is a holiday on another weekday. Then features of working days: the day before
    or after a holiday, a bridge between a holiday and a weekend, the days from Christmas Eve to New
    Year, both Eves, and the weeks around them. Last the season, and the season on weekends.

    Args:
        time: moments, UTC.
        seasons: whether to include the season, which needs a record of at least a year.
        festive_weekends: whether the features of Christmas also apply to days off.
        calendar: whose days and holidays these are.
    """
    local_dates = local_time(time, calendar).astype("datetime64[D]")
    dates, index = np.unique(local_dates, return_inverse=True)
    noon = dates.astype("datetime64[s]") + np.timedelta64(12, "h")
    at_noon = replace(calendar, zone="UTC")  # these are local times already
    weekday, holiday = day_of_week(noon, at_noon), holiday_share(noon, at_noon)
    yesterday, tomorrow = (holiday_share(noon + day, at_noon) for day in (-DAY, DAY))
    working = (weekday < 5) * (1 - holiday)
    weekdays = (1 - holiday)[:, None] * np.eye(7)[weekday]
    weekdays[:, SUNDAY] += holiday
    bridge = ((weekday == 4) * yesterday + (weekday == 0) * tomorrow) * working
    columns = [
        weekdays,
        holiday * (weekday != SUNDAY),
        yesterday * working,
        tomorrow * working,
        bridge,
        *(period * (1 if festive_weekends else working) for period in _year_end(dates)),
    ]
    if seasons:
        season = _season(day_of_year(noon, at_noon))
        weekend = weekdays[:, 5:].sum(1, keepdims=True)
        columns += [season, weekend * season[:, :2]]
    features = np.column_stack([np.asarray(column, dtype=float) for column in columns])
    return features[index.reshape(time.shape)]


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


def _season(day: Int[np.ndarray, " D"]) -> Float[np.ndarray, "D 4"]:
    """Two harmonics of the year."""
    angle = 2 * np.pi * day / YEAR_DAYS
    return np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)], axis=1)
