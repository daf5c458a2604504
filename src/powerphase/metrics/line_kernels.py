"""The CPU kernel of the scores of lines: every scenario's flows are computed, sorted and summed.

A step's flows fit a cache, so they never become an array of the whole window. `lines` computes the
same sums in plain torch, for GPUs and for tests.
"""

from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numba import njit
from torch import Tensor

from powerphase.metrics.kernels import (
    LANES,
    _flat_view,
    _run_on_threads,
    _sort,
    _sum_crps,
    sorting_network,
)


def line_sums(
    values: Float[Tensor, "M H C"],
    weights: Float[Tensor, " M"],
    target: Float[Tensor, "H C"],
    branches: tuple[np.ndarray, ...],
    buses: tuple[np.ndarray, ...],
    power: tuple[float, float, float],
) -> tuple[Float[Tensor, "4 H R"], Int64[Tensor, "M1 H"], Float64[Tensor, "2 H"], Tensor]:
    """The fields of `lines.LineSums`.

    Args:
        values: the scenarios of a window.
        weights: one for each scenario.
        target: what happened.
        branches: ends; rows of conductance, susceptance, half of the charging, reciprocal of the
            ratio, and shift; and the reciprocal of each rating, of the rated branches only.
        buses: lower and upper limit of the voltage; rows of shunt conductance and susceptance.
        power: scales of P and Q [p.u.], and the base [MVA].
    """
    n_scenarios, horizon, _ = values.shape
    n_rated = len(branches[-1])
    points = torch.empty((4, horizon, n_rated), dtype=values.dtype)
    counts = torch.empty((n_scenarios + 1, horizon), dtype=torch.int64)
    pairs = torch.empty((2, horizon), dtype=torch.float64)
    balance = torch.empty(horizon, dtype=torch.float64)
    low, high = weights.aminmax()
    arguments = (
        sorting_network(n_scenarios),
        bool(low != high),
        weights.to(values.dtype).numpy(),
        *branches,
        *buses,
        power,
        *_flat_view(values[None]),
        target.to(values.dtype).contiguous().numpy(),
        *(part.numpy() for part in (points, counts, pairs, balance)),
    )
    _run_on_threads(_line_sums, arguments, horizon)
    return points, counts, pairs, balance


