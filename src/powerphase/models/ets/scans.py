"""The forward and the backward pass over a record, on which all of Holt-Winters is built.

Forward, one step of a channel is

    e = y − (l + b + s)        l ← l + b + α e        b ← b + αβ e        s ← s + γ e

where s is the value of the season one season length m ago. Each pass has three implementations that
agree up to rounding: numba on a CPU, with the channels of a step in vector instructions; Triton on
a GPU, with one channel per lane; and plain torch, against which both are tested.

Rows of `states` are the level, the trend, and the m values of the season, that of the next step
first. Rows of `gains` are α, αβ and γ.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Float, Float64
from numba import njit
from torch import Tensor

from powerphase.models.framework.kernels import constexpr, jit, tl, triton

SEASON = 2
"""The first row of the season in `states`."""

LANES = 32
"""Channels of one program on a GPU: one warp, since programs are few and steps are many."""


class ForwardPass(NamedTuple):
    """The result of a forward pass over a record."""

    sse: Float64[Tensor, " C"]
    """The sum of squared errors."""
    states: Float64[Tensor, "K C"]
    """After the last step."""


class Gradient(NamedTuple):
    """The gradient of half the sum of squared errors."""

    gains: Float64[Tensor, "3 C"]
    states: Float64[Tensor, "K C"]


def forward(
    record: Float[Tensor, "R C"],
    gains: Float64[Tensor, "3 C"],
    states: Float64[Tensor, "K C"],
    errors: Float64[Tensor, "S C"] | None = None,
    steps: int | None = None,
) -> ForwardPass:
    """Filter a record from its first step on, starting with these states.

    Args:
        record: the measured values.
        gains: α, αβ and γ of every channel.
        states: the states before the first step.
        errors: an array that receives the error of every step, if given.
        steps: the number of steps, if larger than the record; its last value is repeated.
    """
    n_steps = len(record) if steps is None else steps
    final = states.clone(memory_format=torch.contiguous_format)
    sse = torch.zeros_like(final[0])
    stored = final.new_empty((0, len(sse))) if errors is None else errors
    arguments = (record.contiguous(), gains.contiguous(), final, stored, sse, n_steps)
    (_forward_on_gpu if record.is_cuda else _forward_on_cpu)(*arguments)
    return ForwardPass(sse, torch.cat([final[:SEASON], final[SEASON:].roll(-n_steps, 0)]))


def response(
    gains: Float64[Tensor, "3 C"], states: Float64[Tensor, "K C"], steps: int
) -> Float64[Tensor, " C"]:
    """The sum of squared errors of a record of zeros."""
    return forward(torch.zeros_like(states[:1]), gains, states, steps=steps).sse


def backward(
    errors: Float64[Tensor, "S C"], gains: Float64[Tensor, "3 C"], season: int
) -> Gradient:
    """The gradient of a forward pass, which depends on the pass only through its errors."""
    gradient = Gradient(
        torch.zeros_like(gains), errors.new_zeros((SEASON + season, errors.shape[1]))
    )
    arguments = (errors, gains.contiguous(), *gradient)
    (_backward_on_gpu if errors.is_cuda else _backward_on_cpu)(*arguments)
    return gradient


def forward_plain(
    record: Float[Tensor, "S C"], gains: Float64[Tensor, "3 C"], states: Float64[Tensor, "K C"]
) -> tuple[Float64[Tensor, "S C"], Float64[Tensor, "K C"]]:
    """Errors and final states in plain torch, differentiable by autograd."""
    alpha, drift, gamma = gains
    level, trend, *season = states
    errors = []
    for value in record.double():
        errors.append(value - (level + trend + season[0]))
        level = level + trend + alpha * errors[-1]
        trend = trend + drift * errors[-1]
        season = [*season[1:], season[0] + gamma * errors[-1]]
    return torch.stack(errors), torch.stack([level, trend, *season])


def _run_on_threads(kernel: Callable[..., None], n_channels: int, *arguments: object) -> None:
    """Run the kernel with its channels divided among torch's threads."""
    threads = min(torch.get_num_threads(), n_channels)
    if threads == 1:
        kernel(*arguments, 0, n_channels)
        return
    edges = [n_channels * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernel(*arguments, *ends), pairwise(edges)))


def _forward_on_cpu(
    record: Tensor, gains: Tensor, states: Tensor, errors: Tensor, sse: Tensor, n_steps: int
) -> None:
    arrays = (part.numpy() for part in (record, gains, states, errors, sse))
    _run_on_threads(_forward, len(sse), *arrays, n_steps)


def _backward_on_cpu(
    errors: Tensor, gains: Tensor, gains_grad: Tensor, states_grad: Tensor
) -> None:
    arrays = (part.numpy() for part in (errors, gains, gains_grad, states_grad))
    _run_on_threads(_backward, errors.shape[1], *arrays)


# A step is one loop over channels. Its index is unsigned and rows are selected before the loop:
# with an index that might be negative or is computed in it, the compiler vectorises nothing.


@no_type_check
@njit(nogil=True, cache=True, error_model="numpy")
def _forward(record, gains, states, errors, sse, n_steps, first, last):
    alpha, drift, gamma = gains[0], gains[1], gains[2]
    level, trend = states[0], states[1]
    for step in range(n_steps):
        value = record[min(step, len(record) - 1)]
        season = states[2 + step % (len(states) - 2)]
        if len(errors):
            stored = errors[step]
            for lane in range(np.uint64(first), np.uint64(last)):
                error = value[lane] - (level[lane] + trend[lane] + season[lane])
                level[lane] += trend[lane] + alpha[lane] * error
                trend[lane] += drift[lane] * error
                season[lane] += gamma[lane] * error
                sse[lane] += error * error
                stored[lane] = error
        else:
            for lane in range(np.uint64(first), np.uint64(last)):
                error = value[lane] - (level[lane] + trend[lane] + season[lane])
                level[lane] += trend[lane] + alpha[lane] * error
                trend[lane] += drift[lane] * error
                season[lane] += gamma[lane] * error
                sse[lane] += error * error


