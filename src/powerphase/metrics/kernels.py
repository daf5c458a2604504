"""CPU kernels, compiled by numba: sort and sum the scenarios of each point within the cache.

A score needs the scenarios of every point in order: 900,000 columns of 100 numbers in one window of
a medium grid. A library sorts such columns one by one. Here 64 of them go through a sorting network
together; its steps do not depend on the numbers, so they become vector instructions, and a handful
of sums is all that remains of a column. `points` computes the same sums in plain torch, for GPUs
and for tests, and `joint` the same distances between whole scenarios.
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

from powerphase.metrics.marginal import ROUNDING, TAIL
from powerphase.metrics.safety import Band
from powerphase.records.scores import NORMAL_BAND_PU

LANES = 64
"""Columns sorted together: enough for vector instructions, few enough for a cache."""


def channel_sums(
    values: Float[Tensor, "1 M H C"],
    weights: Float[Tensor, "1 M C"],
    target: Float[Tensor, "1 H C"],
) -> Float[Tensor, "5 H C"]:
    """CRPS, Σ w|x − z|, Σ w(x − z), and the two ends of the central interval."""
    tail = torch.tensor(TAIL - ROUNDING, dtype=values.dtype).numpy()[()]
    return _run(_channel_sums, 5, (tail,), values, weights, target)


def voltage_sums(
    values: Float[Tensor, "1 M H N"],
    weights: Float[Tensor, "1 M N"],
    target: Float[Tensor, "1 H N"],
    band: Band = NORMAL_BAND_PU,
) -> Float[Tensor, "4 H N"]:
    """Violation probability, expected excursion, threshold-weighted CRPS and CVaR of voltages."""
    limits = [torch.as_tensor(x, dtype=values.dtype).expand(values.shape[-1]) for x in band]
    arrays = tuple(limit.contiguous().numpy() for limit in limits)
    return _run(_voltage_sums, 4, arrays, values, weights, target)


def spreads(
    errors: Float64[Tensor, "M H R"], weights: Float64[Tensor, " M"]
) -> Float64[Tensor, " H"]:
    """½ Σ Σ w w' ‖x − x'‖ of each step, each pair computed once."""
    out = torch.empty(errors.shape[1], dtype=torch.float64)
    inputs = (errors.movedim(1, 0).contiguous().numpy(), weights.contiguous().numpy())
    _run_on_threads(_spreads, (*inputs, out.numpy()), len(out))
    return out


def _run(
    kernel: Callable[..., None],
    n_sums: int,
    limits: tuple[np.ndarray | np.floating, ...],
    values: Tensor,
    weights: Tensor,
    target: Tensor,
) -> Tensor:
    """Run the kernel on one window.

    Limits are arguments, since a compiled kernel would keep the value that a module's constant had.
    """
    _, n_scenarios, horizon, n_channels = values.shape
    out = torch.empty((n_sums, horizon, n_channels), dtype=values.dtype)
    low, high = weights.aminmax()
    # Contiguous arrays: with strides, the compiler would gather number by number.
    arrays = [part[0].to(values.dtype).contiguous().numpy() for part in (weights, target)]
    pairs, unequal = sorting_network(n_scenarios), bool(low != high)
    arguments = (pairs, unequal, *limits, *_flat_view(values), *arrays, out.numpy())
    _run_on_threads(kernel, arguments, horizon)
    return out


def _run_on_threads(
    kernel: Callable[..., None], arguments: tuple[object, ...], horizon: int
) -> None:
    """Run the kernel with its steps divided among torch's threads."""
    threads = min(torch.get_num_threads(), horizon)
    edges = [horizon * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernel(*arguments, *ends), pairwise(edges)))


def _flat_view(values: Tensor) -> tuple[np.ndarray, np.uint64, np.uint64]:
    """One window's numbers as they lie in memory, and the strides of scenarios and steps.

    A block of channels is part of a larger array; reading it in place saves a copy.
    """
    window = values[0] if values.stride(-1) == 1 else values[0].contiguous()
    n_scenarios, horizon, n_channels = window.shape
    to_scenario, to_step, _ = window.stride()
    length = (n_scenarios - 1) * to_scenario + (horizon - 1) * to_step + n_channels
    flat = window.as_strided((length,), (1,)).numpy()
    return flat, np.uint64(to_scenario), np.uint64(to_step)


