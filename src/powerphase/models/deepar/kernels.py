"""The sums over channels that a likelihood of rank one needs, straight from windows.

A program has some rows, steps of windows, and goes through all channels. It divides values by their
scale and makes mean, variance and factor of each where it needs them, so that nothing as large as
the windows is ever written: four numbers of each row are. The backward pass makes all of it once
more: by rows, for the slopes of what is known, and by channels, for those of the weights. Every
number is summed by one program, or by a few in a fixed order.

Products are as precise as a training asks for; all else is as precise as its numbers are, and sums
over tiles of channels are added up in float64.
"""

from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.deepar.head import UNIT
from powerphase.models.framework.kernels.toolkit import constexpr, jit, softplus, tl, triton
from powerphase.models.recurrent.inputs import Window

LEVEL = constexpr(UNIT)
SUMS, MAPS = 4, 3
MOST_WIDTH = 64
"""Of what is known, for which a tile's weights stay on the multiprocessor."""
ROWS, CHANNELS = 64, 32
"""Of a tile, where a program has rows."""
PROGRAMS = 512
"""About as many share the weights' slopes, whatever the machine, so that all add up alike."""


class Law(NamedTuple):
    """What is no tensor about it."""

    reach: int
    """The first step of a context that counts."""
    least_variance: float


