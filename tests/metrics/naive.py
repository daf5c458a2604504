"""Reference scores as the paper's formulas read: loops over single points, no sorting tricks.

A point is scored from its scenarios x, their weights w and what happened, z.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float]
Point = Callable[[Numbers, Numbers, float], float]
Array = NDArray[np.float64]

LOWEST, HIGHEST = 0.95, 1.05


def crps(x: Numbers, w: Numbers, z: float) -> float:
    """The paper's sorted form."""
    order = sorted(range(len(x)), key=lambda k: x[k])
    spread, level = 0.0, 0.0
    for current, following in pairwise(order):
        level += w[current]
        spread += 2 * level * (1 - level) * (x[following] - x[current])
    return sum(w[k] * abs(x[k] - z) for k in order) - spread / 2


def crps_by_pairs(x: Numbers, w: Numbers, z: float) -> float:
    """The energy form with all K x K pairs."""
    n = range(len(x))
    spread = sum(w[i] * w[j] * abs(x[i] - x[j]) for i in n for j in n)
    return sum(w[k] * abs(x[k] - z) for k in n) - spread / 2


def fair_crps(x: Numbers, w: Numbers, z: float) -> float:
    """The energy form with all pairs of different samples."""
    n = range(len(x))
    spread = sum(abs(x[i] - x[j]) for i in n for j in n) / (len(x) * (len(x) - 1))
    return sum(abs(x[k] - z) for k in n) / len(x) - spread / 2


def mse(x: Numbers, w: Numbers, z: float) -> float:
    return (sum(w[k] * x[k] for k in range(len(x))) - z) ** 2


def outside(v: float) -> int:
    return int(not LOWEST <= v <= HIGHEST)


def distance_outside(v: float) -> float:
    return max(0.0, LOWEST - v) + max(0.0, v - HIGHEST)


def safety_mbrier(x: Numbers, w: Numbers, z: float) -> float:
    return sum(w[k] * (outside(x[k]) - outside(z)) ** 2 for k in range(len(x)))


def brier(x: Numbers, w: Numbers, z: float) -> float:
    return (sum(w[k] * outside(x[k]) for k in range(len(x))) - outside(z)) ** 2


def necv(x: Numbers, w: Numbers, z: float) -> float:
    return sum(w[k] * distance_outside(x[k]) for k in range(len(x)))


def cvar(x: Numbers, w: Numbers, z: float) -> float:
    # Whole numbers: in floating point, 0.1 * 70 is a little more than 7.
    worst = sorted((distance_outside(v) for v in x), reverse=True)[: -(-len(x) // 10)]
    return sum(worst) / len(worst)


def chained(v: float) -> float:
    return min(v, LOWEST) + max(v, HIGHEST)


def twcrps(x: Numbers, w: Numbers, z: float) -> float:
    return crps_by_pairs([chained(v) for v in x], w, chained(z))


def excursion_bias(x: Numbers, w: Numbers, z: float) -> float:
    return necv(x, w, z) - distance_outside(z)


def excursion_error(x: Numbers, w: Numbers, z: float) -> float:
    return abs(excursion_bias(x, w, z))


def central_interval(x: Numbers, w: Numbers) -> tuple[float, float]:
    """The smallest x with a tenth of the weight up to it, the largest with a tenth from it on."""
    tenth = 0.1 - 1e-9
    pairs = list(zip(x, w, strict=True))
    low = min(a for a in x if sum(weight for b, weight in pairs if b <= a) >= tenth)
    high = max(a for a in x if sum(weight for b, weight in pairs if b >= a) >= tenth)
    return low, high


def coverage(x: Numbers, w: Numbers, z: float) -> float:
    low, high = central_interval(x, w)
    return float(low <= z <= high)


def width(x: Numbers, w: Numbers, z: float) -> float:
    low, high = central_interval(x, w)
    return high - low


ON_CHANNELS: dict[str, Point] = {
    "crps": crps,
    "mse": mse,
    "coverage_80": coverage,
    "width_80": width,
}
ON_VOLTAGES: dict[str, Point] = {
    "safety_mbrier": safety_mbrier,
    "necv": necv,
    "cvar_0.1": cvar,
    "brier": brier,
    "twcrps": twcrps,
    "excursion_error": excursion_error,
    "excursion_bias": excursion_bias,
}


def pointwise(score: Point, values: Array, weights: Array, target: Array) -> Array:
    """A score of every window, step and channel (B x H x C)."""
    actual = np.empty(target.shape)
    for b, h, c in np.ndindex(*target.shape):
        x, w = values[b, :, h, c].tolist(), weights[b, :, c].tolist()
        actual[b, h, c] = score(x, w, float(target[b, h, c]))
    return actual


def distortion(values: Array, target: Array) -> Array:
    """The RMSE of each window's best scenario, over the given steps and channels."""
    rmse = [
        [sqrt(np.mean((scenario - truth) ** 2)) for scenario in window]
        for window, truth in zip(values, target, strict=True)
    ]
    return np.array(rmse).min(axis=1)


def energy(x: Array, w: Numbers, z: Array) -> float:
    """The energy score of one vector, over all pairs of scenarios."""
    n = range(len(x))
    spread = sum(w[i] * w[j] * np.linalg.norm(x[i] - x[j]) for i in n for j in n)
    return float(sum(w[k] * np.linalg.norm(x[k] - z) for k in n) - spread / 2)
