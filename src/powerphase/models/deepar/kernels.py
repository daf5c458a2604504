"""Triton kernels of DeepAR's sums over channels, for a covariance of rank one.

A program owns some rows (steps of windows) and loops over all channels. It scales the values and
computes mean, variance and factor of each channel in registers, so that nothing as large as the
windows is ever written; the output is four numbers per row. The backward pass recomputes all of
it twice: by rows for the gradient of the hidden state, and by channels for the gradients of the
weights. Every number is summed by one program, or by a few in a fixed order.

Matrix products have the precision of the training. Everything else has the precision of its
inputs, and the sums over tiles of channels are accumulated in float64.
"""

from math import e, log
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import constexpr, jit, softplus, tl, triton
from powerphase.models.recurrent.encoder import Window

SOFTPLUS_OFFSET = log(e - 1)
"""The softplus of this is 1, so that variances start at 1."""
OFFSET = constexpr(SOFTPLUS_OFFSET)
SUMS, MAPS = 4, 3
MAX_WIDTH = 64
"""Largest hidden width for which the weights of a tile stay on the multiprocessor."""
ROWS, CHANNELS = 64, 32
"""Size of a tile in the kernels whose programs own rows."""
PROGRAMS = 512
"""Approximate number of programs for the gradients of the weights: the same on every machine, so
that the sums are too."""


def fused_channel_sums(
    hidden: Float[Tensor, "B steps K"],
    weight: Float[Tensor, "3 C K"],
    bias: Float[Tensor, "3 C 1"],
    window: Window,
    reach: int,
    least_variance: float,
) -> Float[Tensor, "B steps 4"]:
    """Σ log d, Σ r²/d, Σ f r/d and Σ f²/d over all channels; same as `network.channel_sums`.

    Args:
        hidden: output of the encoder before each step, from step `reach` on.
        weight: of the layers of mean, diagonal and factor.
        bias: of the same layers.
        window: context, target and scale.
        reach: first step of the context that counts.
        least_variance: added to the diagonal.
    """
    apply: Any = _FusedChannelSums.apply
    sums: Tensor = apply(hidden, weight, bias, window, reach, least_variance)
    return sums


