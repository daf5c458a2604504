"""Quantiles of weighted scenarios, and the bus that pages and figures show first."""

from math import ceil, floor

import numpy as np
from jaxtyping import Bool, Float, Float32

from powerphase.records.scores import NORMAL_BAND_PU

LEVELS = (0.1, 0.5, 0.9)
"""The median and the limits of the central 80 %, whose coverage is scored."""

ROUNDING = 1e-6
"""The error of sums of float32 weights."""


def weighted_quantiles(
    values: Float[np.ndarray, "M H C"], weights: Float[np.ndarray, "M C"]
) -> Float32[np.ndarray, "L H C"]:
    """The values at which the cumulative weight reaches each level.

    If the weight splits exactly between two values, the quantile is their mean, so that mirrored
    scenarios have mirrored bands.
    """
    if (weights == weights[0]).all():
        ascending = np.sort(values, axis=0)
        return np.stack([_equal_weight_quantile(ascending, level) for level in LEVELS]).astype(
            np.float32
        )
    order = values.argsort(axis=0, kind="stable")
    ascending = np.take_along_axis(values, order, axis=0)
    weight = np.broadcast_to(weights[:, None], values.shape)
    cumulative = np.take_along_axis(weight, order, axis=0).cumsum(axis=0, dtype=np.float64)
    quantiles = [_quantile(ascending, cumulative, level) for level in LEVELS]
    return np.stack(quantiles).astype(np.float32)


def _equal_weight_quantile(
    ascending: Float[np.ndarray, "M H C"], level: float
) -> Float[np.ndarray, "H C"]:
    """The quantile of scenarios with equal weights."""
    below = level * len(ascending)
    first, second = ceil(below - ROUNDING) - 1, floor(below + ROUNDING)
    return (ascending[first] + ascending[min(second, len(ascending) - 1)]) / 2


def _quantile(
    ascending: Float[np.ndarray, "M H C"], cumulative: Float[np.ndarray, "M H C"], level: float
) -> Float[np.ndarray, "H C"]:
    last = len(ascending) - 1
    first, second = (
        (cumulative < level - ROUNDING).sum(axis=0).clip(max=last),
        (cumulative <= level + ROUNDING).sum(axis=0).clip(max=last),
    )
    pair = [np.take_along_axis(ascending, index[None], axis=0)[0] for index in (first, second)]
    return (pair[0] + pair[1]) / 2


def outside_band(voltage: Float[np.ndarray, "*points"]) -> Bool[np.ndarray, "*points"]:
    """Whether each voltage is outside the band, as in `metrics.violates`."""
    low, high = NORMAL_BAND_PU
    return (voltage < low) | (voltage > high)


def first_bus(voltage: Float[np.ndarray, "W H N"]) -> int:
    """The bus to show first: outside the band for the share of time closest to a half.

    If every bus is always inside or always outside, the bus that comes nearest to a limit.
    """
    low, high = NORMAL_BAND_PU
    outside = outside_band(voltage).mean(axis=(0, 1))
    if (mixed := outside * (1 - outside)).any():
        return int(mixed.argmax())
    return int(np.minimum(voltage - low, high - voltage).min(axis=(0, 1)).argmin())