@cache
def sorting_network(n: int) -> UInt64[np.ndarray, "exchanges 2"]:
    """Batcher's merge exchange for n numbers: pairs (i, j), i < j, to compare and swap in order.

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
    pairs, unequal, tail, values, to_scenario, to_step, weights, target, out, first, last
):
    n_scenarios, n_channels = weights.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    tile_weights = np.zeros((n_scenarios, LANES), values.dtype)
    scratch = np.empty((4, LANES), values.dtype)
    truth = np.empty(LANES, values.dtype)
    distance = np.empty(LANES, values.dtype)
    below = np.empty(LANES, values.dtype)
    crps = np.empty(LANES, values.dtype)
    error = np.empty(LANES, values.dtype)
    bias = np.empty(LANES, values.dtype)
    low = np.empty(LANES, values.dtype)
    high = np.empty(LANES, values.dtype)
    for h in range(first, last):
        for offset in range(0, n_channels, LANES):
            n = min(LANES, n_channels - offset)
            start = np.uint64(h) * to_step + np.uint64(offset)
            _load(values, start, to_scenario, weights, offset, n, tile, tile_weights)
            _sort(pairs, unequal, tile, tile_weights, scratch, n)
            for lane in range(n):
                truth[lane] = target[h, offset + lane]
            _sum_crps(tile, tile_weights, truth, distance, below, crps, n)
            _sum_errors(tile, tile_weights, truth, error, bias, n)
            _find_interval(tile, tile_weights, below, low, high, tail, n)
            for lane in range(n):
                out[0, h, offset + lane] = crps[lane]
                out[1, h, offset + lane] = error[lane]
                out[2, h, offset + lane] = bias[lane]
                out[3, h, offset + lane] = low[lane]
                out[4, h, offset + lane] = high[lane]


@no_type_check
@njit(nogil=True, cache=True)
def _voltage_sums(
    pairs, unequal, low, high, values, to_scenario, to_step, weights, target, out, first, last
):
    n_scenarios, n_channels = weights.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    tile_weights = np.zeros((n_scenarios, LANES), values.dtype)
    scratch = np.empty((4, LANES), values.dtype)
    truth = np.empty(LANES, values.dtype)
    distance = np.empty(LANES, values.dtype)
    below = np.empty(LANES, values.dtype)
    twcrps = np.empty(LANES, values.dtype)
    probability = np.empty(LANES, values.dtype)
    excursion = np.empty(LANES, values.dtype)
    for h in range(first, last):
        for offset in range(0, n_channels, LANES):
            n = min(LANES, n_channels - offset)
            start = np.uint64(h) * to_step + np.uint64(offset)
            _load(values, start, to_scenario, weights, offset, n, tile, tile_weights)
            _sort(pairs, unequal, tile, tile_weights, scratch, n)
            # The signed distance outside the band keeps the order: sorted values stay sorted.
            for lane in range(n):
                voltage, bus = target[h, offset + lane], offset + lane
                truth[lane] = voltage - min(max(voltage, low[bus]), high[bus])
            for m in range(n_scenarios):
                for lane in range(n):
                    bus = offset + lane
                    tile[m, lane] -= min(max(tile[m, lane], low[bus]), high[bus])
            _sum_crps(tile, tile_weights, truth, distance, below, twcrps, n)
            _sum_outside(tile, tile_weights, probability, excursion, n)
            for lane in range(n):
                out[0, h, offset + lane] = probability[lane]
                out[1, h, offset + lane] = excursion[lane]
                out[2, h, offset + lane] = twcrps[lane]
                out[3, h, offset + lane] = _mean_of_worst(tile, lane)


@no_type_check
@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})  # sums in vectors
def _spreads(errors, weights, out, first, last):
    _, n_scenarios, n_directions = errors.shape
    for h in range(first, last):
        total = 0.0
        for i in range(n_scenarios):
            inner = 0.0
            for j in range(i):
                square = 0.0
                for r in range(n_directions):
                    difference = errors[h, i, r] - errors[h, j, r]
                    square += difference * difference
                inner += weights[j] * np.sqrt(square)
            total += weights[i] * inner
        out[h] = total


# The sums over a tile are separate functions of loops with one result each. In one large loop, the
# compiler cannot prove that the arrays do not overlap, and vectorises nothing.


@no_type_check
@njit(nogil=True, cache=True)
def _sum_crps(tile, tile_weights, truth, distance, below, crps, n):
    """CRPS of sorted scenarios, as in `marginal.crps`."""
    half, zero = tile.dtype.type(0.5), tile.dtype.type(0)
    for lane in range(n):
        below[lane] = zero
    for lane in range(n):
        crps[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            distance[lane] = tile[m, lane] - truth[lane]
        for lane in range(n):
            weight = tile_weights[m, lane]
            above = distance[lane] if distance[lane] > zero else zero
            level = below[lane] + half * weight
            crps[lane] += (weight + weight) * (above - level * distance[lane])
        for lane in range(n):
            below[lane] += tile_weights[m, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _sum_errors(tile, tile_weights, truth, error, bias, n):
    """Σ w|x − z| and Σ w(x − z)."""
    zero = tile.dtype.type(0)
    for lane in range(n):
        error[lane] = zero
    for lane in range(n):
        bias[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            error[lane] += tile_weights[m, lane] * abs(tile[m, lane] - truth[lane])
        for lane in range(n):
            bias[lane] += tile_weights[m, lane] * (tile[m, lane] - truth[lane])


@no_type_check
@njit(nogil=True, cache=True)
def _find_interval(tile, tile_weights, below, low, high, tail, n):
    """The values at which the weight from below, and that from above, first reaches the tail."""
    zero, unit = tile.dtype.type(0), tile.dtype.type(1)
    for lane in range(n):
        below[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            low[lane] = tile[m, lane] if below[lane] < tail else low[lane]
        for lane in range(n):
            high[lane] = tile[m, lane] if unit - below[lane] >= tail else high[lane]
        for lane in range(n):
            below[lane] += tile_weights[m, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _sum_outside(tile, tile_weights, probability, excursion, n):
    """The weight of nonzero distances and their weighted mean; replaces distances by their size."""
    zero, unit = tile.dtype.type(0), tile.dtype.type(1)
    for lane in range(n):
        probability[lane] = zero
    for lane in range(n):
        excursion[lane] = zero
    for m in range(len(tile)):
        for lane in range(n):
            tile[m, lane] = abs(tile[m, lane])
        for lane in range(n):
            probability[lane] += tile_weights[m, lane] if tile[m, lane] > zero else zero
        for lane in range(n):
            excursion[lane] += tile_weights[m, lane] * tile[m, lane]
    for lane in range(n):
        # Rounded weights may sum to slightly more than 1; a probability must not.
        probability[lane] = min(probability[lane], unit)


@no_type_check
@njit(nogil=True, cache=True)
def _mean_of_worst(distances, lane):
    """Mean of the largest tenth of the distances; the largest are at the two ends."""
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
def _load(values, start, to_scenario, weights, offset, n, tile, tile_weights):
    for m in range(len(tile)):
        row = start + np.uint64(m) * to_scenario
        for lane in range(np.uint64(n)):
            tile[m, lane] = values[row + lane]
        for lane in range(n):
            tile_weights[m, lane] = weights[m, offset + lane]


# In both sorts, offsets are unsigned, since a signed one could count from the end. Ordered pairs go
# through `low` and `high`, since the compiler cannot know that the rows of a tile do not overlap.
# Without either, or with slices instead of loops, little is vectorised.


@no_type_check
@njit(nogil=True, cache=True)
def _sort(pairs, unequal, tile, tile_weights, scratch, n):
    if unequal:
        low, high, low_weight, high_weight = scratch[0], scratch[1], scratch[2], scratch[3]
        values, weights = tile.reshape(-1), tile_weights.reshape(-1)
        _sort_with_weights(pairs, values, weights, low, high, low_weight, high_weight, np.uint64(n))
    else:
        _sort_values(pairs, tile.reshape(-1), scratch[0], scratch[1], np.uint64(n))


@no_type_check
@njit(nogil=True, cache=True)
def _sort_values(pairs, tile, low, high, lanes):
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
def _sort_with_weights(pairs, tile, tile_weights, low, high, low_weight, high_weight, lanes):
    row = np.uint64(LANES)
    for k in range(len(pairs)):
        i, j = pairs[k, 0] * row, pairs[k, 1] * row
        for lane in range(lanes):
            a, b = tile[i + lane], tile[j + lane]
            low[lane] = b if a > b else a
            high[lane] = a if a > b else b
        for lane in range(lanes):
            swap = tile[i + lane] > tile[j + lane]
            a, b = tile_weights[i + lane], tile_weights[j + lane]
            low_weight[lane] = b if swap else a
            high_weight[lane] = a if swap else b
        for lane in range(lanes):
            tile[i + lane] = low[lane]
            tile_weights[i + lane] = low_weight[lane]
        for lane in range(lanes):
            tile[j + lane] = high[lane]
            tile_weights[j + lane] = high_weight[lane]
