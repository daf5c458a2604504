"""Load, solar and wind made by code alone: the record that needs no download.

It behaves like Germany's of 2015 and 2016 without holding any of it. The calendar, the sun and
four Gaussian processes make it; the constants below were fitted so that, on average over seeds, its
means, quantiles, autocorrelations and changes from day to day and week to week come close to the
published ones. Years after 2016 get their own calendar and weather, but no growth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from jaxtyping import Bool, Float, Shaped
from scipy.interpolate import CubicSpline
from scipy.signal import lfilter

from powerphase.axes import STEP_S, STEPS_PER_DAY
from powerphase.clock import berlin_time, day_of_week, hour_of_day, is_public_holiday
from powerphase.errors import SignalError
from powerphase.seeds import stream
from powerphase.synthesis.signals import Signals

ATTRIBUTION = (
    "Synthetic load, solar and wind, made by powerphase from a seed and free of any data file; "
    "calibrated to published statistics of the German record of 2015 and 2016."
)

ORIGIN = np.datetime64("2015-01-01T00:00:00", "s")
"""All noise starts here, whatever days are asked for; there is no record before."""

SPIN_UP = 60 * STEPS_PER_DAY
"""Steps of noise thrown away before the origin, until it has forgotten its start from zero."""

_DAY, _YEAR = np.timedelta64(1, "D"), np.timedelta64(1, "Y")


@dataclass(frozen=True)
class Noise:
    """Stationary Gaussian noise around 0: it remembers for `slow_h`, and `fast_h` smooths it."""

    name: str
    spread: float
    slow_h: float
    fast_h: float

    def draw(self, time: Shaped[np.ndarray, " S"], seed: int) -> Float[np.ndarray, " S"]:
        """The noise at each step: autoregressive of order two, with standard deviation `spread`."""
        n_steps = SPIN_UP + 1 + int((time[-1] - ORIGIN) // np.timedelta64(STEP_S, "s"))
        shocks = stream(seed, "synthetic", self.name).standard_normal(n_steps)
        slow, fast = np.exp(-STEP_S / 3600 / np.array([self.slow_h, self.fast_h]))
        total, product = slow + fast, slow * fast
        variance = (1 + product) / ((1 - product) * ((1 + product) ** 2 - total**2))
        series = lfilter([self.spread / np.sqrt(variance)], [1, -total, product], shocks)
        return np.asarray(series[-time.size :])


# A day of load by hour of the Berlin clock: what a Sunday needs, what a full working day adds, and
# what lamps add while it is dark.
REST_GW = (
    40.7, 39.4, 38.4, 38.1, 37.4, 37.0, 38.0, 40.1, 43.3, 46.1, 48.5, 50.6,
    50.2, 48.0, 46.3, 45.2, 44.7, 45.9, 47.3, 47.9, 47.0, 45.9, 45.0, 43.0,
)  # fmt: skip
WORK_GW = (
    6.2, 6.2, 6.3, 6.8, 8.2, 11.1, 17.0, 21.7, 22.5, 21.1, 19.9, 18.7,
    18.3, 19.9, 20.4, 20.4, 19.0, 16.9, 14.6, 12.9, 10.8, 8.7, 7.3, 6.3,
)  # fmt: skip
LAMPS_GW = (
    0.7, 0.0, 0.0, 0.0, 0.7, 1.4, 2.8, 4.2, 4.2, 4.2, 4.2, 4.2,
    4.2, 4.2, 4.2, 5.6, 7.1, 7.8, 7.1, 5.6, 4.2, 3.5, 2.8, 1.4,
)  # fmt: skip
LOAD_SEASON = 0.060
LOAD_DRIFT = Noise("load drift", spread=0.0242, slow_h=150.0, fast_h=10.0)
LOAD_JITTER = Noise("load jitter", spread=0.0143, slow_h=2.0, fast_h=0.1)

# Work done on a day, as a share of a full working day: by weekday, and by what else the day is.
WORK_BY_WEEKDAY = np.array([1.0, 1.0, 1.0, 1.0, 0.91, 0.27, 0.0])
HOLIDAY, EVE, CHRISTMAS_WEEK, BRIDGE_DAY, EPIPHANY_WEEK = 0.0, 0.1, 0.3, 0.4, 0.87

# Panels stand at sixteen sites, so that dawn crosses the country instead of falling on it.
SITES_LATITUDE, SITES_LONGITUDE = np.radians(
    [(latitude, longitude) for latitude in (48, 50, 52, 54) for longitude in (8, 10, 12, 14)]
).T
PANEL_TILT = np.radians(33.8)
DIFFUSE_SHARE = 0.36
AIR_EXPONENT = 0.47
SOLAR_CAPACITY_MW = 29.5e3
WIND_CAPACITY_MW = 40.0e3

# Clearness of the sky and strength of the wind live on the logistic scale: 0 is half of what can
# be, and no value is beyond capacity.
CLEARNESS_MEAN, CLEARNESS_SUMMER, CLEARNESS_PLATEAU = 0.556, 0.928, 0.313
CLOUDS = Noise("clouds", spread=1.15, slow_h=29.0, fast_h=2.5)
WIND_MEAN, WIND_WINTER, WIND_NIGHT = -1.61, 0.687, 0.067
GUSTS = Noise("wind", spread=1.09, slow_h=38.0, fast_h=1.64)


def synthetic_signals(seed: int = 0, start: str = "2015-01-01", end: str = "2016-12-31") -> Signals:
    """Load, solar and wind [MW] for the UTC days from `start` to `end`, both included.

    A value depends on the seed and on its own moment, not on the days asked for around it.
    """
    time = _steps(start, end)
    values_mw = np.stack([_load_mw(time, seed), _solar_mw(time, seed), _wind_mw(time, seed)], 1)
    # Platforms differ in the last bits of exp and cos; rounding keeps that out of the content hash.
    return Signals(time, values_mw.round(2), "synthetic", ATTRIBUTION)


def _steps(start: str, end: str) -> Shaped[np.ndarray, " S"]:
    """The start of every step of the days from `start` to `end`, `datetime64[s]`, UTC."""
    try:
        first, last = (np.datetime64(date.fromisoformat(day), "s") for day in (start, end))
    except ValueError as error:
        raise SignalError(
            f"synthetic signals: {error}; give the first and the last day as YYYY-MM-DD"
        ) from error
    if not ORIGIN <= first <= last:
        raise SignalError(
            f"synthetic signals: no record from {start!r} to {end!r}; choose a first day from "
            f"{ORIGIN.astype('datetime64[D]')} on and a last day not before it"
        )
    return np.arange(first, last + _DAY, np.timedelta64(STEP_S, "s"))


def _load_mw(time: Shaped[np.ndarray, " S"], seed: int) -> Float[np.ndarray, " S"]:
    """Load by calendar, clock, daylight and season, times a factor that wanders about 1."""
    hour = hour_of_day(time)
    day_gw = (
        _through(REST_GW, hour)
        + _through(WORK_GW, hour) * _work(time)
        + _through(LAMPS_GW, hour) * _darkness(time)
    )
    season = 1 + LOAD_SEASON * np.cos(_year_angle(time))
    noise = LOAD_DRIFT.draw(time, seed) + LOAD_JITTER.draw(time, seed)
    return 1e3 * day_gw * season * np.exp(noise)


def _solar_mw(time: Shaped[np.ndarray, " S"], seed: int) -> Float[np.ndarray, " S"]:
    """Solar power under a clear sky, times the share that the clouds let through."""
    year = _year_angle(time)
    clearness = (
        CLEARNESS_MEAN
        - CLEARNESS_SUMMER * np.cos(year)
        - CLEARNESS_PLATEAU * np.cos(2 * year)
        + CLOUDS.draw(time, seed)
    )
    return SOLAR_CAPACITY_MW * _clear_sky(time) * _logistic(clearness)


def _wind_mw(time: Shaped[np.ndarray, " S"], seed: int) -> Float[np.ndarray, " S"]:
    """Wind power as a logistic of Gaussian weather: skewed, above zero and below capacity."""
    strength = (
        WIND_MEAN
        + WIND_WINTER * np.cos(_year_angle(time))
        + WIND_NIGHT * np.cos(2 * np.pi * (hour_of_day(time) + 1) / 24)
        + GUSTS.draw(time, seed)
    )
    return WIND_CAPACITY_MW * _logistic(strength)


def _work(time: Shaped[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Work done, as a share of a full working day.

    Nights belong to the evening before: between 1 and 7 h a day takes over from the last.
    """
    dates = berlin_time(time).astype("datetime64[D]")
    days = np.arange(dates[0] - _DAY, dates[-1] + _DAY)
    share = _work_by_day(days)
    today = (dates - days[0]).astype(np.int64)
    risen = np.clip((hour_of_day(time) - 1) / 6, 0, 1)
    risen = risen**2 * (3 - 2 * risen)
    return share[today - 1] * (1 - risen) + share[today] * risen