class _FusedChannelSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        window: Window,
        reach: int,
        least_variance: float,
    ) -> Tensor:
        inputs = _tensors(hidden, weight, bias, window)
        sums = weight.new_empty(*hidden.shape[:2], SUMS)
        constants = _constants(hidden, weight, reach, least_variance)
        grid = (triton.cdiv(hidden.shape[0] * hidden.shape[1], constants["ROWS"]),)
        _forward_kernel[grid](*inputs, sums, *_sizes(hidden, window), **constants)
        ctx.save_for_backward(hidden, weight, bias)
        ctx.window, ctx.constants = window, constants
        return sums

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias = ctx.saved_tensors
        inputs = (*_tensors(hidden, weight, bias, ctx.window), upstream.contiguous())
        sizes = _sizes(hidden, ctx.window)
        constants = dict(ctx.constants)
        n_rows, n_channels, width = (
            hidden.shape[0] * hidden.shape[1],
            weight.shape[1],
            hidden.shape[2],
        )
        grad_hidden = weight.new_empty(hidden.shape)
        grid = (triton.cdiv(n_rows, constants["ROWS"]),)
        _backward_rows_kernel[grid](*inputs, grad_hidden, *sizes, **constants)
        constants["ROWS"], constants["CHANNELS"] = constants["CHANNELS"], constants["ROWS"]
        tiles = triton.cdiv(n_channels, constants["CHANNELS"])
        pieces = max(1, min(PROGRAMS // tiles, triton.cdiv(n_rows, 4 * constants["ROWS"])))
        each = triton.cdiv(triton.cdiv(n_rows, pieces), constants["ROWS"])
        parts = weight.new_empty(pieces, MAPS, n_channels, width + 1)
        _backward_channels_kernel[(tiles, pieces)](*inputs, parts, *sizes, each, **constants)
        gradient = parts.sum(0)
        grad_weight, grad_bias = gradient[..., :-1].contiguous(), gradient[..., -1:].contiguous()
        return grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None, None


def _tensors(hidden: Tensor, weight: Tensor, bias: Tensor, window: Window) -> tuple[Tensor, ...]:
    small = (hidden.to(weight.dtype), weight, bias)
    return (
        *(tensor.contiguous() for tensor in small),
        window.past,
        _target(window),
        window.scale.contiguous(),
    )


def _sizes(hidden: Tensor, window: Window) -> tuple[int, ...]:
    """Rows, steps per window, context steps, channels, and the strides of past and target.

    Past and target may be views of one tensor: copying them is what the kernels avoid.
    """
    (n_windows, n_steps, _), (_, context, n_channels) = hidden.shape, window.past.shape
    strides = [*window.past.stride(), *_target(window).stride()]
    assert strides[2::3] == [1, 1] or n_channels == 1
    return n_windows * n_steps, n_steps, context, n_channels, *strides[:2], *strides[3:5]


def _target(window: Window) -> Tensor:
    assert window.target is not None
    return window.target


def _constants(hidden: Tensor, weight: Tensor, reach: int, least_variance: float) -> dict[str, Any]:
    """Tile sizes and the precision of products.

    Half precision becomes TF32: the products are not what takes the time.
    """
    is_single = weight.dtype == torch.float32
    is_half = torch.is_autocast_enabled(weight.device.type)
    uses_tf32 = is_single and (is_half or torch.get_float32_matmul_precision() != "highest")
    return {
        "K": hidden.shape[2],
        "WIDTH": max(16, triton.next_power_of_2(hidden.shape[2])),
        # Tensor cores take 64 rows. Without them a whole product is in registers: use fewer.
        "ROWS": ROWS if uses_tf32 else CHANNELS,
        "CHANNELS": CHANNELS,
        "REACH": reach,
        "LEAST": least_variance,
        "PRECISION": "tf32" if uses_tf32 else "ieee",
        "num_warps": 4 if uses_tf32 else 8,
        "num_stages": 2,
    }


@jit
@no_type_check
def _load_scaled(past, target, scale, row, channel, valid, n_steps, context, n_channels,
            past_window, past_step, target_window, target_step, REACH):  # fmt: skip
    """Scaled values of these rows and channels; the tile may have either axis first."""
    window = (row // n_steps).to(tl.int64)
    step = row % n_steps + REACH
    past_at = window * past_window + step * past_step + channel
    target_at = window * target_window + (step - context) * target_step + channel
    value = tl.load(past + past_at, valid & (step < context), 0.0)
    value += tl.load(target + target_at, valid & (step >= context), 0.0)
    return value / tl.load(scale + window * n_channels + channel, valid, 1.0)


@jit
@no_type_check
def _gradients(residual, raw, factor, g_log, g_square, g_cross, g_norm, LEAST):
    """Gradients of mean, pre-softplus variance and factor, from those of the four sums."""
    variance, derivative = softplus(raw)
    inverse = 1 / (variance + LEAST)
    r, f = residual * inverse, factor * inverse
    grad_mean = -(2 * g_square * r + g_cross * f)
    grad_factor = g_cross * r + 2 * g_norm * f
    grad_variance = g_log * inverse - (g_square * r * r + g_cross * f * r + g_norm * f * f)
    return grad_mean, grad_variance * derivative, grad_factor


@jit
@no_type_check
def _forward_kernel(
    hidden, weight, bias, past, target, scale, sums,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_valid, column_valid = row < n_rows, column < K
    hidden_at = row.to(tl.int64)[:, None] * K + column[None, :]
    h = tl.load(hidden + hidden_at, row_valid[:, None] & column_valid[None, :], 0.0)
    log, square = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    cross, norm = tl.zeros([ROWS], tl.float64), tl.zeros([ROWS], tl.float64)
    for first in range(0, n_channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        channel_valid = channel < n_channels
        valid = row_valid[:, None] & channel_valid[None, :]
        weight_at, weight_valid = (
            channel[None, :] * K + column[:, None],
            column_valid[:, None] & channel_valid[None, :],
        )
        z = _load_scaled(past, target, scale, row[:, None], channel[None, :], valid,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        plane = n_channels * K
        mean = tl.dot(h, tl.load(weight + weight_at, weight_valid, 0.0), input_precision=PRECISION)
        raw = tl.dot(
            h, tl.load(weight + plane + weight_at, weight_valid, 0.0), input_precision=PRECISION
        )
        factor = tl.dot(
            h, tl.load(weight + 2 * plane + weight_at, weight_valid, 0.0), input_precision=PRECISION
        )
        residual = z - (mean + tl.load(bias + channel, channel_valid, 0.0)[None, :])
        raw += tl.load(bias + n_channels + channel, channel_valid, 0.0)[None, :]
        factor += tl.load(bias + 2 * n_channels + channel, channel_valid, 0.0)[None, :]
        variance, _ = softplus(raw + OFFSET)
        variance += LEAST
        # Padded channels would contribute a variance of about 1.
        log += tl.sum(tl.where(valid, tl.log(variance), 0.0), 1).to(tl.float64)
        square += tl.sum(residual * residual / variance, 1).to(tl.float64)
        cross += tl.sum(factor * residual / variance, 1).to(tl.float64)
        norm += tl.sum(factor * factor / variance, 1).to(tl.float64)
    out = sums + row.to(tl.int64) * 4
    tl.store(out, log, row_valid)
    tl.store(out + 1, square, row_valid)
    tl.store(out + 2, cross, row_valid)
    tl.store(out + 3, norm, row_valid)


@jit
@no_type_check
def _backward_rows_kernel(
    hidden, weight, bias, past, target, scale, upstream, grad_hidden,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    row_valid, column_valid = row < n_rows, column < K
    hidden_at = row.to(tl.int64)[:, None] * K + column[None, :]
    h = tl.load(hidden + hidden_at, row_valid[:, None] & column_valid[None, :], 0.0)
    upstream_at = upstream + row.to(tl.int64) * 4
    g_log, g_square = (
        tl.load(upstream_at, row_valid, 0.0)[:, None],
        tl.load(upstream_at + 1, row_valid, 0.0)[:, None],
    )
    g_cross, g_norm = (
        tl.load(upstream_at + 2, row_valid, 0.0)[:, None],
        tl.load(upstream_at + 3, row_valid, 0.0)[:, None],
    )
    total = tl.zeros([ROWS, WIDTH], h.dtype)
    for first in range(0, n_channels, CHANNELS):
        channel = first + tl.arange(0, CHANNELS)
        channel_valid = channel < n_channels
        valid = row_valid[:, None] & channel_valid[None, :]
        weight_at, weight_valid = (
            channel[None, :] * K + column[:, None],
            column_valid[:, None] & channel_valid[None, :],
        )
        z = _load_scaled(past, target, scale, row[:, None], channel[None, :], valid,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        plane = n_channels * K
        w_mean = tl.load(weight + weight_at, weight_valid, 0.0)
        w_raw = tl.load(weight + plane + weight_at, weight_valid, 0.0)
        w_factor = tl.load(weight + 2 * plane + weight_at, weight_valid, 0.0)
        mean = tl.dot(h, w_mean, input_precision=PRECISION)
        raw = tl.dot(h, w_raw, input_precision=PRECISION)
        factor = tl.dot(h, w_factor, input_precision=PRECISION)
        residual = z - (mean + tl.load(bias + channel, channel_valid, 0.0)[None, :])
        raw += tl.load(bias + n_channels + channel, channel_valid, 0.0)[None, :] + OFFSET
        factor += tl.load(bias + 2 * n_channels + channel, channel_valid, 0.0)[None, :]
        grad_mean, grad_raw, grad_factor = _gradients(
            residual, raw, factor, g_log, g_square, g_cross, g_norm, LEAST
        )
        total += tl.dot(grad_mean, tl.trans(w_mean), input_precision=PRECISION)
        total += tl.dot(grad_raw, tl.trans(w_raw), input_precision=PRECISION)
        total += tl.dot(grad_factor, tl.trans(w_factor), input_precision=PRECISION)
    tl.store(grad_hidden + hidden_at, total, row_valid[:, None] & column_valid[None, :])


@jit
@no_type_check
def _backward_channels_kernel(
    hidden, weight, bias, past, target, scale, upstream, parts,
    n_rows, n_steps, context, n_channels: constexpr,
    past_window, past_step, target_window, target_step, TILES: constexpr,
    K: constexpr, WIDTH: constexpr, ROWS: constexpr, CHANNELS: constexpr,
    REACH: constexpr, LEAST: constexpr, PRECISION: constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    column = tl.arange(0, WIDTH)
    channel_valid, column_valid = channel < n_channels, column < K
    weight_at, weight_valid = (
        channel[:, None] * K + column[None, :],
        channel_valid[:, None] & column_valid[None, :],
    )
    plane = n_channels * K
    w_mean = tl.load(weight + weight_at, weight_valid, 0.0)
    w_raw = tl.load(weight + plane + weight_at, weight_valid, 0.0)
    w_factor = tl.load(weight + 2 * plane + weight_at, weight_valid, 0.0)
    b_mean = tl.load(bias + channel, channel_valid, 0.0)[:, None]
    b_raw = tl.load(bias + n_channels + channel, channel_valid, 0.0)[:, None] + OFFSET
    b_factor = tl.load(bias + 2 * n_channels + channel, channel_valid, 0.0)[:, None]
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
        row_valid = row < n_rows
        valid = channel_valid[:, None] & row_valid[None, :]
        hidden_at = row.to(tl.int64)[:, None] * K + column[None, :]
        h = tl.load(hidden + hidden_at, row_valid[:, None] & column_valid[None, :], 0.0)
        upstream_at = upstream + row.to(tl.int64) * 4
        g_log = tl.load(upstream_at, row_valid, 0.0)[None, :]
        g_square = tl.load(upstream_at + 1, row_valid, 0.0)[None, :]
        g_cross = tl.load(upstream_at + 2, row_valid, 0.0)[None, :]
        g_norm = tl.load(upstream_at + 3, row_valid, 0.0)[None, :]
        z = _load_scaled(past, target, scale, row[None, :], channel[:, None], valid,
                    n_steps, context, n_channels,
                    past_window, past_step, target_window, target_step, REACH)  # fmt: skip
        hidden_t = tl.trans(h)
        residual = z - (tl.dot(w_mean, hidden_t, input_precision=PRECISION) + b_mean)
        raw = tl.dot(w_raw, hidden_t, input_precision=PRECISION) + b_raw
        factor = tl.dot(w_factor, hidden_t, input_precision=PRECISION) + b_factor
        grad_mean, grad_raw, grad_factor = _gradients(
            residual, raw, factor, g_log, g_square, g_cross, g_norm, LEAST
        )
        t_mean += tl.dot(grad_mean, h, input_precision=PRECISION)
        t_raw += tl.dot(grad_raw, h, input_precision=PRECISION)
        t_factor += tl.dot(grad_factor, h, input_precision=PRECISION)
        s_mean += tl.sum(grad_mean, 1)
        s_raw += tl.sum(grad_raw, 1)
        s_factor += tl.sum(grad_factor, 1)
    out = parts + tl.program_id(1).to(tl.int64) * 3 * n_channels * (K + 1)
    offset = channel[:, None] * (K + 1) + column[None, :]
    plane = n_channels * (K + 1)
    tl.store(out + offset, t_mean, weight_valid)
    tl.store(out + plane + offset, t_raw, weight_valid)
    tl.store(out + 2 * plane + offset, t_factor, weight_valid)
    offset = channel * (K + 1) + K
    tl.store(out + offset, s_mean, channel_valid)
    tl.store(out + plane + offset, s_raw, channel_valid)
    tl.store(out + 2 * plane + offset, s_factor, channel_valid)
