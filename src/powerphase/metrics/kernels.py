"""Points on a CPU, compiled by numba: sorted and summed up without ever leaving the cache.

A score needs the scenarios of every single point in order: 900,000 columns of 100 numbers in one
window of a middling grid. A library's sort takes such columns one by one. Here, 64 of them pass
side by side through a sorting network, whose steps do not depend on the numbers and so become
vector instructions; what is left of a column is a handful of sums. `points` makes the same sums
with plain torch, for GPUs and for tests; so does `proper` with the distances of whole scenarios.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, UInt64
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


def spreads(
    errors: Float64[Tensor, "M H R"], weights: Float64[Tensor, " M"]
) -> Float64[Tensor, " H"]:
    """½ Σ Σ w w' ‖x − x'‖ of each step, each pair looked at once."""
    found = torch.empty(errors.shape[1], dtype=torch.float64)
    given = (errors.movedim(1, 0).contiguous().numpy(), weights.contiguous().numpy())
    _share_out(_spreads, (*given, found.numpy()), len(found))
    return found


def _run(
    kernel: Callable[..., None],
    n_sums: int,
    limits: tuple[float, ...],
    values: Tensor,
    weights: Tensor,
    target: Tensor,
) -> Tensor:
    """Run the kernel on one window.

    Limits are given, since a compiled kernel would keep an old one that it had taken from a module.
    """
    _, n_scenarios, horizon, n_channels = values.shape
    found = torch.empty((n_sums, horizon, n_channels), dtype=values.dtype)
    low, high = weights.aminmax()
    # Contiguous arrays: with strides, the compiler would gather number by number.
    given = [part[0].to(values.dtype).contiguous().numpy() for part in (weights, target)]
    exact = tuple(given[0].dtype.type(limit) for limit in limits)
    arguments = (network(n_scenarios), bool(low != high), *exact, *_rows(values), *given)
    _share_out(kernel, (*arguments, found.numpy()), horizon)
    return found


def _share_out(kernel: Callable[..., None], arguments: tuple[object, ...], horizon: int) -> None:
    """Run the kernel with its steps shared out among torch's threads."""
    threads = min(torch.get_num_threads(), horizon)
    edges = [horizon * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernel(*arguments, *ends), pairwise(edges)))


def _rows(values: Tensor) -> tuple[np.ndarray, np.uint64, np.uint64]:
    """One window's numbers as they lie in memory, and how far scenarios and steps are apart.

    A block of channels is part of a larger array; reading it where it is saves a copy.
    """
    near = values[0] if values.stride(-1) == 1 else values[0].contiguous()
    n_scenarios, horizon, n_channels = near.shape
    to_scenario, to_step, _ = near.stride()
    length = (n_scenarios - 1) * to_scenario + (horizon - 1) * to_step + n_channels
    flat = near.as_strided((length,), (1,)).numpy()
    return flat, np.uint64(to_scenario), np.uint64(to_step)


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
def _channel_sums(
    pairs, unequal, tail, values, to_scenario, to_step, weights, target, found, first, last
):
    n_scenarios, n_channels = weights.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    cargo = np.zeros((n_scenarios, LANES), values.dtype)
    aside = np.empty((4, LANES), values.dtype)
    truth = np.empty(LANES, values.dtype)
    distance = np.empty(LANES, values.dtype)
    below = np.empty(LANES, values.dtype)
    crps = np.empty(LANES, values.dtype)
    error = np.empty(LANES, values.dtype)
    bias = np.empty(LANES, values.dtype)
    low = np.empty(LANES, values.dtype)
    high = np.empty(LANES, values.dtype)
    for h in range(first, last):
        for begin in range(0, n_channels, LANES):
            n = min(LANES, n_channels - begin)
            start = np.uint64(h) * to_step + np.uint64(begin)
            _load(values, start, to_scenario, weights, begin, n, tile, cargo)
            _sort(pairs, unequal, tile, cargo, aside, n)
            for lane in range(n):
                truth[lane] = target[h, begin + lane]
            _add_crps(tile, cargo, truth, distance, below, crps, n)
            _add_errors(tile, cargo, truth, error, bias, n)
            _find_ends(tile, cargo, below, low, high, tail, n)
            for lane in range(n):
                found[0, h, begin + lane] = crps[lane]
                found[1, h, begin + lane] = error[lane]
                found[2, h, begin + lane] = bias[lane]
                found[3, h, begin + lane] = low[lane]
                found[4, h, begin + lane] = high[lane]


