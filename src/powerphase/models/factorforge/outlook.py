"""The outlook: what the factors will do, from the calendar and from how they have deviated from it.

First a ridge regression for each quarter-hour of the Berlin day says what the calendar lets one
expect. Then one for each forecast step says how much of the last days' deviation will be left.
How wrong both are together is measured on days that they were not fitted on.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int, Shaped

from powerphase.axes import STEPS_PER_DAY
from powerphase.clock import quarter_of_day
from powerphase.errors import TrainingError
from powerphase.models.factorforge.calendar import YEAR_DAYS, day_features
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import DEVIATION
from powerphase.models.factorforge.ridge import applied, ridge

LEAST_WINDOWS = 8
"""Fewer forecast windows in the training record are too few to learn from."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """What was learned about the factors' future."""

    config: FactorForgeConfig
    calendar: Float64[np.ndarray, "slots W K"]
    """Weights of the day's features by quarter-hour of the Berlin day."""
    weights: Float64[np.ndarray, "H F K"]
    """Weights of what `_inputs` gives, by forecast step."""
    errors: Float64[np.ndarray, "B H K"]
    """What was wrong about the factors of each window that was left out."""
    strength: Float64[np.ndarray, " K"]
    """The ridge that did best there."""
    seasons: bool
    """Whether the record was long enough to know the season."""

    @cached_property
    def covariance(self) -> Float64[np.ndarray, "H K K"]:
        """The errors' covariance at each step, with its neighbours.

        Correlations are of their products, sizes of their mean absolute values, as a Gaussian has
        them: a few days that went wholly wrong must not widen all others.
        """
        steps, errors = self.config.averaged_steps, self.errors
        single = np.einsum("bhk,bhl->hkl", errors, errors) / len(errors)
        product = _smoothed(single.reshape(1, len(single), -1), steps).reshape(single.shape)
        size = DEVIATION * _smoothed(np.abs(errors).mean(0)[None], steps)[0]
        usual = np.sqrt(np.einsum("hkk->hk", product))
        ratio = np.divide(size, usual, out=np.zeros_like(size), where=usual > 0)
        return product * ratio[:, :, None] * ratio[:, None, :]

    def expected(self, time: Shaped[np.ndarray, "*S"]) -> Float64[np.ndarray, "*S K"]:
        """What the calendar lets one expect."""
        return _expected(self.calendar, quarter_of_day(time), self._features(time))

    def _features(self, time: Shaped[np.ndarray, "*S"]) -> Float64[np.ndarray, "*S D"]:
        return day_features(time, self.seasons, self.config.festive_weekends)

    def __call__(
        self, past: Float64[np.ndarray, "B T K"], time: Shaped[np.ndarray, "B steps"]
    ) -> Float64[np.ndarray, "B H K"]:
        """The factors to come, from those of the context and the times of both."""
        expected, n_past = self.expected(time), past.shape[1]
        features = self._features(time[:, n_past:])
        inputs = _inputs(past - expected[:, :n_past], features, self.config)
        left = applied(self.weights, inputs.swapaxes(0, 1)).swapaxes(0, 1)
        return expected[:, n_past:] + left


def learn_outlook(
    series: Float64[np.ndarray, "S K"],
    time: Shaped[np.ndarray, " S"],
    n_past: int,
    horizon: int,
    config: FactorForgeConfig,
) -> Outlook:
    """Learn from a record of factors; one window starts on each of its days."""
    lessons = Lessons(series, time, n_past, horizon, config)
    strengths = np.asarray(config.strengths, dtype=np.float64)
    errors = lessons.errors_left_out(strengths)
    best = (errors**2).mean((1, 2)).argmin(0)
    chosen = np.arange(series.shape[1])
    everything = np.arange(len(lessons.origins))
    calendar, weights = lessons.learned(everything, strengths)
    return Outlook(
        config,
        calendar,
        weights[best, ..., chosen].transpose(1, 2, 0),
        errors[best, ..., chosen].transpose(1, 2, 0),
        strengths[best],
        lessons.seasons,
    )


