"""The forecast of the factors: from the calendar, and from their last deviations from it.

First a ridge regression for each time of the local day gives the value that is expected from the
calendar. Then one for each forecast step says how much of the deviation of the last days
will remain; if forecasts of load, sun and wind are known, their deviations are inputs too. The
error of both together is measured on days that they were not fitted on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Shaped
from torch import Tensor

from powerphase.clock import GERMANY, Calendar, slot_of_day
from powerphase.errors import TrainingError
from powerphase.models.factorforge.calendar import YEAR_DAYS, day_features
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import DEVIATION
from powerphase.models.factorforge.known_inputs import KnownColumns, known_inputs, moving_mean
from powerphase.resolution import DAY_S, rescale_steps, step_of, steps_per_day, time_of_day
from powerphase.scenarios import Known

MIN_WINDOWS = 8
"""The least number of forecast windows in a training record."""

CONSTANT = 1e-9
"""An input with a smaller standard deviation counts as constant and gets no weight."""


@dataclass(frozen=True, eq=False)
class FactorForecaster:
    """Fitted regressions that forecast the factors, and their errors on held-out windows."""

    config: FactorForgeConfig
    calendar: Float64[np.ndarray, "slots W X"]
    """Weights of the calendar features by time of the local day, in slots of a step: for each
    factor, then for each column of the known forecasts."""
    weights: Float64[np.ndarray, "H F K"]
    """Weights of the inputs (see `deviation_inputs`, `known_inputs`) by forecast step."""
    errors: Float64[np.ndarray, "B H K"]
    """The errors on each held-out window."""
    strength: Float64[np.ndarray, " K"]
    """The ridge strength that was best on held-out windows."""
    seasons: bool
    """Whether the record was long enough to learn the season."""
    local: Calendar = GERMANY
    """Local time and holidays."""
    known: KnownColumns | None = None
    """The forecasts that it needs."""

    @property
    def n_factors(self) -> int:
        """Number of factors, K."""
        return self.weights.shape[-1]

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return DAY_S // len(self.calendar)

    @cached_property
    def covariance(self) -> Float64[np.ndarray, "H K K"]:
        """The covariance of the errors at each step, averaged over neighbouring steps.

        Correlations come from products of errors, standard deviations from their mean absolute
        values: a few days with very large errors must not widen the forecasts of all others.
        """
        steps, errors = rescale_steps(self.config.averaged_steps, self.step_s), self.errors
        single = np.einsum("bhk,bhl->hkl", errors, errors) / len(errors)
        product = moving_mean(single.reshape(1, len(single), -1), steps).reshape(single.shape)
        size = DEVIATION * moving_mean(np.abs(errors).mean(0)[None], steps)[0]
        root = np.sqrt(np.einsum("hkk->hk", product))
        ratio = np.divide(size, root, out=np.zeros_like(size), where=root > 0)
        return product * ratio[:, :, None] * ratio[:, None, :]

    def expected(self, time: Shaped[np.ndarray, "*S"]) -> Float64[np.ndarray, "*S K"]:
        """The factors that are expected from the calendar."""
        return self._expected(time)[..., : self.n_factors]

    def __call__(
        self,
        past: Float64[np.ndarray, "B T K"],
        time: Shaped[np.ndarray, "B steps"],
        known: Known | None = None,
    ) -> Float64[np.ndarray, "B H K"]:
        """Forecast the factors.

        Args:
            past: those of the context.
            time: the times of context and horizon.
            known: the forecasts for them, if the regressions were fitted with forecasts.
        """
        expected, n_past, n_factors = self._expected(time), past.shape[1], self.n_factors
        features = self._features(time[:, n_past:])
        inputs = deviation_inputs(
            past - expected[:, :n_past, :n_factors], features, self.config, self.step_s
        )
        if self.known is not None:
            surprise = np.nan_to_num(self.known(known) - expected[..., n_factors:])
            said = known_inputs(surprise[:, :n_past], surprise[:, n_past:], self.step_s)
            inputs = np.concatenate([inputs, said], axis=2)
        deviation = linear(self.weights, inputs.swapaxes(0, 1)).swapaxes(0, 1)
        return expected[:, n_past:, :n_factors] + deviation

    def _expected(self, time: Shaped[np.ndarray, "*S"]) -> Float64[np.ndarray, "*S X"]:
        slots = slot_of_day(time, len(self.calendar), self.local)
        return _expected(self.calendar, slots, self._features(time))

    def _features(self, time: Shaped[np.ndarray, "*S"]) -> Float64[np.ndarray, "*S D"]:
        return day_features(time, self.seasons, self.config.festive_weekends, self.local)


def fit_factor_forecaster(
    series: Float64[np.ndarray, "S K"],
    time: Shaped[np.ndarray, " S"],
    n_past: int,
    horizon: int,
    config: FactorForgeConfig,
    origin_s: int | None = None,
    local: Calendar = GERMANY,
    known: Known | None = None,
    ahead: Known | None = None,
) -> FactorForecaster:
    """Fit the forecaster to a record of factors; one window starts on each of its days.

    Whether a factor follows the known forecasts, and their products, is decided by the errors on
    held-out windows, like its ridge strength. So forecasts without value are ignored.

    Args:
        series: the factors.
        time: start of each step, UTC.
        n_past: steps before a window.
        horizon: steps of a window.
        config: all options.
        origin_s: the time of day at which windows start, in seconds, UTC; by default that of the
            record.
        local: local time and holidays.
        known: the forecasts for each step of the record.
        ahead: those at the origins of windows; by default those of the steps, equal up to a day.
    """
    windows = TrainingWindows(series, time, n_past, horizon, config, origin_s, local, known, ahead)
    strengths = np.asarray(config.strengths, dtype=np.float64)
    is_typical = typical_windows(windows.ahead, len(windows.origins))
    errors = windows.held_out_errors(strengths)[:, is_typical]
    best = (errors**2).mean((1, 2)).argmin(0)
    factors = np.arange(series.shape[1])
    calendar, weights = windows.fit(np.arange(len(windows.origins)), strengths)
    return FactorForecaster(
        config,
        calendar,
        weights[best, ..., factors].transpose(1, 2, 0),
        errors[best, ..., factors].transpose(1, 2, 0),
        strengths[best % len(strengths)],
        windows.seasons,
        local,
        windows.known,
    )


class TrainingWindows:
    """The windows of a record, of which any subset can be fitted or held out."""

    def __init__(
        self,
        series: Float64[np.ndarray, "S K"],
        time: Shaped[np.ndarray, " S"],
        n_past: int,
        horizon: int,
        config: FactorForgeConfig,
        origin_s: int | None = None,
        local: Calendar = GERMANY,
        known: Known | None = None,
        ahead: Known | None = None,
    ) -> None:
        self.n_past, self.horizon, self.config = n_past, horizon, config
        self.origins = window_origins(time, n_past, horizon, config, origin_s)
        self.step_s = step_of(time)
        self.per_day = steps_per_day(self.step_s)
        self.seasons = len(series) >= YEAR_DAYS * self.per_day
        self.slots = slot_of_day(time, self.per_day, local)
        self.features = day_features(time, self.seasons, config.festive_weekends, local)
        self.n_factors = series.shape[1]
        self.known = None if known is None else KnownColumns.of(known)
        said = np.empty((len(series), 0)) if self.known is None else self.known(known)
        self.columns = np.concatenate([series, _fill(said, self.slots)], axis=1)
        self.ahead = _of_windows(known, self._steps(np.arange(len(self.origins))), horizon, ahead)
        self.said = None if self.known is None else self.known(self.ahead)

    def fit(
        self,
        windows: Int[np.ndarray, " B"],
        strengths: Float64[np.ndarray, " A"],
        hidden: Int[np.ndarray, "left_out H"] | None = None,
    ) -> tuple[Float64[np.ndarray, "slots W X"], Float64[np.ndarray, "choices H F K"]]:
        """Fit the calendar, and the weights of the steps for each choice, to these windows.

        The choices are the strengths; with known forecasts, the strengths without them, then with
        them, then also with their products. The calendar is not fitted to hidden steps, even if
        they are the past of a window.
        """
        steps = np.setdiff1d(self._steps(windows), [] if hidden is None else hidden)
        calendar = _fit_calendar(
            self.columns[steps], self.slots[steps], self.features[steps], self.config
        )
        inputs, target = self._inputs_and_targets(calendar, windows)
        x, y = inputs.swapaxes(0, 1), target.swapaxes(0, 1)
        n_inputs, choices = inputs.shape[-1], []
        for unused in self._unused:
            count = n_inputs - unused
            weights = ridge(x[..., :count], y, strengths, self._penalty(n_inputs)[:count])
            choices.append(np.pad(weights, ((0, 0), (0, 0), (0, unused), (0, 0))))
        return calendar, np.concatenate(choices)

    def held_out_errors(
        self, strengths: Float64[np.ndarray, " A"]
    ) -> Float64[np.ndarray, "choices B H K"]:
        """The errors of each choice on every window, fitted without it and its neighbours."""
        n_windows = len(self.origins)
        fold = max(1, min(self.config.fold_days, n_windows // 3))
        # Held-out windows should not be the past of fitted ones; short records allow a smaller gap.
        gap = min(-(-(self.n_past + self.horizon) // self.per_day), n_windows // 8)
        folds = [np.arange(k, min(k + fold, n_windows)) for k in range(0, n_windows, fold)]
        return np.concatenate([self.errors(held_out, gap, strengths) for held_out in folds], axis=1)

    def errors(
        self, held_out: Int[np.ndarray, " B"], gap: int, strengths: Float64[np.ndarray, " A"]
    ) -> Float64[np.ndarray, "choices B H K"]:
        """The errors on held-out windows, fitted to all windows more than `gap` days away."""
        number = np.arange(len(self.origins))
        fitted = number[(number < held_out[0] - gap) | (number > held_out[-1] + gap)]
        targets = self._steps(held_out)[:, self.n_past :]
        calendar, weights = self.fit(fitted, strengths, targets)
        inputs, target = self._inputs_and_targets(calendar, held_out)
        return target - linear(weights, inputs.swapaxes(0, 1)).swapaxes(1, 2)

    def _inputs_and_targets(
        self, calendar: Float64[np.ndarray, "slots W X"], windows: Int[np.ndarray, " B"]
    ) -> tuple[Float64[np.ndarray, "B H F"], Float64[np.ndarray, "B H K"]]:
        """Inputs and targets of windows, both as deviations from the calendar."""
        # For the whole record once, since each step is in many windows.
        expected = _expected(calendar, self.slots, self.features)
        deviation = (self.columns - expected)[:, : self.n_factors]
        steps = self._steps(windows)
        past, target = np.split(deviation[steps], [self.n_past], axis=1)
        features = self.features[steps[:, self.n_past :]]
        inputs = [deviation_inputs(past, features, self.config, self.step_s)]
        if self.said is not None:
            # No surprise, where nothing is known.
            surprise = np.nan_to_num(self.said[windows] - expected[steps, self.n_factors :])
            before, after = np.split(surprise, [self.n_past], axis=1)
            inputs.append(known_inputs(before, after, self.step_s))
        return np.concatenate(inputs, axis=2), target

    def _steps(self, windows: Int[np.ndarray, " B"]) -> Int[np.ndarray, "B steps"]:
        """Context and horizon of windows."""
        return self.origins[windows, None] + np.arange(-self.n_past, self.horizon)

    def _penalty(self, n_inputs: int) -> Float64[np.ndarray, " F"]:
        """The penalty of each input: smaller for the last steps, which come first.

        It is as small for known forecasts, which come last.
        """
        n_recent, number = len(self.config.recent_steps) * self.n_factors, np.arange(n_inputs)
        is_favoured = (number < n_recent) | (number >= n_inputs - self._unused[0])
        return np.where(is_favoured, 1 / self.config.recent_favour, 1.0)

    @property
    def _unused(self) -> list[int]:
        """How many of the inputs, which are the last ones, each choice does not use."""
        counts = (0,) if self.known is None else self.known.counts
        return [max(counts) - count for count in counts]


def window_origins(
    time: Shaped[np.ndarray, " S"],
    n_past: int,
    horizon: int,
    config: FactorForgeConfig,
    origin_s: int | None = None,
    model: str = "factorforge",
) -> Int[np.ndarray, " B"]:
    """First steps of the training windows, one a day; raise if there are too few for the model.

    Windows start at the same time of day, however long the context is: by default at the record's
    first.
    """
    n_steps, step_s = len(time), step_of(time)
    per_day, start_s = steps_per_day(step_s), time_of_day(time[0])
    offset = 0 if origin_s is None else (origin_s - start_s) % DAY_S // step_s
    first = offset - (offset - n_past) // per_day * per_day
    origins = np.arange(first, n_steps - horizon + 1, per_day)
    min_context = min(config.lag_days) * per_day
    if min_context > n_past:
        raise TrainingError(
            f"{model} needs a context of {min_context} steps or more, found {n_past}"
        )
    if len(origins) < MIN_WINDOWS:
        raise TrainingError(
            f"{model} needs {MIN_WINDOWS} days or more with {n_past} steps before them; "
            f"{n_steps} training steps have {len(origins)}; make a longer record or shorten the "
            "context"
        )
    return origins


def typical_windows(ahead: Known | None, n_windows: int) -> Bool[np.ndarray, " B"]:
    """Whether all forecasts of a window's horizon exist, as in windows to forecast.

    All windows count if there are too few, or no forecasts are used.
    """
    if ahead is None:
        return np.ones(n_windows, bool)
    complete = ~ahead.future.isnan().any(2).any(1).numpy()
    return np.asarray(complete if complete.sum() >= MIN_WINDOWS else np.ones_like(complete))


def _of_windows(
    known: Known | None, steps: Int[np.ndarray, "B steps"], horizon: int, ahead: Known | None
) -> Known | None:
    """The forecasts of windows: those given, or those of their steps."""
    if known is None or ahead is not None:
        return ahead
    return replace(known, values=known.values[steps], issued=known.issued[steps], horizon=horizon)


def _fit_calendar(
    series: Float64[np.ndarray, "S K"],
    slots: Int[np.ndarray, " S"],
    features: Float64[np.ndarray, "S D"],
    config: FactorForgeConfig,
) -> Float64[np.ndarray, "slots W K"]:
    """The weights of the calendar features for each slot of the day."""
    strength = np.array([config.calendar_strength])
    order = np.argsort(slots, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(slots[order])) + 1)
    return np.stack([ridge(features[part], series[part], strength)[0] for part in parts])


def _fill(
    series: Float64[np.ndarray, "S D"], slots: Int[np.ndarray, " S"]
) -> Float64[np.ndarray, "S D"]:
    """Series whose missing values are the mean of their time of day, or 0 if all are missing."""
    is_known = ~np.isnan(series)
    total, count = (np.zeros((slots.max() + 1, series.shape[1])) for _ in range(2))
    np.add.at(total, slots, np.nan_to_num(series))
    np.add.at(count, slots, is_known)
    return np.where(is_known, series, (total / np.maximum(count, 1))[slots])


def _expected(
    calendar: Float64[np.ndarray, "slots W K"],
    slots: Int[np.ndarray, "*S"],
    features: Float64[np.ndarray, "*S D"],
) -> Float64[np.ndarray, "*S K"]:
    """The factors that the calendar implies for moments in these slots with these features."""
    expected = np.empty((slots.size, calendar.shape[-1]))
    flat, rows = slots.ravel(), features.reshape(slots.size, -1)
    for slot in np.unique(flat):
        in_slot = flat == slot
        expected[in_slot] = linear(calendar[slot], rows[in_slot])
    return expected.reshape(*slots.shape, -1)


def deviation_inputs(
    deviation: Float64[np.ndarray, "B T K"],
    features: Float64[np.ndarray, "B H D"],
    config: FactorForgeConfig,
    step_s: int,
) -> Float64[np.ndarray, "B H F"]:
    """The inputs of each step's forecast: the last steps, the last days, and the target's day."""
    n_windows, n_past, _ = deviation.shape
    horizon, per_day = features.shape[1], steps_per_day(step_s)
    recent_steps = [rescale_steps(steps, step_s) for steps in config.recent_steps]
    recent = [deviation[:, -steps:].mean(1) for steps in recent_steps]
    hour, three_hours = (rescale_steps(steps, step_s) for steps in (4, 12))
    trend = deviation[:, -hour:].mean(1) - deviation[:, -three_hours:-hour].mean(1)
    days = [day for day in config.lag_days if day * per_day <= n_past]
    lags, means = [], []
    for day in days:
        first = n_past - day * per_day
        # A horizon of more than a day uses the same days again.
        lags.append(deviation[:, first + np.arange(horizon) % per_day])
        means.append(deviation[:, first : first + per_day].mean(1))
    constant = np.concatenate([*recent, trend, *means], axis=1)
    repeated = np.broadcast_to(constant[:, None], (n_windows, horizon, constant.shape[1]))
    return np.concatenate([repeated, *lags, features], axis=2)


def ridge(
    x: Float64[np.ndarray, "*B n F"],
    y: Float64[np.ndarray, "*B n K"],
    strengths: Float64[np.ndarray, " A"],
    penalty: Float64[np.ndarray, " F"] | None = None,
) -> Float64[np.ndarray, "A *B F+1 K"]:
    """Ridge regression: for each strength the intercept, then one weight per input.

    A strength is per sample and for inputs of unit variance; the intercept is not penalised.

    Args:
        x: inputs of n samples.
        y: targets.
        strengths: strengths of the penalty.
        penalty: multiplies the strength of each input.
    """
    factor = torch.ones(x.shape[-1]).double() if penalty is None else torch.from_numpy(penalty)
    with _one_thread():
        return _ridge(torch.from_numpy(x), torch.from_numpy(y), factor, strengths).numpy()


def _ridge(
    x: Float64[Tensor, "*B n F"],
    y: Float64[Tensor, "*B n K"],
    penalty: Float64[Tensor, " F"],
    strengths: Float64[np.ndarray, " A"],
) -> Float64[Tensor, "A *B F+1 K"]:
    x_mean, y_mean = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    size = x.std(-2, keepdim=True, correction=0)
    # A different penalty is a different scale.
    scale = torch.where(size > CONSTANT, 1 / size.clamp(min=CONSTANT), 0.0) / penalty.sqrt()
    scaled = (x - x_mean) * scale
    value, vector = torch.linalg.eigh(scaled.mT @ scaled / x.shape[-2])
    projected = vector.mT @ (scaled.mT @ (y - y_mean)) / x.shape[-2]
    weights = []
    for strength in strengths:
        coefficient = scale.mT * (vector @ (projected / (value[..., None] + float(strength))))
        weights.append(torch.cat([y_mean - x_mean @ coefficient, coefficient], dim=-2))
    return torch.stack(weights)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small products gain nothing from several threads, which wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def linear(
    weights: Float64[np.ndarray, "... inputs K"], x: Float64[np.ndarray, "... n F"]
) -> Float64[np.ndarray, "... n K"]:
    """The linear function of the inputs with these weights, intercept first."""
    return weights[..., :1, :] + x @ weights[..., 1:, :]
