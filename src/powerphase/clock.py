"""Local time in Berlin and the German calendar, from times in UTC.

Records and forecast windows have UTC times; people switch on lights and go to work by local time.
Each function takes UTC times, a `datetime64` array with any number of axes, and returns an array of
the same shape.
"""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from pandas.tseries.offsets import Easter

_FIXED_HOLIDAYS = ("01-01", "05-01", "10-03", "12-25", "12-26")
_DAYS_AFTER_EASTER = (-2, 1, 39, 50)  # Good Friday, Easter Monday, Ascension, Whit Monday
_ONE_OFF_HOLIDAYS = ("2017-10-31",)  # 500 years of the Reformation

# Holidays of some states, with the share of Germans who live there (2015, rounded).
_FIXED_REGIONAL = {"01-06": 0.32, "08-15": 0.1, "10-31": 0.15, "11-01": 0.57}
_REGIONAL_DAYS_AFTER_EASTER = {0: 1.0, 49: 1.0, 60: 0.64}  # Easter, Whit Sunday, Corpus Christi


def berlin_time(time: Shaped[np.ndarray, "*S"]) -> Shaped[np.ndarray, "*S"]:
    """The date and time on a wall clock in Berlin, as `datetime64[s]` without a zone.

    The hour from 2 to 3 is missing on one night in March and occurs twice on one in October.
    """
    utc = pd.DatetimeIndex(time.ravel().astype("datetime64[s]"), tz="UTC")
    wall = utc.tz_convert("Europe/Berlin").tz_localize(None)
    return wall.to_numpy().astype("datetime64[s]").reshape(time.shape)


def hour_of_day(time: Shaped[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
    """Hours since midnight in Berlin, in [0, 24); 01:15 is 1.25."""
    wall = berlin_time(time)
    since_midnight = wall - wall.astype("datetime64[D]")
    return since_midnight.astype(np.float64) / 3600


def quarter_of_day(time: Shaped[np.ndarray, "*S"]) -> Int[np.ndarray, "*S"]:
    """The quarter-hour of the day in Berlin, from 0 at midnight to 95."""
    return np.floor(hour_of_day(time) * 4).astype(np.int64)


def day_of_week(time: Shaped[np.ndarray, "*S"]) -> Int[np.ndarray, "*S"]:
    """The weekday in Berlin: Monday is 0, Sunday 6."""
    days = berlin_time(time).astype("datetime64[D]").astype(np.int64)
    return np.mod(days + 3, 7)  # the epoch, 1970-01-01, was a Thursday


def day_of_year(time: Shaped[np.ndarray, "*S"]) -> Int[np.ndarray, "*S"]:
    """The day of the year in Berlin: 1 January is 1, 31 December 365 or 366."""
    dates = berlin_time(time).astype("datetime64[D]")
    return (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1


def is_public_holiday(time: Shaped[np.ndarray, "*S"]) -> Bool[np.ndarray, "*S"]:
    """Whether the day in Berlin is a public holiday in all sixteen German states.

    Holidays of single states do not count, nor do Easter and Whit Sunday, which are Sundays anyway.
    Correct from 1995 on; the same rules are applied to earlier years, which had other holidays.
    """
    dates = berlin_time(time).astype("datetime64[D]")
    years = np.unique(dates.astype("datetime64[Y]")).astype(str)
    holidays = [day for year in years for day in _holidays(int(year))]
    return np.isin(dates, np.array(holidays, dtype="datetime64[D]"))


def holiday_share(time: Shaped[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
    """The share of Germans who have a public holiday on the day in Berlin, from 0 to 1.

    Epiphany, Corpus Christi, Assumption, Reformation Day and All Saints' are holidays in some
    states; Easter and Whit Sunday count for all. Every year follows the rules of 2015.
    """
    dates = berlin_time(time).astype("datetime64[D]")
    share = is_public_holiday(time).astype(np.float64)
    for year in np.unique(dates.astype("datetime64[Y]")).astype(str):
        easter = _easter(int(year))
        regional = {np.datetime64(f"{year}-{day}"): part for day, part in _FIXED_REGIONAL.items()}
        for days, part in _REGIONAL_DAYS_AFTER_EASTER.items():
            regional[easter + np.timedelta64(days, "D")] = part
        for date, part in regional.items():
            share = np.where(dates == date, np.maximum(share, part), share)
    return share


def _easter(year: int) -> np.datetime64:
    return np.datetime64((pd.Timestamp(year, 1, 1) + Easter()).date())


def _holidays(year: int) -> list[np.datetime64]:
    """The nationwide holidays of one year, and the one-off holidays of all years."""
    easter = _easter(year)
    moving = [easter + np.timedelta64(days, "D") for days in _DAYS_AFTER_EASTER]
    fixed = [np.datetime64(f"{year}-{day}") for day in _FIXED_HOLIDAYS]
    return moving + fixed + [np.datetime64(day) for day in _ONE_OFF_HOLIDAYS]
