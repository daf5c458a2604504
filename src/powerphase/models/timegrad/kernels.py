"""The noise network without slopes, as paths are drawn with it: one kernel for each layer.

A path takes thousands of calls. In plain PyTorch a call is more than a hundred commands, each of
which reads and writes all features; here it is eleven, and a block of the network reads its
features and writes them once.
"""

from math import sqrt
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import (
    constexpr,
    jit,
    tanh,
    tl,
    triton,
)
from powerphase.models.timegrad.denoiser import SLOPE, Block, Denoiser

COLUMNS = 128
"""Channels of a program."""
LEAK = constexpr(SLOPE)


@torch.no_grad()
def denoised(
    denoiser: Denoiser,
    noisy: Float[Tensor, "R P"],
    conditioner: Float[Tensor, "R P"],
    step: Float[Tensor, "1 blocks width"],
) -> Float[Tensor, "R inner"]:
    """What the noise network itself makes of them; all come from the same diffusion step."""
    features = filtered(noisy.reshape(1, -1), denoiser.enter, rectify=True)
    beside, collected = conditioner.reshape(-1), torch.zeros_like(features)
    for number, block in enumerate(denoiser.blocks):
        assert isinstance(block, Block)
        features = _blocked(features, beside, collected, block, step[0, number].contiguous())
    share = 1 / sqrt(len(denoiser.blocks))
    collected = filtered(collected, denoiser.collect, share, rectify=True)
    made = filtered(collected, denoiser.leave).view_as(noisy)
    return made[:, denoiser.halo : -denoiser.halo]


def filtered(
    features: Float[Tensor, "I N"], layer: Any, factor: float = 1.0, rectify: bool = False
) -> Float[Tensor, "O N"]:
    """The convolution of features times a factor, rectified if asked for."""
    n_out, n_in, taps = layer.weight.shape
    n_columns = features.shape[1]
    made = features.new_empty(n_out, n_columns)
    _filter[(triton.cdiv(n_columns, COLUMNS),)](
        *(features, layer.weight, layer.bias, made, n_columns),
        FACTOR=factor,
        N_IN=n_in,
        N_OUT=n_out,
        ROWS=triton.next_power_of_2(n_out),
        TAPS=taps,
        DILATION=layer.dilation,
        RECTIFY=rectify,
        COLUMNS=COLUMNS,
    )
    return made


def _blocked(
    features: Float[Tensor, "width N"],
    conditioner: Float[Tensor, " N"],
    collected: Float[Tensor, "width N"],
    block: Block,
    added: Float[Tensor, " width"],
) -> Float[Tensor, "width N"]:
    """The features after a block; what it hands on is added to what is collected, in its place."""
    width, n_columns = features.shape
    made = torch.empty_like(features)
    _block[(triton.cdiv(n_columns, COLUMNS),)](
        *(features, conditioner, added, collected, made, n_columns),
        *(block.mix.weight, block.mix.bias, block.told.weight, block.told.bias),
        *(block.leave.weight, block.leave.bias),
        N=width,
        ROWS=triton.next_power_of_2(width),
        DILATION=block.mix.dilation,
        COLUMNS=COLUMNS,
    )
    return made


@jit
@no_type_check
def _rectified(values):
    return tl.where(values > 0, values, LEAK * values)


@jit
@no_type_check
def _filter(
    features,
    weight,
    bias,
    made,
    n_columns,
    FACTOR: constexpr,
    N_IN: constexpr,
    N_OUT: constexpr,
    ROWS: constexpr,
    TAPS: constexpr,
    DILATION: constexpr,
    RECTIFY: constexpr,
    COLUMNS: constexpr,
):
    """Some columns; past the ends of all, features are zero."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    real = row < N_OUT
    found = tl.load(bias + row, real, 0.0)[:, None] + tl.zeros(
        [ROWS, COLUMNS], bias.dtype.element_ty
    )
    for tap in tl.static_range(TAPS):
        there = column + (tap - TAPS // 2) * DILATION
        inside = (there >= 0) & (there < n_columns)
        for k in tl.static_range(N_IN):
            share = tl.load(weight + (row * N_IN + k) * TAPS + tap, real, 0.0)
            value = tl.load(features + k * n_columns + there, inside, 0.0)
            found += share[:, None] * (value * FACTOR)[None, :]
    if RECTIFY:
        found = _rectified(found)
    place = row[:, None] * n_columns + column[None, :]
    tl.store(made + place, found, real[:, None] & (column < n_columns)[None, :])


@jit
@no_type_check
def _handed(gated, weight, bias, first, N: constexpr, ROWS: constexpr):
    """What the last layer makes of gated features, rectified: N of its rows from the first on."""
    row, column = tl.arange(0, ROWS), tl.arange(0, ROWS)
    real = row < N
    matrix = tl.load(
        weight + (first + row[:, None]) * N + column[None, :],
        real[:, None] & (column < N)[None, :],
        0.0,
    )
    found = tl.sum(matrix[:, :, None] * gated[None, :, :], 1)
    return _rectified(found + tl.load(bias + first + row, real, 0.0)[:, None])


@jit
@no_type_check
def _block(
    features,
    conditioner,
    added,
    collected,
    made,
    n_columns,
    mix,
    mix_bias,
    told,
    told_bias,
    leave,
    leave_bias,
    N: constexpr,
    ROWS: constexpr,
    DILATION: constexpr,
    COLUMNS: constexpr,
):
    """Some columns of a block."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    real, known = row < N, column < n_columns
    beside = tl.load(conditioner + column, known, 0.0)[None, :]
    gate = tl.load(told + row, real, 0.0)[:, None] * beside
    content = tl.load(told + N + row, real, 0.0)[:, None] * beside
    gate += (tl.load(mix_bias + row, real, 0.0) + tl.load(told_bias + row, real, 0.0))[:, None]
    content += (tl.load(mix_bias + N + row, real, 0.0) + tl.load(told_bias + N + row, real, 0.0))[
        :, None
    ]
    for tap in tl.static_range(3):
        there = column + (tap - 1) * DILATION
        inside = (there >= 0) & (there < n_columns)
        for k in tl.static_range(N):
            value = tl.load(features + k * n_columns + there, inside, 0.0) + tl.load(added + k)
            value = tl.where(inside, value, 0.0)[None, :]
            gate += tl.load(mix + (row * N + k) * 3 + tap, real, 0.0)[:, None] * value
            content += tl.load(mix + ((N + row) * N + k) * 3 + tap, real, 0.0)[:, None] * value
    turned, _ = tanh(content)
    gated = turned / (1 + tl.exp(-gate))
    change = _handed(gated, leave, leave_bias, 0, N, ROWS)
    skipped = _handed(gated, leave, leave_bias, N, N, ROWS)
    place, here = row[:, None] * n_columns + column[None, :], real[:, None] & known[None, :]
    tl.store(
        made + place, (tl.load(features + place, here, 0.0) + change) * 0.7071067811865476, here
    )
    tl.store(collected + place, tl.load(collected + place, here, 0.0) + skipped, here)
