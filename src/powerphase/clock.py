"""Local time and the calendar of a record's country, from times in UTC.

Records and forecast windows have UTC times; people switch on lights and go to work by local time.
Each function takes UTC times, a `datetime64` array with any number of axes, and returns an array of
the same shape. The calendar is Germany's, unless another one is given.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from zoneinfo import available_timezones

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Shaped
from pandas.tseries.offsets import Easter

from powerphase.errors import CalendarError

NO_COUNTRY = "none"
"""What stands for no country, whose calendar has no holidays."""

_DAY_S = 86_400

_FIXED_HOLIDAYS = ("01-01", "05-01", "10-03", "12-25", "12-26")
_DAYS_AFTER_EASTER = (-2, 1, 39, 50)  # Good Friday, Easter Monday, Ascension, Whit Monday
_ONE_OFF_HOLIDAYS = ("2017-10-31",)  # 500 years of the Reformation

# Holidays of some states, with the share of Germans who live there (2015, rounded).
_FIXED_REGIONAL = {"01-06": 0.32, "08-15": 0.1, "10-31": 0.15, "11-01": 0.57}
_REGIONAL_DAYS_AFTER_EASTER = {0: 1.0, 49: 1.0, 60: 0.64}  # Easter, Whit Sunday, Corpus Christi


@dataclass(frozen=True)
class Calendar:
    """Whose holidays the people of a record have, and by which clock they live."""

    country: str | None = "DE"
    """The code of ISO 3166, such as `DE`; None for no holidays."""
    zone: str = "Europe/Berlin"
    """The time zone, as the IANA calls it."""

    def __post_init__(self) -> None:
        # Germany needs no look into the tables, which takes a moment.
        if self.country not in (None, "DE") and self.country not in _countries():
            raise CalendarError(
                f"no holidays are known for the country {self.country!r}; give a code of two "
                f"letters such as DE or FR, or {NO_COUNTRY!r} for no holidays"
            )
        if self.zone not in ("Europe/Berlin", "UTC") and self.zone not in available_timezones():
            raise CalendarError(
                f"{self.zone!r} is not a time zone; give a name such as Europe/Paris or UTC"
            )

    @classmethod
    def of(cls, country: str, zone: str | None = None) -> "Calendar":
        """The calendar of a country, or of `none`; the zone is by default the country's only one.

        Without a country, it is by default UTC.
        """
        if country.lower() == NO_COUNTRY:
            return cls(None, zone or "UTC")
        return cls(country.upper(), zone or _zone_of(country.upper()))

    def override(self, country: str | None, zone: str | None) -> "Calendar":
        """This calendar with another country, zone, or both; None changes nothing.

        Another country brings its own zone; no country keeps this calendar's.
        """
        if country is None:
            return Calendar(self.country, zone or self.zone)
        if country.lower() == NO_COUNTRY:
            return Calendar(None, zone or self.zone)
        return Calendar.of(country, zone)


GERMANY = Calendar()


def local_time(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Shaped[np.ndarray, "*S"]:
    """The date and time on a wall clock, as `datetime64[s]` without a zone.

    In Berlin, the hour from 2 to 3 is missing on one night in March and occurs twice on one in
    October.
    """
    utc = pd.DatetimeIndex(time.ravel().astype("datetime64[s]"), tz="UTC")
    wall = utc.tz_convert(calendar.zone).tz_localize(None)
    return wall.to_numpy().astype("datetime64[s]").reshape(time.shape)


def berlin_time(time: Shaped[np.ndarray, "*S"]) -> Shaped[np.ndarray, "*S"]:
    """The date and time on a wall clock in Berlin, as `local_time` has it."""
    return local_time(time, GERMANY)


def hour_of_day(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Float[np.ndarray, "*S"]:
    """Hours since midnight, in [0, 24); 01:15 is 1.25."""
    wall = local_time(time, calendar)
    since_midnight = wall - wall.astype("datetime64[D]")
    return since_midnight.astype(np.float64) / 3600


def slot_of_day(
    time: Shaped[np.ndarray, "*S"], slots: int = 96, calendar: Calendar = GERMANY
) -> Int[np.ndarray, "*S"]:
    """Which of so many equal parts of the day it is, from 0 at midnight; 96 are quarter-hours."""
    wall = local_time(time, calendar)
    seconds = (wall - wall.astype("datetime64[D]")).astype(np.int64)
    return seconds * slots // _DAY_S


def same_time_starts(
    record: Shaped[np.ndarray, " S"],
    window: Shaped[np.ndarray, " H"],
    calendar: Calendar = GERMANY,
) -> Int[np.ndarray, " D"]:
    """Where a day of the window's length starts in a record at the window's local time of day.

    Each date counts once: on the night when the clock goes back, an hour occurs twice.
    """
    complete = record[: max(0, len(record) - len(window) + 1)]
    wall, first = (local_time(time, calendar) for time in (complete, window[:1]))
    starts = np.flatnonzero(_since_midnight(wall) == _since_midnight(first))
    dates = wall[starts].astype("datetime64[D]")
    return starts[np.unique(dates, return_index=True)[1]]


def _since_midnight(wall: Shaped[np.ndarray, " D"]) -> Shaped[np.ndarray, " D"]:
    return wall - wall.astype("datetime64[D]")


def day_of_week(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Int[np.ndarray, "*S"]:
    """The weekday: Monday is 0, Sunday 6."""
    days = local_time(time, calendar).astype("datetime64[D]").astype(np.int64)
    return np.mod(days + 3, 7)  # the epoch, 1970-01-01, was a Thursday


def day_of_year(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Int[np.ndarray, "*S"]:
    """The day of the year: 1 January is 1, 31 December 365 or 366."""
    dates = local_time(time, calendar).astype("datetime64[D]")
    return (dates - dates.astype("datetime64[Y]")).astype(np.int64) + 1


def is_public_holiday(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Bool[np.ndarray, "*S"]:
    """Whether the day is a public holiday in the whole country.

    Holidays of single states do not count. In Germany, Easter and Whit Sunday do not count either,
    which are Sundays anyway; its rules are correct from 1995 on, and the same rules are applied to
    earlier years, which had other holidays. Those of other countries are from the package
    `holidays`.
    """
    dates = local_time(time, calendar).astype("datetime64[D]")
    if calendar.country is None:
        return np.zeros(dates.shape, dtype=bool)
    years = np.unique(dates.astype("datetime64[Y]")).astype(str)
    holidays = [day for year in years for day in _holidays_of(calendar.country, int(year))]
    return np.isin(dates, np.array(holidays, dtype="datetime64[D]"))


def holiday_share(
    time: Shaped[np.ndarray, "*S"], calendar: Calendar = GERMANY
) -> Float[np.ndarray, "*S"]:
    """The share of people who have a public holiday on the day, from 0 to 1.

    In Germany, Epiphany, Corpus Christi, Assumption, Reformation Day and All Saints' are holidays
    in some states; Easter and Whit Sunday count for all. Every year follows the rules of 2015. In
    other countries only holidays of the whole country count, for all.
    """
    share = is_public_holiday(time, calendar).astype(np.float64)
    if calendar.country != "DE":
        return share
    dates = local_time(time, calendar).astype("datetime64[D]")
    for year in np.unique(dates.astype("datetime64[Y]")).astype(str):
        easter = _easter(int(year))
        regional = {np.datetime64(f"{year}-{day}"): part for day, part in _FIXED_REGIONAL.items()}
        for days, part in _REGIONAL_DAYS_AFTER_EASTER.items():
            regional[easter + np.timedelta64(days, "D")] = part
        for date, part in regional.items():
            share = np.where(dates == date, np.maximum(share, part), share)
    return share


def _countries() -> frozenset[str]:
    """The codes of the countries whose holidays are known."""
    import holidays  # takes a moment to load, and Germany does not need it

    return frozenset(holidays.list_supported_countries(include_aliases=False))


@cache
def _zone_of(country: str) -> str:
    """The only time zone of a country; Büsingen has one of its own, without many people."""
    if country == "DE":
        return GERMANY.zone
    table = files("tzdata").joinpath("zoneinfo", "zone.tab").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines() if not line.startswith("#")]
    zones = sorted(row[2] for row in rows if row[0] == country)
    if len(zones) == 1:
        return zones[0]
    among = f"one of {', '.join(zones[:4])}{', ...' * (len(zones) > 4)}" if zones else "its name"
    raise CalendarError(f"the country {country!r} has {len(zones)} time zones; give {among}")


@cache
def _holidays_of(country: str, year: int) -> tuple[np.datetime64, ...]:
    """The holidays of the whole country in one year."""
    if country == "DE":
        return tuple(_german_holidays(year))
    import holidays

    days = holidays.country_holidays(country, years=year)
    return tuple(np.datetime64(day) for day in days)


def _easter(year: int) -> np.datetime64:
    return np.datetime64((pd.Timestamp(year, 1, 1) + Easter()).date())


def _german_holidays(year: int) -> list[np.datetime64]:
    """The nationwide holidays of one year, and the one-off holidays of all years."""
    easter = _easter(year)
    moving = [easter + np.timedelta64(days, "D") for days in _DAYS_AFTER_EASTER]
    fixed = [np.datetime64(f"{year}-{day}") for day in _FIXED_HOLIDAYS]
    return moving + fixed + [np.datetime64(day) for day in _ONE_OFF_HOLIDAYS]