@no_type_check
@njit(nogil=True, cache=True)
def _voltage_sums(
    pairs, unequal, low, high, values, to_scenario, to_step, weights, target, found, first, last
):
    n_scenarios, n_channels = weights.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    cargo = np.zeros((n_scenarios, LANES), values.dtype)
    aside = np.empty((4, LANES), values.dtype)
    truth = np.empty(LANES, values.dtype)
    distance = np.empty(LANES, values.dtype)
    below = np.empty(LANES, values.dtype)
    twcrps = np.empty(LANES, values.dtype)
    probability = np.empty(LANES, values.dtype)
    excursion = np.empty(LANES, values.dtype)
    for h in range(first, last):
        for begin in range(0, n_channels, LANES):
            n = min(LANES, n_channels - begin)
            start = np.uint64(h) * to_step + np.uint64(begin)
            _load(values, start, to_scenario, weights, begin, n, tile, cargo)
            _sort(pairs, unequal, tile, cargo, aside, n)
            # The signed distance outside the band keeps the order, so what is sorted stays sorted.
            for lane in range(n):
                voltage = target[h, begin + lane]
                truth[lane] = voltage - min(max(voltage, low), high)
            for m in range(n_scenarios):
                for lane in range(n):
                    tile[m, lane] -= min(max(tile[m, lane], low), high)
            _add_crps(tile, cargo, truth, distance, below, twcrps, n)
            _count_outside(tile, cargo, probability, excursion, n)
            for lane in range(n):
                found[0, h, begin + lane] = probability[lane]
                found[1, h, begin + lane] = excursion[lane]
                found[2, h, begin + lane] = twcrps[lane]
                found[3, h, begin + lane] = _mean_of_worst(tile, lane)


@no_type_check
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})  # to sum in vectors
def _spreads(errors, weights, found, first, last):
    _, n_scenarios, n_directions = errors.shape
    for h in range(first, last):
        total = 0.0
        for one in range(n_scenarios):
            near = 0.0
            for other in range(one):
                square = 0.0
                for r in range(n_directions):
                    apart = errors[h, one, r] - errors[h, other, r]
                    square += apart * apart
                near += weights[other] * np.sqrt(square)
            total += weights[one] * near
        found[h] = total


# The sums over a tile are functions of their own, made of loops with one result each. In one large
# loop, the compiler would give up proving that the arrays do not overlap, and vectorise nothing.


@no_type_check
@njit(nogil=True, cache=True)
def _add_crps(tile, cargo, truth, distance, below, crps, n):
    """CRPS of sorted scenarios, as in `fidelity.crps`."""
    half, zero = tile.dtype.type(0.5), tile.dtype.type(0)
    for lane in range(n):
        below[lane] = zero
    for lane in range(n):
        crps[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            distance[lane] = tile[m, lane] - truth[lane]
        for lane in range(n):
            weight = cargo[m, lane]
            above = distance[lane] if distance[lane] > zero else zero
            level = below[lane] + half * weight
            crps[lane] += (weight + weight) * (above - level * distance[lane])
        for lane in range(n):
            below[lane] += cargo[m, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _add_errors(tile, cargo, truth, error, bias, n):
    """Σ w|x − z| and Σ w(x − z)."""
    zero = tile.dtype.type(0)
    for lane in range(n):
        error[lane] = zero
    for lane in range(n):
        bias[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            error[lane] += cargo[m, lane] * abs(tile[m, lane] - truth[lane])
        for lane in range(n):
            bias[lane] += cargo[m, lane] * (tile[m, lane] - truth[lane])


@no_type_check
@njit(nogil=True, cache=True)
def _find_ends(tile, cargo, below, low, high, tail, n):
    """Where the weight below, and the weight above, first reaches the tail."""
    zero, one = tile.dtype.type(0), tile.dtype.type(1)
    for lane in range(n):
        below[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            low[lane] = tile[m, lane] if below[lane] < tail else low[lane]
        for lane in range(n):
            high[lane] = tile[m, lane] if one - below[lane] >= tail else high[lane]
        for lane in range(n):
            below[lane] += cargo[m, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _count_outside(tile, cargo, probability, excursion, n):
    """The weight of distances that are not 0, and their weighted mean; leaves them unsigned."""
    zero, one = tile.dtype.type(0), tile.dtype.type(1)
    for lane in range(n):
        probability[lane] = zero
    for lane in range(n):
        excursion[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            tile[m, lane] = abs(tile[m, lane])
        for lane in range(n):
            probability[lane] += cargo[m, lane] if tile[m, lane] > zero else zero
        for lane in range(n):
            excursion[lane] += cargo[m, lane] * tile[m, lane]
    for lane in range(n):
        # Rounded weights may sum to a little more than 1, a probability must not.
        probability[lane] = min(probability[lane], one)


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
def _load(values, start, to_scenario, weights, begin, n, tile, cargo):
    for m in range(len(tile)):
        row = start + np.uint64(m) * to_scenario
        for lane in range(np.uint64(n)):
            tile[m, lane] = values[row + lane]
        for lane in range(n):
            cargo[m, lane] = weights[m, begin + lane]


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