@no_type_check
@njit(nogil=True, cache=True)
def _line_sums(
    pairs, unequal, weights, ends, branch, rating, low, high, shunt, power,
    values, to_scenario, to_step, target, points, counts, variogram, balance, first, last,
):  # fmt: skip
    n_scenarios, n_rated, n_channels = len(weights), points.shape[2], target.shape[1]
    dtype = values.dtype
    loading = np.empty((n_scenarios, n_rated), dtype)
    truth = np.empty(n_rated, dtype)
    buffers = np.empty((3, n_channels // 4))
    roots = np.empty((4, len(ends)))
    for h in range(first, last):
        roots[:] = 0.0
        squares = 0.0
        for m in range(n_scenarios):
            start = np.uint64(h) * to_step + np.uint64(m) * to_scenario
            state = values[start : start + np.uint64(n_channels)]
            violations, square = _flows(
                state, ends, branch, rating, low, high, shunt, power, buffers, loading[m]
            )
            counts[m, h] = violations
            squares += weights[m] * square
            _add_roots(state, ends, weights[m], roots[:2])
        violations, _ = _flows(
            target[h], ends, branch, rating, low, high, shunt, power, buffers, truth
        )
        counts[n_scenarios, h] = violations
        _add_roots(target[h], ends, 1.0, roots[2:])
        balance[h] = squares
        for kind in range(2):
            total = 0.0
            for k in range(len(ends)):
                total += (roots[kind, k] - roots[2 + kind, k]) ** 2
            variogram[kind, h] = total / len(ends) if len(ends) else np.nan
        _sum_loading(pairs, unequal, weights, loading, truth, points[:, h])


@no_type_check
@njit(nogil=True, cache=True)
def _flows(state, ends, branch, rating, low, high, shunt, power, buffers, loading):
    """Fill the loading of the rated branches; count violations, and square the power balance.

    `lines.end_flows` explains the arithmetic.
    """
    p_scale, q_scale, base_mva = power
    active, reactive = buffers[0], buffers[1]
    violations = 0
    for i in range(len(low)):
        v = state[4 * i + 2]
        violations += (v < low[i]) | (v > high[i])
        square = np.float64(v) * v
        active[i] = p_scale * state[4 * i] + square * shunt[0, i]
        reactive[i] = q_scale * state[4 * i + 1] - square * shunt[1, i]
    for k in range(len(ends)):
        i, j = ends[k, 0], ends[k, 1]
        turned = state[4 * i + 2] * branch[3, k]
        v = np.float64(state[4 * j + 2])
        angle = np.float64(state[4 * i + 3]) - state[4 * j + 3] - branch[4, k]
        real, imaginary = turned * np.cos(angle), turned * np.sin(angle)
        series, susceptance, half = branch[0, k], branch[1, k], branch[2, k]
        difference = real - v
        drawn = series * difference - susceptance * imaginary
        lagging = series * imaginary + susceptance * difference
        start_real, start_imaginary = drawn - half * imaginary, lagging + half * real
        end_real, end_imaginary = -drawn, half * v - lagging
        p_start = real * start_real + imaginary * start_imaginary
        q_start = imaginary * start_real - real * start_imaginary
        p_end, q_end = v * end_real, -v * end_imaginary
        active[i] += p_start
        reactive[i] += q_start
        active[j] += p_end
        reactive[j] += q_end
        if k < len(loading):
            larger = max(p_start * p_start + q_start * q_start, p_end * p_end + q_end * q_end)
            loading[k] = np.sqrt(larger) * rating[k]
            violations += loading[k] > 1
    total = 0.0
    for i in range(len(low)):
        total += active[i] * active[i] + reactive[i] * reactive[i]
    return violations, total * base_mva * base_mva / len(low)


@no_type_check
@njit(nogil=True, cache=True)
def _add_roots(state, ends, weight, roots):
    """Add the weighted roots of the differences of θ and of V between the ends of each branch."""
    for k in range(len(ends)):
        i, j = 4 * ends[k, 0], 4 * ends[k, 1]
        roots[0, k] += weight * np.sqrt(abs(np.float64(state[i + 3]) - state[j + 3]))
        roots[1, k] += weight * np.sqrt(abs(np.float64(state[i + 2]) - state[j + 2]))


@no_type_check
@njit(nogil=True, cache=True)
def _sum_loading(pairs, unequal, weights, loading, truth, points):
    """CRPS of loading, probability of overload, CRPS of loading above 1, and what happened."""
    n_scenarios, n_rated = loading.shape
    tile = np.zeros((n_scenarios, LANES), loading.dtype)
    tile_weights = np.zeros((n_scenarios, LANES), loading.dtype)
    scratch = np.empty((6, LANES), loading.dtype)
    actual, distance, below = scratch[0], scratch[1], scratch[2]
    crps = np.empty(LANES, loading.dtype)
    unit = loading.dtype.type(1)
    for offset in range(0, n_rated, LANES):
        n = min(LANES, n_rated - offset)
        for m in range(n_scenarios):
            for lane in range(n):
                tile[m, lane] = loading[m, offset + lane]
                tile_weights[m, lane] = weights[m]
        _sort(pairs, unequal, tile, tile_weights, scratch, n)
        for lane in range(n):
            actual[lane] = truth[offset + lane]
        _sum_crps(tile, tile_weights, actual, distance, below, crps, n)
        for lane in range(n):
            points[0, offset + lane] = crps[lane]
            points[3, offset + lane] = actual[lane]
            actual[lane] = max(actual[lane], unit)
            points[1, offset + lane] = 0
        for m in range(n_scenarios):
            for lane in range(n):
                points[1, offset + lane] += tile_weights[m, lane] if tile[m, lane] > unit else 0
                tile[m, lane] = max(tile[m, lane], unit)
        _sum_crps(tile, tile_weights, actual, distance, below, crps, n)
        for lane in range(n):
            points[1, offset + lane] = min(points[1, offset + lane], unit)
            points[2, offset + lane] = crps[lane]