def fast_sums(
    known: Float[Tensor, "B steps K"],
    weight: Float[Tensor, "3 C K"],
    bias: Float[Tensor, "3 C 1"],
    window: Window,
    law: Law,
) -> Float[Tensor, "B steps 4"]:
    """Σ log d, Σ r²/d, Σ f r/d and Σ f²/d over all channels; `head.channel_sums` in PyTorch.

    Args:
        known: before each step, from `law.reach` on.
        weight: of mean, diagonal and factor.
        bias: of the same.
        window: context and target, and their scale.
        law: the rest.
    """
    apply: Any = _Sums.apply
    found: Tensor = apply(known, weight, bias, window, law)
    return found


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, known: Tensor, weight: Tensor, bias: Tensor, window: Window, law: Law
    ) -> Tensor:
        inputs = _ready(known, weight, bias, window)
        found = weight.new_empty(*known.shape[:2], SUMS)
        constants = _compiled_for(known, weight, law)
        grid = (triton.cdiv(known.shape[0] * known.shape[1], constants["ROWS"]),)
        _forward[grid](*inputs, found, *_sizes(known, window), **constants)
        ctx.save_for_backward(known, weight, bias)
        ctx.window, ctx.constants = window, constants
        return found

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        known, weight, bias = ctx.saved_tensors
        inputs = (*_ready(known, weight, bias, ctx.window), upstream.contiguous())
        sizes = _sizes(known, ctx.window)
        constants = dict(ctx.constants)
        n_rows, n_channels, width = known.shape[0] * known.shape[1], weight.shape[1], known.shape[2]
        of_known = weight.new_empty(known.shape)
        grid = (triton.cdiv(n_rows, constants["ROWS"]),)
        _backward_rows[grid](*inputs, of_known, *sizes, **constants)
        constants["ROWS"], constants["CHANNELS"] = constants["CHANNELS"], constants["ROWS"]
        tiles = triton.cdiv(n_channels, constants["CHANNELS"])
        pieces = max(1, min(PROGRAMS // tiles, triton.cdiv(n_rows, 4 * constants["ROWS"])))
        each = triton.cdiv(triton.cdiv(n_rows, pieces), constants["ROWS"])
        parts = weight.new_empty(pieces, MAPS, n_channels, width + 1)
        _backward_channels[(tiles, pieces)](*inputs, parts, *sizes, each, **constants)
        slope = parts.sum(0)
        of_weight, of_bias = slope[..., :-1].contiguous(), slope[..., -1:].contiguous()
        return of_known.to(known.dtype), of_weight, of_bias, None, None


def _ready(known: Tensor, weight: Tensor, bias: Tensor, window: Window) -> tuple[Tensor, ...]:
    small = (known.to(weight.dtype), weight, bias)
    return (
        *(one.contiguous() for one in small),
        window.past,
        _target(window),
        window.scale.contiguous(),
    )


def _sizes(known: Tensor, window: Window) -> tuple[int, ...]:
    """Rows, counted steps of a window, those of its context, channels, and where windows lie.

    Past and target may be parts of one tensor: a copy of them is what kernels are there to avoid.
    """
    (n_windows, n_steps, _), (_, context, n_channels) = known.shape, window.past.shape
    strides = [*window.past.stride(), *_target(window).stride()]
    assert strides[2::3] == [1, 1] or n_channels == 1
    return n_windows * n_steps, n_steps, context, n_channels, *strides[:2], *strides[3:5]


def _target(window: Window) -> Tensor:
    assert window.target is not None
    return window.target


def _compiled_for(known: Tensor, weight: Tensor, law: Law) -> dict[str, Any]:
    """Sizes of tiles, and what products are rounded to.

    Where half precision is asked for it is TF32: what takes time here is not the products.
    """
    is_single = weight.dtype == torch.float32
    is_half = torch.is_autocast_enabled(weight.device.type)
    is_rough = is_single and (is_half or torch.get_float32_matmul_precision() != "highest")
    return {
        "K": known.shape[2],
        "WIDTH": max(16, triton.next_power_of_2(known.shape[2])),
        # Tensor cores take 64 rows. Without them all of a product is in registers: less of it.
        "ROWS": ROWS if is_rough else CHANNELS,
        "CHANNELS": CHANNELS,
        "REACH": law.reach,
        "LEAST": law.least_variance,
        "PRECISION": "tf32" if is_rough else "ieee",
        "num_warps": 4 if is_rough else 8,
        "num_stages": 2,
    }


@jit
@no_type_check
def _scaled(past, target, scale, row, channel, inside, n_steps, context, n_channels,
            past_window, past_step, target_window, target_step, REACH):  # fmt: skip
    """These rows and channels by their scale, whichever of both comes first in the tile."""
    window = (row // n_steps).to(tl.int64)
    step = row % n_steps + REACH
    seen = window * past_window + step * past_step + channel
    to_come = window * target_window + (step - context) * target_step + channel
    value = tl.load(past + seen, inside & (step < context), 0.0)
    value += tl.load(target + to_come, inside & (step >= context), 0.0)
    return value / tl.load(scale + window * n_channels + channel, inside, 1.0)


@jit
@no_type_check
def _slopes(residual, raw, factor, g_log, g_square, g_cross, g_own, LEAST):
    """Of mean, what the variance is made from, and factor, where sums have these slopes."""
    variance, steep = softplus(raw)
    share = 1 / (variance + LEAST)
    r, f = residual * share, factor * share
    of_mean = -(2 * g_square * r + g_cross * f)
    of_factor = g_cross * r + 2 * g_own * f
    of_variance = g_log * share - (g_square * r * r + g_cross * f * r + g_own * f * f)
    return of_mean, of_variance * steep, of_factor


@jit
@no_type_check
def _forward(
    known, weight, bias, past, target, scale, found,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    there, real = row < n_rows, column < K
    at = row.to(tl.int64)[:, None] * K + column[None, :]
    h = tl.load(known + at, there[:, None] & real[None, :], 0.0)
    log, square = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    cross, own = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    for first in range(0, n_channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        some = channel < n_channels
        inside = there[:, None] & some[None, :]
        place, have = channel[None, :] * K + column[:, None], real[:, None] & some[None, :]
        z = _scaled(past, target, scale, row[:, None], channel[None, :], inside,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        plane = n_channels * K
        mean = tl.dot(h, tl.load(weight + place, have, 0.0), input_precision=PRECISION)
        raw = tl.dot(h, tl.load(weight + plane + place, have, 0.0), input_precision=PRECISION)
        factor = tl.dot(
            h, tl.load(weight + 2 * plane + place, have, 0.0), input_precision=PRECISION
        )
        residual = z - (mean + tl.load(bias + channel, some, 0.0)[None, :])
        raw += tl.load(bias + n_channels + channel, some, 0.0)[None, :]
        factor += tl.load(bias + 2 * n_channels + channel, some, 0.0)[None, :]
        variance, _ = softplus(raw + LEVEL)
        variance += LEAST
        # Channels that are none would have a variance of one and the least.
        log += tl.sum(tl.where(inside, tl.log(variance), 0.0), 1).to(tl.float64)
        square += tl.sum(residual * residual / variance, 1).to(tl.float64)
        cross += tl.sum(factor * residual / variance, 1).to(tl.float64)
        own += tl.sum(factor * factor / variance, 1).to(tl.float64)
    to = found + row.to(tl.int64) * 4
    tl.store(to, log, there)
    tl.store(to + 1, square, there)
    tl.store(to + 2, cross, there)
    tl.store(to + 3, own, there)


@jit
@no_type_check
def _backward_rows(
    known, weight, bias, past, target, scale, upstream, of_known,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    there, real = row < n_rows, column < K
    at = row.to(tl.int64)[:, None] * K + column[None, :]
    h = tl.load(known + at, there[:, None] & real[None, :], 0.0)
    above = upstream + row.to(tl.int64) * 4
    g_log, g_square = tl.load(above, there, 0.0)[:, None], tl.load(above + 1, there, 0.0)[:, None]
    g_cross, g_own = (
        tl.load(above + 2, there, 0.0)[:, None],
        tl.load(above + 3, there, 0.0)[:, None],
    )
    total = tl.zeros([ROWS, WIDTH], h.dtype)
    for first in range(0, n_channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        some = channel < n_channels
        inside = there[:, None] & some[None, :]
        place, have = channel[None, :] * K + column[:, None], real[:, None] & some[None, :]
        z = _scaled(past, target, scale, row[:, None], channel[None, :], inside,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        plane = n_channels * K
        w_mean = tl.load(weight + place, have, 0.0)
        w_raw = tl.load(weight + plane + place, have, 0.0)
        w_factor = tl.load(weight + 2 * plane + place, have, 0.0)
        mean = tl.dot(h, w_mean, input_precision=PRECISION)
        raw = tl.dot(h, w_raw, input_precision=PRECISION)
        factor = tl.dot(h, w_factor, input_precision=PRECISION)
        residual = z - (mean + tl.load(bias + channel, some, 0.0)[None, :])
        raw += tl.load(bias + n_channels + channel, some, 0.0)[None, :] + LEVEL
        factor += tl.load(bias + 2 * n_channels + channel, some, 0.0)[None, :]
        of_mean, of_raw, of_factor = _slopes(
            residual, raw, factor, g_log, g_square, g_cross, g_own, LEAST
        )
        total += tl.dot(of_mean, tl.trans(w_mean), input_precision=PRECISION)
        total += tl.dot(of_raw, tl.trans(w_raw), input_precision=PRECISION)
        total += tl.dot(of_factor, tl.trans(w_factor), input_precision=PRECISION)
    tl.store(of_known + at, total, there[:, None] & real[None, :])


@jit
@no_type_check
def _backward_channels(
    known, weight, bias, past, target, scale, upstream, parts,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step, TILES: constexpr,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    column = tl.arange(0, WIDTH)
    some, real = channel < n_channels, column < K
    place, have = channel[:, None] * K + column[None, :], some[:, None] & real[None, :]
    plane = n_channels * K
    w_mean = tl.load(weight + place, have, 0.0)
    w_raw = tl.load(weight + plane + place, have, 0.0)
    w_factor = tl.load(weight + 2 * plane + place, have, 0.0)
    b_mean = tl.load(bias + channel, some, 0.0)[:, None]
    b_raw = tl.load(bias + n_channels + channel, some, 0.0)[:, None] + LEVEL
    b_factor = tl.load(bias + 2 * n_channels + channel, some, 0.0)[:, None]
    t_mean, t_raw = (
        tl.zeros([CHANNELS, WIDTH], w_raw.dtype),
        tl.zeros([CHANNELS, WIDTH], w_raw.dtype),
    )
    t_factor = tl.zeros([CHANNELS, WIDTH], w_raw.dtype)
    s_mean, s_raw = tl.zeros([CHANNELS], w_raw.dtype), tl.zeros([CHANNELS], w_raw.dtype)
    s_factor = tl.zeros([CHANNELS], w_raw.dtype)
    start = tl.program_id(1) * TILES
    for tile in range(TILES):
        row = (start + tile) * ROWS + tl.arange(0, ROWS)
        there = row < n_rows
        inside = some[:, None] & there[None, :]
        at = row.to(tl.int64)[:, None] * K + column[None, :]
        h = tl.load(known + at, there[:, None] & real[None, :], 0.0)
        above = upstream + row.to(tl.int64) * 4
        g_log = tl.load(above, there, 0.0)[None, :]
        g_square = tl.load(above + 1, there, 0.0)[None, :]
        g_cross = tl.load(above + 2, there, 0.0)[None, :]
        g_own = tl.load(above + 3, there, 0.0)[None, :]
        z = _scaled(past, target, scale, row[None, :], channel[:, None], inside,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        turned = tl.trans(h)
        residual = z - (tl.dot(w_mean, turned, input_precision=PRECISION) + b_mean)
        raw = tl.dot(w_raw, turned, input_precision=PRECISION) + b_raw
        factor = tl.dot(w_factor, turned, input_precision=PRECISION) + b_factor
        of_mean, of_raw, of_factor = _slopes(
            residual, raw, factor, g_log, g_square, g_cross, g_own, LEAST
        )
        t_mean += tl.dot(of_mean, h, input_precision=PRECISION)
        t_raw += tl.dot(of_raw, h, input_precision=PRECISION)
        t_factor += tl.dot(of_factor, h, input_precision=PRECISION)
        s_mean += tl.sum(of_mean, 1)
        s_raw += tl.sum(of_raw, 1)
        s_factor += tl.sum(of_factor, 1)
    to = parts + tl.program_id(1).to(tl.int64) * 3 * n_channels * (K + 1)
    here = channel[:, None] * (K + 1) + column[None, :]
    plane = n_channels * (K + 1)
    tl.store(to + here, t_mean, have)
    tl.store(to + plane + here, t_raw, have)
    tl.store(to + 2 * plane + here, t_factor, have)
    here = channel * (K + 1) + K
    tl.store(to + here, s_mean, some)
    tl.store(to + plane + here, s_raw, some)
    tl.store(to + 2 * plane + here, s_factor, some)
