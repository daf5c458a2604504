"""Day-ahead forecasts made from the true signals, with errors as large as those of operators.

A service issues forecasts every six hours. An error grows with lead time and changes slowly within
an issue; that of the wind also has the weather arrive early or late. The errors of two issues are
independent. All are drawn on a scale on which a signal can take any value (logarithm of the load,
logit of sun and wind as a share of the most that is possible), so that a forecast is never
impossible. The constants were chosen so that the errors over a day are those of published
forecasts; docs/known.md compares them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int, Shaped

from powerphase.axes import STEP_S, STEPS_PER_DAY
from powerphase.errors import SignalError
from powerphase.issued import Issued, IssuedSeries
from powerphase.resolution import HOUR_S
from powerphase.seeds import stream
from powerphase.synthesis.signals import Signals

ISSUE_STEPS = 6 * HOUR_S // STEP_S
"""Steps from one issue to the next."""

SUN_DAYS = 31
"""The most sun of a time of day is the largest value of so many days around it."""

NIGHT = 0.01
"""Below this share of the largest value, the most sun of a time of day counts as none."""

EDGE = 0.003
"""The least distance of a share of what is possible from 0 and 1, whose logits are infinite."""


@dataclass(frozen=True)
class ErrorProcess:
    """The error of a forecast: Gaussian with mean 0, smooth, larger for later times."""

    name: str
    at_once: float
    """Standard deviation at lead time 0, on the scale of the signal."""
    a_day_ahead: float
    """The same at 24 hours; in between and beyond, it grows with the square root of lead time."""
    memory_h: float
    """How long an error lasts."""
    timing_h: float = 0.0
    """Standard deviation of how much too late or early the forecast weather arrives [h]."""
    timing_memory_h: float = 24.0

    def spread(self, lead_h: Float64[np.ndarray, " L"]) -> Float64[np.ndarray, " L"]:
        """Standard deviation at each lead time."""
        return self.at_once + (self.a_day_ahead - self.at_once) * np.sqrt(lead_h / 24)


LOAD = ErrorProcess("load", at_once=0.015, a_day_ahead=0.038, memory_h=5.0)
SOLAR = ErrorProcess("solar", at_once=0.35, a_day_ahead=0.85, memory_h=5.0)
WIND = ErrorProcess("wind", at_once=0.10, a_day_ahead=0.34, memory_h=5.0, timing_h=1.5)


def day_ahead_forecasts(
    signals: Signals, horizon: int, *, wind: float = 1.0, seed: int = 0
) -> Issued:
    """Forecasts of the signals [MW], issued every six hours from the record's start on.

    Args:
        signals: what happened.
        horizon: for how many steps a window that starts at any time must have forecasts.
        wind: the error of the wind forecast in units of a usual one: 0 for a perfect forecast; a
            forecast with an error of 100 says nothing of the wind.
        seed: fixes the errors.
    """
    if not 0 <= wind < np.inf:
        raise SignalError(f"an error of the wind of {wind:g} usual ones; give 0 or more")
    # What was known of past steps was known a day ahead, however short a window's horizon is.
    issues = _Issues.of(signals.time, max(horizon, STEPS_PER_DAY) + ISSUE_STEPS)
    load, solar, wind_mw = signals.values_mw.T
    most_wind = np.full_like(wind_mw, wind_mw.max())
    return Issued(
        [
            _series(issues, LOAD, load, None, 1.0, seed),
            _series(issues, SOLAR, solar, _most_sun(solar), 1.0, seed),
            _series(issues, WIND, wind_mw, most_wind, wind, seed),
        ]
    )


@dataclass(frozen=True, eq=False)
class _Issues:
    """When I forecasts are issued, and for which steps."""

    time: Shaped[np.ndarray, " S"]
    first: Int[np.ndarray, " I"]
    """The step at which each is issued, from which on it holds."""
    n_leads: int

    @classmethod
    def of(cls, time: Shaped[np.ndarray, " S"], n_leads: int) -> "_Issues":
        return cls(time, np.arange(0, len(time), ISSUE_STEPS), n_leads)

    @property
    def steps(self) -> Int[np.ndarray, "I L"]:
        """The steps of each issue; those of the last ones lie partly after the record."""
        return self.first[:, None] + np.arange(self.n_leads)

    @property
    def lead_h(self) -> Float64[np.ndarray, " L"]:
        return np.arange(self.n_leads) * (STEP_S / HOUR_S)

    def noise(self, seed: int, label: str, memory_h: float) -> Float64[np.ndarray, "I L"]:
        """Smooth noise of variance 1 along each issue, which depends on when it is issued."""
        shocks = [
            stream(seed, "day ahead", label, str(time)).standard_normal(self.n_leads)
            for time in self.time[self.first]
        ]
        return np.asarray(shocks) @ _smooth(self.lead_h, memory_h).T


def _smooth(lead_h: Float64[np.ndarray, " L"], memory_h: float) -> Float64[np.ndarray, "L L"]:
    """The factor that turns white noise into noise with a Matérn 3/2 correlation."""
    apart = np.sqrt(3) * np.abs(lead_h[:, None] - lead_h) / memory_h
    correlation = (1 + apart) * np.exp(-apart)
    return np.linalg.cholesky(correlation + 1e-9 * np.eye(len(lead_h)))


def _series(
    issues: _Issues,
    process: ErrorProcess,
    truth: Float[np.ndarray, " S"],
    most: Float[np.ndarray, " S"] | None,
    scale: float,
    seed: int,
) -> IssuedSeries:
    """The forecasts of one signal, as true values plus the change that an error makes."""
    x, possible = _to_scale(truth, most)
    mean, variance = (x[possible].mean(), x[possible].var()) if possible.any() else (0.0, 0.0)
    steps = np.minimum(issues.steps, len(truth) - 1)
    moved = _moved(issues, process, x, scale, seed)
    spread = scale * process.spread(issues.lead_h)
    error = spread * issues.noise(seed, process.name, process.memory_h)
    # Shrunk so that a forecast varies as much as the truth, however large its error is.
    share = np.sqrt(variance / (variance + spread**2)) if variance else 0.0
    forecast = mean + (moved - mean + error) * share
    change = _to_mw(forecast, most, steps) - _to_mw(x[steps], most, steps)
    change[~possible[steps]] = 0.0
    high = np.inf if most is None else most[steps]
    # Platforms differ in the last bits; whole MW make the content hash the same.
    values = np.clip(truth[steps] + change, 0, high).round().astype(np.float32)
    inside = issues.steps < len(truth)
    issued = np.broadcast_to(issues.time[issues.first][:, None], steps.shape)
    return IssuedSeries(
        process.name, "MW", issued[inside], issues.time[steps[inside]], values[inside]
    )


def _moved(
    issues: _Issues,
    process: ErrorProcess,
    x: Float64[np.ndarray, " S"],
    scale: float,
    seed: int,
) -> Float64[np.ndarray, "I L"]:
    """The true signal, on its scale, with the weather too early or too late."""
    at = issues.steps.astype(np.float64)
    if process.timing_h:
        label = f"{process.name} timing"
        late_h = scale * process.timing_h * issues.noise(seed, label, process.timing_memory_h)
        at += late_h * (HOUR_S / STEP_S) * np.sqrt(issues.lead_h / 24)
    return np.interp(at, np.arange(len(x)), x)


def _most_sun(solar: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """The most sun that is possible: the largest value of the time of day in the days around."""
    from scipy.ndimage import maximum_filter1d  # takes as long to load as the rest of the package

    by_day = solar.reshape(-1, STEPS_PER_DAY)
    return np.asarray(maximum_filter1d(by_day, SUN_DAYS, axis=0, mode="nearest").ravel())


def _to_scale(
    truth: Float[np.ndarray, " S"], most: Float[np.ndarray, " S"] | None
) -> tuple[Float64[np.ndarray, " S"], Shaped[np.ndarray, " S"]]:
    """A signal on the scale of its errors, and in which steps it can be other than zero."""
    if most is None:
        return np.log(truth), np.ones(len(truth), bool)
    possible = most > NIGHT * most.max()
    share = np.clip(truth / np.where(possible, most, 1.0), EDGE, 1 - EDGE)
    return np.where(possible, np.log(share / (1 - share)), 0.0), possible


def _to_mw(
    x: Float64[np.ndarray, "I L"],
    most: Float[np.ndarray, " S"] | None,
    steps: Int[np.ndarray, "I L"],
) -> Float64[np.ndarray, "I L"]:
    """Values on the scale of errors as MW."""
    return np.exp(x) if most is None else most[steps] / (1 + np.exp(-x))