def _work_by_day(days: Shaped[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
    """Work done on each date, as a share of a full working day."""
    year = days.astype("datetime64[Y]")
    days_gone = (days - year).astype(np.int64)
    days_left = ((year + _YEAR).astype("datetime64[D]") - days).astype(np.int64)
    kinds = [
        is_public_holiday(_noon(days)),
        np.isin(days_left, (8, 1)),
        days_left <= 8,
        _is_free(days - _DAY) & _is_free(days + _DAY),
        days_gone <= 5,
    ]
    share = np.select(kinds, [HOLIDAY, EVE, CHRISTMAS_WEEK, BRIDGE_DAY, EPIPHANY_WEEK], 1.0)
    return WORK_BY_WEEKDAY[day_of_week(_noon(days))] * share


def _is_free(days: Shaped[np.ndarray, " D"]) -> Bool[np.ndarray, " D"]:
    """Whether each date is a weekend or a public holiday."""
    noon = _noon(days)
    return is_public_holiday(noon) | (day_of_week(noon) >= 5)


def _noon(days: Shaped[np.ndarray, " D"]) -> Shaped[np.ndarray, " D"]:
    """A moment in UTC that falls on each date in Berlin, summer and winter."""
    return days.astype("datetime64[s]") + np.timedelta64(11, "h")


def _clear_sky(time: Shaped[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Power of all panels under a clear sky as a share of capacity; exactly 0 at night."""
    height = np.maximum(_sun_height(time, SITES_LATITUDE, SITES_LONGITUDE), 0)
    # A panel tilted to the south sees the sun as the ground does that far south.
    facing = np.maximum(_sun_height(time, SITES_LATITUDE - PANEL_TILT, SITES_LONGITUDE), 0)
    direct = facing * height**AIR_EXPONENT
    return np.mean(DIFFUSE_SHARE * height + (1 - DIFFUSE_SHARE) * direct, axis=-1)


def _darkness(time: Shaped[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """How dark it is in the middle of the country, from 0 by day to 1 by night."""
    height = _sun_height(time, np.radians([51.0]), np.radians([10.0]))[:, 0]
    return _logistic(-height / 0.06)


def _sun_height(
    time: Shaped[np.ndarray, " S"],
    latitude: Float[np.ndarray, " sites"],
    longitude: Float[np.ndarray, " sites"],
) -> Float[np.ndarray, "S sites"]:
    """Sine of the sun's elevation in the middle of each step, sites in radians north and east.

    The low-precision formulas of the Astronomical Almanac, good to about 0.01 degrees.
    """
    seconds = (time - np.datetime64("2000-01-01T12:00:00", "s")).astype(np.float64) + STEP_S / 2
    n_days = seconds / 86_400
    anomaly = np.radians(357.528 + 0.9856003 * n_days)
    ecliptic = np.radians(
        280.460 + 0.9856474 * n_days + 1.915 * np.sin(anomaly) + 0.020 * np.sin(2 * anomaly)
    )
    axis = np.radians(23.439)
    declination = np.arcsin(np.sin(axis) * np.sin(ecliptic))
    right_ascension = np.arctan2(np.cos(axis) * np.sin(ecliptic), np.cos(ecliptic))
    hour_angle = np.radians(280.4606 + 360.9856474 * n_days) - right_ascension
    return np.sin(latitude) * np.sin(declination)[:, None] + np.cos(latitude) * (
        np.cos(declination)[:, None] * np.cos(hour_angle[:, None] + longitude)
    )


def _year_angle(time: Shaped[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """The season as an angle: 0 in the first days of January, pi in early July."""
    return 2 * np.pi * ((time - ORIGIN).astype(np.float64) / 86_400 - 4) / 365.25


def _through(hourly: Sequence[float], hour: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """A smooth daily curve through 24 hourly values, read in the middle of each step."""
    knots = np.arange(25) + 0.5
    curve = CubicSpline(knots, [*hourly, hourly[0]], bc_type="periodic")
    return np.asarray(curve(hour + STEP_S / 7200))


def _logistic(x: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """The share of what can be, between 0 and 1."""
    return 1 / (1 + np.exp(-x))
