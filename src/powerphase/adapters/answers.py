"""What a model of single series answers, and the marginal distributions that this means.

An answer is an array of samples, an array of means, or a mapping from quantile levels to arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.scenarios import Scenarios

Answer = Any
"""An array of samples (series, samples, H) or of means (series, H), or a mapping from quantile
levels to arrays (series, H)."""

DAYS = 7

STAND_IN = "the same time of day on the last seven days"
"""What a series has instead of a forecast that failed; see `recent_days`."""

CROSSING = 1e-5
"""Quantiles of float32 may cross by this share of the largest value of a series."""


@dataclass(frozen=True, eq=False)
class Marginals:
    """The distributions of some series at every step, each by itself."""

    values: Float32[np.ndarray, "X M H"]
    """Samples, or quantiles in the order of the levels."""
    levels: tuple[float, ...] | None
    """The levels of quantiles; None for samples, of which a mean is the only one."""

    def faults(self) -> list[str | None]:
        """What is wrong with each series, in the units of the model; None for nothing."""
        finite = np.isfinite(self.values).all((1, 2))
        crossing = np.zeros(len(finite), dtype=bool)
        if self.levels is not None:
            tolerance = CROSSING * abs(self.values).max((1, 2), initial=0.0)
            falls = -np.diff(self.values, axis=1).min((1, 2), initial=0.0)
            crossing = falls > tolerance
        return [
            "it answered values that are not finite; expected a number at every step"
            if not is_finite
            else "it answered quantiles that cross; expected them to ascend with their levels "
            "(rearrange=True sorts them)"
            if is_crossing
            else None
            for is_finite, is_crossing in zip(finite, crossing, strict=True)
        ]

    def rearranged(self) -> "Marginals":
        """The same with the quantiles of every series and step in ascending order."""
        if self.levels is None:
            return self
        return Marginals(np.sort(self.values, axis=1), self.levels)

    def scenarios(self) -> Scenarios:
        """The series as channels: samples of equal weight, or quantiles with the weight of bins.

        A quantile stands for the probabilities nearest to its level; the first and last also stand
        for the tails, so nothing lies beyond them. See `Scenarios.from_quantiles`.
        """
        values = torch.from_numpy(self.values.transpose(1, 2, 0).copy())[None]
        if self.levels is None:
            return Scenarios.equal(values)
        return Scenarios.from_quantiles(self.levels, values)

    def quantiles(self, count: int) -> Float32[Tensor, "count H X"]:
        """The quantiles at the levels (m − ½)/count, ascending.

        Between its levels a quantile function is linear in normal scores, and beyond the first and
        last it continues with the slope of the nearest two: the tails are normal. Sorted sample m
        of M has the level (m − ½)/M.
        """
        values = torch.from_numpy(np.sort(self.values, axis=1).transpose(1, 2, 0).copy())
        if len(values) == 1:
            return values.expand(count, -1, -1).clone()
        own = np.asarray(self.levels or middles(len(values)), dtype=np.float64)
        return _interpolate(values, _normal_scores(own), _normal_scores(middles(count)))


def middles(count: int) -> Float64[np.ndarray, " M"]:
    """The levels (m − ½)/M of M equally likely values."""
    return (np.arange(count) + 0.5) / count


def _normal_scores(levels: Float64[np.ndarray, " M"]) -> Float64[Tensor, " M"]:
    return torch.special.ndtri(torch.from_numpy(np.asarray(levels)))


def _interpolate(
    values: Float32[Tensor, "M H X"], score: Float64[Tensor, " M"], wanted: Float64[Tensor, " J"]
) -> Float32[Tensor, "J H X"]:
    """The values at the wanted scores: linear between the given ones, and continued beyond them."""
    upper = torch.searchsorted(score, wanted).clamp(1, len(score) - 1)
    lower = upper - 1
    part = ((wanted - score[lower]) / (score[upper] - score[lower])).to(values)[:, None, None]
    return values[lower] + part * (values[upper] - values[lower])


def read_answer(answer: Answer, n_series: int, horizon: int) -> Marginals:
    """The answer as distributions; raises if it has the wrong form or shape."""
    if isinstance(answer, Mapping):
        levels = _read_levels(answer)
        parts = [_as_array(answer[key]) for key in levels.values()]
        for level, part in zip(levels, parts, strict=True):
            _check_shape(part.shape, (n_series, horizon), f"the quantile {level:g}")
        return Marginals(np.stack(parts, axis=1), tuple(levels))
    values = _as_array(answer)
    if values.ndim == 2:
        _check_shape(values.shape, (n_series, horizon), "the mean")
        return Marginals(values[:, None], None)
    if values.ndim != 3 or 0 in values.shape:
        raise ForecastError(
            f"it answered an array of shape {values.shape}; expected samples or quantiles of "
            f"{horizon} steps"
        )
    _check_shape((len(values), values.shape[2]), (n_series, horizon), "samples")
    return Marginals(values, None)


def _read_levels(answer: Mapping[Any, Any]) -> dict[float, Any]:
    """The levels in ascending order, each with its key."""
    try:
        levels = dict(sorted((float(key), key) for key in answer))
    except (TypeError, ValueError):
        levels = {}
    edges = [0.0, *levels, 1.0]
    if not levels or not all(low < high for low, high in pairwise(edges)):
        raise ForecastError(
            f"it answered quantiles of the levels {list(answer)}; expected numbers between 0 and 1"
        )
    return levels


def _as_array(values: Any) -> Float32[np.ndarray, "..."]:
    try:
        return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ForecastError(
            f"it answered {type(values).__name__}; expected an array or a mapping from quantile "
            "levels to arrays"
        ) from error


def _check_shape(shape: tuple[int, ...], expected: tuple[int, int], what: str) -> None:
    if shape != expected:
        raise ForecastError(
            f"it answered {what} of shape {shape} (series, steps); expected {expected}"
        )


def recent_days(
    past: Float[np.ndarray, "X T"], horizon: int, per_day: int, like: Marginals
) -> Marginals:
    """The same time of day on up to seven past days, as so many samples or quantiles as `like`."""
    n_past = past.shape[1]
    days = min(DAYS, n_past // per_day)
    if not days:
        steps = np.full((1, horizon), n_past - 1)
    else:
        last_day = n_past - per_day + np.arange(horizon) % per_day
        steps = last_day - per_day * np.arange(days)[:, None]
    levels = like.levels or middles(like.values.shape[1])
    quantiles: Float64[np.ndarray, "M X H"] = np.quantile(past[:, steps], levels, axis=1)
    return Marginals(quantiles.swapaxes(0, 1).astype(np.float32), like.levels)