@no_type_check
@njit(nogil=True, cache=True, error_model="numpy")
def _backward(errors, gains, gains_grad, states_grad, first, last):
    alpha, drift, gamma = gains[0], gains[1], gains[2]
    alpha_grad, drift_grad, gamma_grad = gains_grad[0], gains_grad[1], gains_grad[2]
    level_grad, trend_grad = states_grad[0], states_grad[1]
    for step in range(len(errors) - 1, -1, -1):
        current, season_grad = errors[step], states_grad[2 + step % (len(states_grad) - 2)]
        for lane in range(np.uint64(first), np.uint64(last)):
            error, level, trend = current[lane], level_grad[lane], trend_grad[lane]
            season = season_grad[lane]
            alpha_grad[lane] += error * level
            drift_grad[lane] += error * trend
            gamma_grad[lane] += error * season
            total = error + alpha[lane] * level + drift[lane] * trend + gamma[lane] * season
            level_grad[lane] = level - total
            trend_grad[lane] = level + trend - total
            season_grad[lane] = season - total


def _forward_on_gpu(
    record: Tensor, gains: Tensor, states: Tensor, errors: Tensor, sse: Tensor, n_steps: int
) -> None:
    _forward_lanes[(triton.cdiv(len(sse), LANES),)](
        *(record, gains, states, errors, sse, len(sse)),
        MEASURED=len(record),
        STEPS=n_steps,
        SEASON=len(states) - SEASON,
        STORES=errors.numel() > 0,
        LANES=LANES,
        num_warps=1,
    )


def _backward_on_gpu(
    errors: Tensor, gains: Tensor, gains_grad: Tensor, states_grad: Tensor
) -> None:
    n_steps, n_channels = errors.shape
    _backward_lanes[(triton.cdiv(n_channels, LANES),)](
        *(errors, gains, gains_grad, states_grad, n_channels),
        STEPS=n_steps,
        SEASON=len(states_grad) - SEASON,
        LANES=LANES,
        num_warps=1,
    )


@jit
@no_type_check
def _forward_lanes(
    record,
    gains,
    states,
    errors,
    sse,
    width,
    MEASURED: constexpr,
    STEPS: constexpr,
    SEASON: constexpr,
    STORES: constexpr,
    LANES: constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = lane < width
    alpha = tl.load(gains + lane, inside, 0.0)
    drift = tl.load(gains + width + lane, inside, 0.0)
    gamma = tl.load(gains + 2 * width + lane, inside, 0.0)
    level = tl.load(states + lane, inside, 0.0)
    trend = tl.load(states + width + lane, inside, 0.0)
    total = tl.zeros([LANES], tl.float64)
    record += lane
    errors += lane
    for step in range(STEPS):
        ring = states + (2 + step % SEASON) * width + lane
        season = tl.load(ring, inside, 0.0)
        error = tl.load(record, inside, 0.0).to(tl.float64) - (level + trend + season)
        level += trend + alpha * error
        trend += drift * error
        tl.store(ring, season + gamma * error, inside)
        total += error * error
        if STORES:
            tl.store(errors, error, inside)
            errors += width
        record += tl.where(step + 1 < MEASURED, width, 0)
    tl.store(states + lane, level, inside)
    tl.store(states + width + lane, trend, inside)
    tl.store(sse + lane, total, inside)


@jit
@no_type_check
def _backward_lanes(
    errors,
    gains,
    gains_grad,
    states_grad,
    width,
    STEPS: constexpr,
    SEASON: constexpr,
    LANES: constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    inside = lane < width
    alpha = tl.load(gains + lane, inside, 0.0)
    drift = tl.load(gains + width + lane, inside, 0.0)
    gamma = tl.load(gains + 2 * width + lane, inside, 0.0)
    level_grad = tl.zeros([LANES], tl.float64)
    trend_grad = tl.zeros([LANES], tl.float64)
    alpha_grad = tl.zeros([LANES], tl.float64)
    drift_grad = tl.zeros([LANES], tl.float64)
    gamma_grad = tl.zeros([LANES], tl.float64)
    # The offset of the last row of a large grid's errors exceeds 32 bits.
    errors += lane + (tl.zeros([LANES], tl.int64) + width) * (STEPS - 1)
    for back in range(STEPS):
        ring = states_grad + (2 + (STEPS - 1 - back) % SEASON) * width + lane
        error, season = tl.load(errors, inside, 0.0), tl.load(ring, inside, 0.0)
        alpha_grad += error * level_grad
        drift_grad += error * trend_grad
        gamma_grad += error * season
        total = error + alpha * level_grad + drift * trend_grad + gamma * season
        trend_grad += level_grad - total
        level_grad -= total
        tl.store(ring, season - total, inside)
        errors -= width
    tl.store(gains_grad + lane, alpha_grad, inside)
    tl.store(gains_grad + width + lane, drift_grad, inside)
    tl.store(gains_grad + 2 * width + lane, gamma_grad, inside)
    tl.store(states_grad + lane, level_grad, inside)
    tl.store(states_grad + width + lane, trend_grad, inside)
