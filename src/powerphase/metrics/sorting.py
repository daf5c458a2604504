"""Sorting many short columns at once, weights included.

Scores need the scenarios of every single point in order: 900,000 columns of 100 numbers in one
window of a middling grid. `torch.sort` on a CPU takes them one by one. Here, 64 columns pass side
by side through a sorting network, whose steps do not depend on the numbers and so become vector
instructions, which is several times faster. On a GPU, `torch.sort` does it.
"""

import os
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

LANES = 64
"""Columns side by side: long enough for the compiler to vectorise, short enough for the cache."""


def sort_values(values: Float[Tensor, "B M H C"]) -> Float[Tensor, "B M H C"]:
    """The scenarios of each point in ascending order."""
    if values.device.type != "cpu":
        return values.sort(1).values
    found = torch.empty(values.shape, dtype=values.dtype)
    _on_threads(_sort_values, (values.contiguous(), found))
    return found


def sort_weighted(
    values: Float[Tensor, "B M H C"], weights: Float[Tensor, "B M C"]
) -> tuple[Float[Tensor, "B M H C"], Float[Tensor, "B M H C"]]:
    """The scenarios of each point in ascending order, and the weights that go with them."""
    if values.device.type != "cpu":
        found, order = values.sort(1)
        return found, weights.unsqueeze(2).expand_as(values).gather(1, order)
    found = torch.empty(values.shape, dtype=values.dtype)
    follow = torch.empty(values.shape, dtype=weights.dtype)
    _on_threads(_sort_weighted, (values.contiguous(), weights.contiguous(), found, follow))
    return found, follow


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


def _on_threads(kernel: Callable[..., None], tensors: tuple[Tensor, ...]) -> None:
    """Run the kernel on every window, its steps shared out among threads."""
    _, n_scenarios, horizon, _ = tensors[0].shape
    pairs, threads = network(n_scenarios), min(os.cpu_count() or 1, horizon)
    edges = [horizon * k // threads for k in range(threads + 1)]
    # Contiguous arrays: with strides, the compiler would gather number by number.
    windows = [[tensor.numpy() for tensor in window] for window in zip(*tensors, strict=True)]
    work = [(*window, *ends) for window in windows for ends in pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda arguments: kernel(pairs, *arguments), work))


# In both networks, offsets are unsigned, since a signed one could count from the end, and ordered
# pairs go by way of `low` and `high`, since the compiler cannot know that the rows of a tile do not
# overlap. Without either, or with slices in place of loops, little is vectorised.


@no_type_check
@njit(nogil=True, cache=True)
def _sort_values(pairs, values, found, first_step, last_step):
    n_scenarios, _, n_channels = values.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    low, high = np.empty(LANES, values.dtype), np.empty(LANES, values.dtype)
    for h in range(first_step, last_step):
        for first in range(0, n_channels, LANES):
            n = min(LANES, n_channels - first)
            for m in range(n_scenarios):
                for lane in range(n):
                    tile[m, lane] = values[m, h, first + lane]
            _pass(pairs, tile.reshape(-1), low, high, np.uint64(n))
            for m in range(n_scenarios):
                for lane in range(n):
                    found[m, h, first + lane] = tile[m, lane]


@no_type_check
@njit(nogil=True, cache=True)
def _sort_weighted(pairs, values, weights, found, follow, first_step, last_step):
    n_scenarios, _, n_channels = values.shape
    tile = np.zeros((n_scenarios, LANES), values.dtype)
    cargo = np.zeros((n_scenarios, LANES), weights.dtype)
    low, high = np.empty(LANES, values.dtype), np.empty(LANES, values.dtype)
    with_low, with_high = np.empty(LANES, weights.dtype), np.empty(LANES, weights.dtype)
    aside = low, high, with_low, with_high
    for h in range(first_step, last_step):
        for first in range(0, n_channels, LANES):
            n = min(LANES, n_channels - first)
            for m in range(n_scenarios):
                for lane in range(n):
                    tile[m, lane] = values[m, h, first + lane]
                    cargo[m, lane] = weights[m, first + lane]
            _pass_weighted(pairs, tile.reshape(-1), cargo.reshape(-1), *aside, np.uint64(n))
            for m in range(n_scenarios):
                for lane in range(n):
                    found[m, h, first + lane] = tile[m, lane]
                    follow[m, h, first + lane] = cargo[m, lane]


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
