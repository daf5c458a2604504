"""Models of single series for tests; in a module, so that other processes can import them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

DAY = 96
LEVELS = (0.1, 0.5, 0.9)

Array = NDArray[Any]


def last_days(past: Array, time: Array, horizon: int) -> Array:
    """The last seven days, the oldest first."""
    return past[..., -7 * DAY :].reshape(*past.shape[:-1], 7, DAY)[..., :horizon]


def yesterday(past: Array, time: Array, horizon: int) -> Array:
    """The values of a day ago."""
    return past[..., -DAY:][..., :horizon]


def deciles(past: Array, time: Array, horizon: int) -> dict[float, Array]:
    """Three quantiles of the last seven days."""
    days = last_days(past, time, horizon)
    return {level: np.quantile(days, level, axis=-2) for level in LEVELS}


def noise(past: Array, time: Array, horizon: int) -> Array:
    """Random samples around the last value."""
    noise = np.random.standard_normal((5, horizon))  # noqa: NPY002
    return past[-1] + 0.01 * noise


forecaster_function = last_days
