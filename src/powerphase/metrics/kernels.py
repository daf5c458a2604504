"""Points on a CPU, compiled by numba: sorted and summed up without ever leaving the cache.

A score needs the scenarios of every single point in order: 900,000 columns of 100 numbers in one
window of a middling grid. A library's sort takes such columns one by one. Here, 64 of them pass
side by side through a sorting network, whose steps do not depend on the numbers and so become
vector instructions; what is left of a column is a handful of sums. `points` makes the same sums
with plain torch, for GPUs and for tests.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, UInt64
from numba import njit
from torch import Tensor

from powerphase.metrics.fan import ROUNDING, TAIL
from powerphase.records.scores import NORMAL_BAND_PU

LANES = 64
"""Columns side by side: enough for vector instructions, few enough for a cache."""


def channel_sums(
    values: Float[Tensor, "1 M H C"],
    weights: Float[Tensor, "1 M C"],
    target: Float[Tensor, "1 H C"],
) -> Float[Tensor, "5 H C"]:
    """CRPS, Σ w|x − z|, Σ w(x − z), and the two ends of the central interval."""
    return _run(_channel_sums, 5, (TAIL - ROUNDING,), values, weights, target)


def voltage_sums(
    values: Float[Tensor, "1 M H N"],
    weights: Float[Tensor, "1 M N"],
    target: Float[Tensor, "1 H N"],
) -> Float[Tensor, "4 H N"]:
    """Violation probability, expected excursion, threshold-weighted CRPS and CVaR of voltages."""
    return _run(_voltage_sums, 4, NORMAL_BAND_PU, values, weights, target)


def _run(
    kernel: Callable[..., None],
    n_sums: int,
    limits: tuple[float, ...],
    values: Tensor,
    weights: Tensor,
    target: Tensor,
) -> Tensor:
    """Run the kernel on one window, its steps shared out among torch's threads.

    Limits are given, since a compiled kernel would keep an old one that it had taken from a module.
    """
    _, n_scenarios, horizon, n_channels = values.shape
    threads = min(torch.get_num_threads(), horizon)
    edges = [horizon * k // threads for k in range(threads + 1)]
    found = torch.empty((n_sums, horizon, n_channels), dtype=values.dtype)
    low, high = weights.aminmax()
    # Contiguous arrays: with strides, the compiler would gather number by number.
    given = [part[0].to(values.dtype).contiguous().numpy() for part in (values, weights, target)]
    exact = tuple(given[0].dtype.type(limit) for limit in limits)
    arguments = (network(n_scenarios), bool(low != high), *exact, *given, found.numpy())
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernel(*arguments, *ends), pairwise(edges)))
    return found


@cache
def network(n: int) -> UInt64[np.ndarray, "exchanges 2"]:
    """Batcher's merge exchange for n numbers: pairs (i, j), i < j, to be put in order in turn.

    Reference: Knuth, The Art of Computer Programming 3, section 5.2.2, algorithm M.
    """
    top = 1 << max((n - 1).bit_length() - 1, 0)
    pairs, p = [], top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            q, r, d = q >> 1, p, q - p
        p >>= 1
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


@no_type_check
@njit(nogil=True, cache=True)
def _channel_sums(pairs, unequal, tail, values, weights, target, found, first_step, last_step):
    n_scenarios, _, n_channels = values.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    cargo = np.zeros((n_scenarios, LANES), values.dtype)
    aside = np.empty((4, LANES), values.dtype)
    below = np.empty(LANES, values.dtype)
    sums = np.empty((5, LANES), values.dtype)
    zero, half, one = values.dtype.type(0), values.dtype.type(0.5), values.dtype.type(1)
    for h in range(first_step, last_step):
        for first in range(0, n_channels, LANES):
            n = min(LANES, n_channels - first)
            _load(values, weights, h, first, n, tile, cargo)
            _sort(pairs, unequal, tile, cargo, aside, n)
            crps, error, bias, low, high = sums[0], sums[1], sums[2], sums[3], sums[4]
            for lane in range(n):
                crps[lane], error[lane], bias[lane], below[lane] = zero, zero, zero, zero
            for m in range(n_scenarios):
                for lane in range(n):
                    value, weight = tile[m, lane], cargo[m, lane]
                    distance = value - target[h, first + lane]
                    above = distance if distance > zero else zero
                    level = below[lane] + half * weight
                    crps[lane] += (weight + weight) * (above - level * distance)
                    error[lane] += weight * abs(distance)
                    bias[lane] += weight * distance
                    # The interval ends where the weight on either side first reaches the tail.
                    low[lane] = value if below[lane] < tail else low[lane]
                    high[lane] = value if one - below[lane] >= tail else high[lane]
                    below[lane] += weight
            for k in range(5):
                for lane in range(n):
                    found[k, h, first + lane] = sums[k, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _voltage_sums(
    pairs, unequal, lowest, highest, values, weights, target, found, first_step, last_step
):
    n_scenarios, _, n_channels = values.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    cargo = np.zeros((n_scenarios, LANES), values.dtype)
    aside = np.empty((4, LANES), values.dtype)
    below, happened = np.empty(LANES, values.dtype), np.empty(LANES, values.dtype)
    sums = np.empty((3, LANES), values.dtype)
    zero, half = values.dtype.type(0), values.dtype.type(0.5)
    for h in range(first_step, last_step):
        for first in range(0, n_channels, LANES):
            n = min(LANES, n_channels - first)
            _load(values, weights, h, first, n, tile, cargo)
            _sort(pairs, unequal, tile, cargo, aside, n)
            probability, excursion, twcrps = sums[0], sums[1], sums[2]
            for lane in range(n):
                truth = target[h, first + lane]
                happened[lane] = truth - min(max(truth, lowest), highest)
                below[lane], twcrps[lane] = zero, zero
                probability[lane], excursion[lane] = zero, zero
            for m in range(n_scenarios):
                for lane in range(n):
                    value, weight = tile[m, lane], cargo[m, lane]
                    beyond = value - min(max(value, lowest), highest)
                    distance = beyond - happened[lane]
                    above = distance if distance > zero else zero
                    level = below[lane] + half * weight
                    twcrps[lane] += (weight + weight) * (above - level * distance)
                    excursion[lane] += weight * abs(beyond)
                    probability[lane] += weight if beyond != zero else zero
                    below[lane] += weight
                    tile[m, lane] = abs(beyond)
            for lane in range(n):
                found[0, h, first + lane] = min(probability[lane], values.dtype.type(1))
                found[1, h, first + lane] = excursion[lane]
                found[2, h, first + lane] = twcrps[lane]
                found[3, h, first + lane] = _mean_of_worst(tile, lane)


@no_type_check
@njit(nogil=True, cache=True)
def _mean_of_worst(distances, lane):
    """Mean of the tenth of the distances that is largest; they are largest at the two ends."""
    i, j = 0, len(distances) - 1
    worst, n = distances[0, lane] - distances[0, lane], -(-len(distances) // 10)
    for _ in range(n):
        if distances[i, lane] > distances[j, lane]:
            worst += distances[i, lane]
            i += 1
        else:
            worst += distances[j, lane]
            j -= 1
    return worst / n


@no_type_check
@njit(nogil=True, cache=True)
def _load(values, weights, h, first, n, tile, cargo):
    for m in range(len(tile)):
        for lane in range(n):
            tile[m, lane] = values[m, h, first + lane]
            cargo[m, lane] = weights[m, first + lane]


# In both networks, offsets are unsigned, since a signed one could count from the end, and ordered
# pairs go by way of `low` and `high`, since the compiler cannot know that the rows of a tile do not
# overlap. Without either, or with slices in place of loops, little is vectorised.


@no_type_check
@njit(nogil=True, cache=True)
def _sort(pairs, unequal, tile, cargo, aside, n):
    if unequal:
        low, high, with_low, with_high = aside[0], aside[1], aside[2], aside[3]
        flat, along = tile.reshape(-1), cargo.reshape(-1)
        _pass_weighted(pairs, flat, along, low, high, with_low, with_high, np.uint64(n))
    else:
        _pass(pairs, tile.reshape(-1), aside[0], aside[1], np.uint64(n))


@no_type_check
@njit(nogil=True, cache=True)
def _pass(pairs, tile, low, high, lanes):
    row = np.uint64(LANES)
    for k in range(len(pairs)):
        i, j = pairs[k, 0] * row, pairs[k, 1] * row
        for lane in range(lanes):
            a, b = tile[i + lane], tile[j + lane]
            low[lane] = b if a > b else a
            high[lane] = a if a > b else b
        for lane in range(lanes):
            tile[i + lane] = low[lane]
        for lane in range(lanes):
            tile[j + lane] = high[lane]


@no_type_check
@njit(nogil=True, cache=True)
def _pass_weighted(pairs, tile, cargo, low, high, with_low, with_high, lanes):
    row = np.uint64(LANES)
    for k in range(len(pairs)):
        i, j = pairs[k, 0] * row, pairs[k, 1] * row
        for lane in range(lanes):
            a, b = tile[i + lane], tile[j + lane]
            low[lane] = b if a > b else a
            high[lane] = a if a > b else b
        for lane in range(lanes):
            swap = tile[i + lane] > tile[j + lane]
            a, b = cargo[i + lane], cargo[j + lane]
            with_low[lane] = b if swap else a
            with_high[lane] = a if swap else b
        for lane in range(lanes):
            tile[i + lane] = low[lane]
            cargo[i + lane] = with_low[lane]
        for lane in range(lanes):
            tile[j + lane] = high[lane]
            cargo[j + lane] = with_high[lane]
