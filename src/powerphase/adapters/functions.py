"""A plain function as a forecaster."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer
from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.adapters.series import SeriesModel
from powerphase.errors import ConfigError
from powerphase.models.framework.base import kebab, plain_config

Function = Callable[..., Any]
"""Called with the past, the times and the horizon; see `from_callable`."""


class FunctionModel(SeriesModel):
    """A function of one series, or of a batch of them, as a series model."""

    is_random = True  # as far as anyone knows

    def __init__(
        self, function: Function, name: str, config: Mapping[str, Any], batch: int | None
    ) -> None:
        self.function, self.name, self.config = function, name, plain_config(config)
        self.is_batched, self.block = batch is not None, batch or 1

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """The function's own answer, with an axis of series."""
        if self.is_batched:
            return self.function(past, time, horizon)
        (series,) = past
        answer = self.function(series, time, horizon)
        if isinstance(answer, Mapping):
            return {level: np.asarray(values)[None] for level, values in answer.items()}
        return np.asarray(answer)[None]


def from_callable(
    function: Function,
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    batch: int | None = None,
    **options: Any,
) -> SeriesForecaster:
    """A forecaster from a function `(past, time, horizon)` that returns samples or quantiles.

    `past` is the context of one series, normalised, of shape (steps,); `time` the start of every
    step of context and horizon in UTC, `datetime64[s]`; `horizon` the number of steps to forecast.
    The function returns an array of samples (samples, horizon), of means (horizon,), or a mapping
    from quantile levels to arrays (horizon,).

    Args:
        function: the model.
        name: of its rows; by default that of the function.
        config: of its rows; change it when the function changes.
        batch: call the function with up to so many series at a time; `past` and whatever it
            returns then have a first axis of series.
        options: `on`, `scenarios`, `seed`, `workers`, `rearrange` and `on_progress`; see
            `SeriesForecaster`.
    """
    if not callable(function):
        raise ConfigError(f"{function!r} cannot be called; give a function (past, time, horizon)")
    if batch is not None and batch < 1:
        raise ConfigError(f"batch must be 1 or more, found {batch}")
    name = name or kebab(getattr(function, "__name__", type(function).__name__))
    return SeriesForecaster(FunctionModel(function, name, config or {}, batch), **options)