class Lessons:
    """The windows of a record, as often as some of them are learned from."""

    def __init__(
        self,
        series: Float64[np.ndarray, "S K"],
        time: Shaped[np.ndarray, " S"],
        n_past: int,
        horizon: int,
        config: FactorForgeConfig,
    ) -> None:
        self.series, self.n_past, self.horizon, self.config = series, n_past, horizon, config
        self.origins = checked_origins(len(series), n_past, horizon, config)
        self.seasons = len(series) >= YEAR_DAYS * STEPS_PER_DAY
        self.slots = quarter_of_day(time)
        self.features = day_features(time, self.seasons, config.festive_weekends)

    def learned(
        self,
        windows: Int[np.ndarray, " B"],
        strengths: Float64[np.ndarray, " A"],
        hidden: Int[np.ndarray, "left_out H"] | None = None,
    ) -> tuple[Float64[np.ndarray, "slots W K"], Float64[np.ndarray, "A H F K"]]:
        """The calendar, and for each strength the weights of the steps, from these windows.

        From hidden steps the calendar learns nothing, even if they are the past of a window.
        """
        steps = np.setdiff1d(self._steps(windows), [] if hidden is None else hidden)
        calendar = _learned_calendar(
            self.series[steps], self.slots[steps], self.features[steps], self.config
        )
        inputs, target = self._lesson(calendar, windows)
        by_step = (inputs.swapaxes(0, 1), target.swapaxes(0, 1))
        return calendar, ridge(*by_step, strengths, self._penalty(inputs.shape[-1]))

    def errors_left_out(
        self, strengths: Float64[np.ndarray, " A"]
    ) -> Float64[np.ndarray, "A B H K"]:
        """The errors of each strength on every window, learned without it and its neighbours."""
        n_windows = len(self.origins)
        fold = max(1, min(self.config.fold_days, n_windows // 3))
        # What is left out should not be the past of what is learned from; short records allow less.
        gap = min(-(-(self.n_past + self.horizon) // STEPS_PER_DAY), n_windows // 8)
        folds = [np.arange(k, min(k + fold, n_windows)) for k in range(0, n_windows, fold)]
        return np.concatenate([self.errors(here, gap, strengths) for here in folds], axis=1)

    def errors(
        self, here: Int[np.ndarray, " B"], gap: int, strengths: Float64[np.ndarray, " A"]
    ) -> Float64[np.ndarray, "A B H K"]:
        """The errors on these windows, when neither they nor so many around them are learned."""
        number = np.arange(len(self.origins))
        away = number[(number < here[0] - gap) | (number > here[-1] + gap)]
        targets = self._steps(here)[:, self.n_past :]
        calendar, weights = self.learned(away, strengths, targets)
        inputs, target = self._lesson(calendar, here)
        return target - applied(weights, inputs.swapaxes(0, 1)).swapaxes(1, 2)

    def _lesson(
        self, calendar: Float64[np.ndarray, "slots W K"], windows: Int[np.ndarray, " B"]
    ) -> tuple[Float64[np.ndarray, "B H F"], Float64[np.ndarray, "B H K"]]:
        """Inputs and targets of windows, both as deviations from the calendar."""
        # Of the whole record once: each step is in many windows.
        deviation = self.series - _expected(calendar, self.slots, self.features)
        steps = self._steps(windows)
        past, target = np.split(deviation[steps], [self.n_past], axis=1)
        return _inputs(past, self.features[steps[:, self.n_past :]], self.config), target

    def _steps(self, windows: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B steps"]:
        """Context and horizon of windows."""
        return self.origins[windows, None] + np.arange(-self.n_past, self.horizon)

    def _penalty(self, n_inputs: int) -> Float64[np.ndarray, " F"]:
        """Less for the last steps, which come first among the inputs."""
        favoured = len(self.config.recent_steps) * self.series.shape[1]
        return np.where(np.arange(n_inputs) < favoured, 1 / self.config.recent_favour, 1.0)


def checked_origins(
    n_steps: int, n_past: int, horizon: int, config: FactorForgeConfig
) -> Int[np.ndarray, " B"]:
    """First steps of the windows that a record is learned from: one a day, if there are enough."""
    # Windows begin at the record's first time of day, however long the context is.
    first = -(-n_past // STEPS_PER_DAY) * STEPS_PER_DAY
    origins = np.arange(first, n_steps - horizon + 1, STEPS_PER_DAY)
    if min(config.lag_days) * STEPS_PER_DAY > n_past:
        raise TrainingError(
            f"factorforge looks {min(config.lag_days)} days back or more, and a context has "
            f"{n_past} steps; give it {min(config.lag_days) * STEPS_PER_DAY} or more"
        )
    if len(origins) < LEAST_WINDOWS:
        raise TrainingError(
            f"factorforge learns from {LEAST_WINDOWS} days or more that can be forecast from "
            f"{n_past} steps, and {n_steps} training steps have {len(origins)}; make a longer "
            "record or shorten the context"
        )
    return origins


def _learned_calendar(
    series: Float64[np.ndarray, "S K"],
    slots: Int[np.ndarray, " S"],
    features: Float64[np.ndarray, "S D"],
    config: FactorForgeConfig,
) -> Float64[np.ndarray, "slots W K"]:
    """The weights of the day's features for each quarter-hour of the day."""
    strength = np.array([config.calendar_strength])
    order = np.argsort(slots, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(slots[order])) + 1)
    return np.stack([ridge(features[part], series[part], strength)[0] for part in parts])


def _expected(
    calendar: Float64[np.ndarray, "slots W K"],
    slots: Int[np.ndarray, "*S"],
    features: Float64[np.ndarray, "*S D"],
) -> Float64[np.ndarray, "*S K"]:
    """What the calendar lets one expect at moments in these slots, on days with these features."""
    found = np.empty((slots.size, calendar.shape[-1]))
    flat, rows = slots.ravel(), features.reshape(slots.size, -1)
    for slot in np.unique(flat):
        here = flat == slot
        found[here] = applied(calendar[slot], rows[here])
    return found.reshape(*slots.shape, -1)


def _inputs(
    deviation: Float64[np.ndarray, "B T K"],
    features: Float64[np.ndarray, "B H D"],
    config: FactorForgeConfig,
) -> Float64[np.ndarray, "B H F"]:
    """What a step's forecast looks at: the last steps, the last days, and the day to come."""
    n_windows, n_past, _ = deviation.shape
    horizon = features.shape[1]
    recent = [deviation[:, -steps:].mean(1) for steps in config.recent_steps]
    turn = deviation[:, -4:].mean(1) - deviation[:, -12:-4].mean(1)
    days = [day for day in config.lag_days if day * STEPS_PER_DAY <= n_past]
    lags, means = [], []
    for day in days:
        first = n_past - day * STEPS_PER_DAY
        # A horizon of more than a day looks at the same days again.
        lags.append(deviation[:, first + np.arange(horizon) % STEPS_PER_DAY])
        means.append(deviation[:, first : first + STEPS_PER_DAY].mean(1))
    constant = np.concatenate([*recent, turn, *means], axis=1)
    spread = np.broadcast_to(constant[:, None], (n_windows, horizon, constant.shape[1]))
    return np.concatenate([spread, *lags, features], axis=2)


def _smoothed(series: Float64[np.ndarray, "B T K"], steps: int) -> Float64[np.ndarray, "B T K"]:
    """Means over so many steps around each; at the ends, over as many as there are."""
    total = np.cumsum(np.pad(series, ((0, 0), (1, 0), (0, 0))), axis=1)
    here, last = np.arange(series.shape[1]), series.shape[1]
    first = np.maximum(here - steps // 2, 0)
    stop = np.minimum(here + steps // 2 + 1, last)
    return (total[:, stop] - total[:, first]) / (stop - first)[:, None]
