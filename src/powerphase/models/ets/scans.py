"""The two passes over a record by which everything about Holt-Winters is computed.

Forward, one step of a channel is

    e = y − (l + b + s)        l ← l + b + α e        b ← b + αβ e        s ← s + γ e

where s is the season's value of a season's length m ago. Each pass has three forms that agree up to
rounding: numba on a CPU, all channels of a step side by side in vector instructions; Triton on a
GPU, one channel in each lane; and plain torch, by which tests judge both.

States are rows: level, trend, and the m values of the season, that of the next step first. Gains
are rows too: α, αβ and γ.
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

from powerphase.models.framework.kernels.toolkit import constexpr, jit, tl, triton

SEASON = 2
"""The first row of states that is of the season."""

LANES = 32
"""Channels of one program on a GPU: a warp, since programs are few and steps are many."""


class Sweep(NamedTuple):
    """What a record leaves behind when it has passed."""

    sse: Float64[Tensor, " C"]
    """The sum of squared errors."""
    states: Float64[Tensor, "K C"]
    """At the end."""


class Slopes(NamedTuple):
    """The gradient of half the sum of squared errors."""

    gains: Float64[Tensor, "3 C"]
    states: Float64[Tensor, "K C"]


def forward(
    record: Float[Tensor, "R C"],
    gains: Float64[Tensor, "3 C"],
    states: Float64[Tensor, "K C"],
    errors: Float64[Tensor, "S C"] | None = None,
    steps: int | None = None,
) -> Sweep:
    """Pass over a record from its first step on, from these states.

    Args:
        record: what was measured.
        gains: α, αβ and γ of every channel.
        states: before the first step.
        errors: filled with every step's error, where they are wanted.
        steps: how many, where they are more than the record has: its last one goes on.
    """
    n_steps = len(record) if steps is None else steps
    ended = states.clone(memory_format=torch.contiguous_format)
    sse = torch.zeros_like(ended[0])
    kept = ended.new_empty((0, len(sse))) if errors is None else errors
    given = (record.contiguous(), gains.contiguous(), ended, kept, sse, n_steps)
    (_forward_on_gpu if record.is_cuda else _forward_on_cpu)(*given)
    return Sweep(sse, torch.cat([ended[:SEASON], ended[SEASON:].roll(-n_steps, 0)]))


def response(
    gains: Float64[Tensor, "3 C"], states: Float64[Tensor, "K C"], steps: int
) -> Float64[Tensor, " C"]:
    """The squared errors that states alone make, where nothing is measured."""
    return forward(torch.zeros_like(states[:1]), gains, states, steps=steps).sse


def backward(errors: Float64[Tensor, "S C"], gains: Float64[Tensor, "3 C"], season: int) -> Slopes:
    """The gradient at a pass that left these errors; nothing else of it is needed."""
    found = Slopes(torch.zeros_like(gains), errors.new_zeros((SEASON + season, errors.shape[1])))
    given = (errors, gains.contiguous(), *found)
    (_backward_on_gpu if errors.is_cuda else _backward_on_cpu)(*given)
    return found


def forward_plain(
    record: Float[Tensor, "S C"], gains: Float64[Tensor, "3 C"], states: Float64[Tensor, "K C"]
) -> tuple[Float64[Tensor, "S C"], Float64[Tensor, "K C"]]:
    """Errors and last states in plain torch, which differentiates it."""
    alpha, drift, gamma = gains
    level, trend, *season = states
    errors = []
    for value in record.double():
        errors.append(value - (level + trend + season[0]))
        level = level + trend + alpha * errors[-1]
        trend = trend + drift * errors[-1]
        season = [*season[1:], season[0] + gamma * errors[-1]]
    return torch.stack(errors), torch.stack([level, trend, *season])


def _on_threads(kernel: Callable[..., None], n_channels: int, *given: object) -> None:
    """Run the kernel, its channels shared out among torch's threads."""
    threads = min(torch.get_num_threads(), n_channels)
    if threads == 1:
        kernel(*given, 0, n_channels)
        return
    edges = [n_channels * k // threads for k in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernel(*given, *ends), pairwise(edges)))


def _forward_on_cpu(
    record: Tensor, gains: Tensor, states: Tensor, errors: Tensor, sse: Tensor, n_steps: int
) -> None:
    arrays = (part.numpy() for part in (record, gains, states, errors, sse))
    _on_threads(_forward, len(sse), *arrays, n_steps)


def _backward_on_cpu(errors: Tensor, gains: Tensor, of_gains: Tensor, of_states: Tensor) -> None:
    arrays = (part.numpy() for part in (errors, gains, of_gains, of_states))
    _on_threads(_backward, errors.shape[1], *arrays)


# A step is one loop over channels. They are unsigned, and rows are taken out first: with an index
# that might be negative, or be computed in the loop, the compiler would vectorise nothing.


@no_type_check
@njit(nogil=True, cache=True, error_model="numpy")
def _forward(record, gains, states, errors, sse, n_steps, first, last):
    alpha, drift, gamma = gains[0], gains[1], gains[2]
    level, trend = states[0], states[1]
    for step in range(n_steps):
        value = record[min(step, len(record) - 1)]
        season = states[2 + step % (len(states) - 2)]
        if len(errors):
            kept = errors[step]
            for lane in range(np.uint64(first), np.uint64(last)):
                error = value[lane] - (level[lane] + trend[lane] + season[lane])
                level[lane] += trend[lane] + alpha[lane] * error
                trend[lane] += drift[lane] * error
                season[lane] += gamma[lane] * error
                sse[lane] += error * error
                kept[lane] = error
        else:
            for lane in range(np.uint64(first), np.uint64(last)):
                error = value[lane] - (level[lane] + trend[lane] + season[lane])
                level[lane] += trend[lane] + alpha[lane] * error
                trend[lane] += drift[lane] * error
                season[lane] += gamma[lane] * error
                sse[lane] += error * error


@no_type_check
@njit(nogil=True, cache=True, error_model="numpy")
def _backward(errors, gains, of_gains, of_states, first, last):
    alpha, drift, gamma = gains[0], gains[1], gains[2]
    of_alpha, of_drift, of_gamma = of_gains[0], of_gains[1], of_gains[2]
    of_level, of_trend = of_states[0], of_states[1]
    for step in range(len(errors) - 1, -1, -1):
        now, of_season = errors[step], of_states[2 + step % (len(of_states) - 2)]
        for lane in range(np.uint64(first), np.uint64(last)):
            error, level, trend = now[lane], of_level[lane], of_trend[lane]
            season = of_season[lane]
            of_alpha[lane] += error * level
            of_drift[lane] += error * trend
            of_gamma[lane] += error * season
            whole = error + alpha[lane] * level + drift[lane] * trend + gamma[lane] * season
            of_level[lane] = level - whole
            of_trend[lane] = level + trend - whole
            of_season[lane] = season - whole


def _forward_on_gpu(
    record: Tensor, gains: Tensor, states: Tensor, errors: Tensor, sse: Tensor, n_steps: int
) -> None:
    _forward_lanes[(triton.cdiv(len(sse), LANES),)](
        *(record, gains, states, errors, sse, len(sse)),
        MEASURED=len(record),
        STEPS=n_steps,
        SEASON=len(states) - SEASON,
        KEEPS=errors.numel() > 0,
        LANES=LANES,
        num_warps=1,
    )


def _backward_on_gpu(errors: Tensor, gains: Tensor, of_gains: Tensor, of_states: Tensor) -> None:
    n_steps, n_channels = errors.shape
    _backward_lanes[(triton.cdiv(n_channels, LANES),)](
        *(errors, gains, of_gains, of_states, n_channels),
        STEPS=n_steps,
        SEASON=len(of_states) - SEASON,
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
    KEEPS: constexpr,
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
        if KEEPS:
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
    of_gains,
    of_states,
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
    of_level = tl.zeros([LANES], tl.float64)
    of_trend = tl.zeros([LANES], tl.float64)
    of_alpha = tl.zeros([LANES], tl.float64)
    of_drift = tl.zeros([LANES], tl.float64)
    of_gamma = tl.zeros([LANES], tl.float64)
    # The last row of a large grid's errors lies beyond what 32 bits can count.
    errors += lane + (tl.zeros([LANES], tl.int64) + width) * (STEPS - 1)
    for back in range(STEPS):
        ring = of_states + (2 + (STEPS - 1 - back) % SEASON) * width + lane
        error, season = tl.load(errors, inside, 0.0), tl.load(ring, inside, 0.0)
        of_alpha += error * of_level
        of_drift += error * of_trend
        of_gamma += error * season
        whole = error + alpha * of_level + drift * of_trend + gamma * season
        of_trend += of_level - whole
        of_level -= whole
        tl.store(ring, season - whole, inside)
        errors -= width
    tl.store(of_gains + lane, of_alpha, inside)
    tl.store(of_gains + width + lane, of_drift, inside)
    tl.store(of_gains + 2 * width + lane, of_gamma, inside)
    tl.store(of_states + lane, of_level, inside)
    tl.store(of_states + width + lane, of_trend, inside)
