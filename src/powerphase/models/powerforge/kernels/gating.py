"""Everything between the encoder's first and second layer in one pass: context gates and GELU.

The scale network ends in a linear layer, whose output is added to that of the second layer. Two
linear layers whose outputs are added are one layer of the concatenated inputs, so this pass writes
the inputs of both into the same rows.

Half precision applies to matrix products alone. Their results are processed in the precision of the
parameters, and the input of the next product is rounded as the product would round it.
"""

from math import sqrt, tau
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework.kernels import (
    REGISTERS,
    constexpr,
    jit,
    rows_at_once,
    tl,
    triton,
)

HALF_ROOT, BELL = constexpr(sqrt(0.5)), constexpr(1 / sqrt(tau))


def gated_features(
    projected: Float[Tensor, "B 4 W K"],
    size: Float[Tensor, "B 4 N"],
    gates: Float[Tensor, "2 2"],
    bias: Float[Tensor, " K"],
    inner: Float[Tensor, "J 1"],
    inner_bias: Float[Tensor, " J"],
    fast: bool,
) -> Float[Tensor, "B 4 N KJ"]:
    """The inputs of the second layers, in the precision of `projected`: K numbers, and J of scale.

    Args:
        projected: the first layer's output without bias; buses beyond the first N are padding.
        size: mean absolute value of each channel.
        gates: how much of their bus's P and Q is added to V (first row) and θ. The first layer is
            linear, so the gates act after it instead of before.
        bias: bias of the first layer.
        inner: weight of the scale network's first layer.
        inner_bias: bias of the scale network's first layer.
        fast: run the kernel, which needs Triton and a GPU.
    """
    inputs = (projected, size, gates, bias, inner, inner_bias)
    features: Tensor = (_GatedFeatures.apply if fast else _gated_features_plain)(*inputs)
    return features


def _gated_features_plain(
    projected: Tensor, size: Tensor, gates: Tensor, bias: Tensor, inner: Tensor, inner_bias: Tensor
) -> Tensor:
    """The same in plain PyTorch."""
    p, q, *others = projected[:, :, : size.shape[2]].to(gates.dtype).unbind(1)
    responses = [kind + row[0] * p + row[1] * q for kind, row in zip(others, gates, strict=True)]
    channels = torch.stack([p, q, *responses], dim=1) + bias
    scale_tokens = size.unsqueeze(3) * inner[:, 0] + inner_bias
    return F.gelu(torch.cat([channels, scale_tokens], dim=3)).to(projected.dtype)


class _GatedFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        projected, size, *_, inner_bias = inputs
        (n_windows, _, width, hidden), n_inner = projected.shape, len(inner_bias)
        constants = _constants(hidden, n_inner)
        features = projected.new_empty(*size.shape, hidden + n_inner)
        _gate_forward[(triton.cdiv(size.shape[2], constants["BUSES"]), n_windows)](
            *(*inputs, features, size.shape[2], width), **constants
        )
        ctx.save_for_backward(*inputs)
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        projected, size, gates, _, inner, _ = ctx.saved_tensors
        (n_windows, _, width, hidden), n_inner = projected.shape, len(inner)
        constants = _constants(hidden, n_inner)
        grid = triton.cdiv(width, constants["BUSES"]), n_windows
        grad_projected, grad_size = torch.empty_like(projected), torch.empty_like(size)
        # One row of sums per program, added afterwards, always in the same order.
        n_sums = [4, hidden, n_inner, n_inner]
        sums = gates.new_empty(grid[0] * grid[1], sum(n_sums))
        _gate_backward[grid](
            *(*ctx.saved_tensors, gradient.contiguous(), grad_projected, grad_size, sums),
            *(size.shape[2], width),
            **constants,
            maxnreg=REGISTERS,
        )
        grad_gates, grad_bias, grad_inner, grad_inner_bias = sums.sum(0).split(n_sums)
        grad_gates, grad_inner = grad_gates.view_as(gates), grad_inner.view_as(inner)
        return grad_projected, grad_size, grad_gates, grad_bias, grad_inner, grad_inner_bias


def _constants(hidden: int, n_inner: int) -> dict[str, int]:
    """The constants for which the kernels are compiled."""
    columns = triton.next_power_of_2(hidden)
    return {
        "HIDDEN": hidden,
        "INNER": n_inner,
        "BUSES": rows_at_once(columns),
        "COLUMNS": columns,
        "INNER_COLUMNS": triton.next_power_of_2(n_inner),
        "num_warps": 8,
    }


@jit
@no_type_check
def _normal_cdf(x):
    """The normal distribution function; GELU(x) is x times it."""
    return 0.5 + 0.5 * tl.erf(x * HALF_ROOT)


@jit
@no_type_check
def _gelu_derivative(x):
    return _normal_cdf(x) + x * (BELL * tl.exp(-0.5 * x * x))


@jit
@no_type_check
def _load_kinds(start, plane, inside, gates, bias):
    """The projected P and Q, and all four kinds with gates and bias."""
    dtype = gates.dtype.element_ty
    p = tl.load(start, inside, 0.0).to(dtype)
    q = tl.load(start + plane, inside, 0.0).to(dtype)
    v = tl.load(start + 2 * plane, inside, 0.0).to(dtype)
    theta = tl.load(start + 3 * plane, inside, 0.0).to(dtype)
    v += tl.load(gates) * p + tl.load(gates + 1) * q
    theta += tl.load(gates + 2) * p + tl.load(gates + 3) * q
    return p, q, (p + bias, q + bias, v + bias, theta + bias)


@jit
@no_type_check
def _gate_forward(
    projected,
    size,
    gates,
    bias,
    inner,
    inner_bias,
    features,
    n_buses,
    width,
    HIDDEN: constexpr,
    INNER: constexpr,
    BUSES: constexpr,
    COLUMNS: constexpr,
    INNER_COLUMNS: constexpr,
):
    """A block of buses of one window."""
    bus = tl.program_id(0) * BUSES + tl.arange(0, BUSES)[:, None]
    column, j = tl.arange(0, COLUMNS)[None, :], tl.arange(0, INNER_COLUMNS)[None, :]
    window = tl.program_id(1).to(tl.int64) * 4
    inside = (bus < n_buses) & (column < HIDDEN)
    offset = tl.load(bias + column, column < HIDDEN, 0.0)
    start = projected + window * width * HIDDEN + bus * HIDDEN + column
    _, _, values = _load_kinds(start, width * HIDDEN, inside, gates, offset)
    factor = tl.load(inner + j, j < INNER, 0.0)
    summand = tl.load(inner_bias + j, j < INNER, 0.0)
    size += window * n_buses + bus
    features += window * n_buses * (HIDDEN + INNER) + bus * (HIDDEN + INNER)
    for kind in tl.static_range(4):
        x = values[kind]
        tl.store(features + column, x * _normal_cdf(x), inside)
        x = tl.load(size, bus < n_buses, 0.0) * factor + summand
        tl.store(features + HIDDEN + j, x * _normal_cdf(x), (bus < n_buses) & (j < INNER))
        size += n_buses
        features += n_buses * (HIDDEN + INNER)


@jit
@no_type_check
def _gate_backward(
    projected,
    size,
    gates,
    bias,
    inner,
    inner_bias,
    gradient,
    grad_projected,
    grad_size,
    sums,
    n_buses,
    width,
    HIDDEN: constexpr,
    INNER: constexpr,
    BUSES: constexpr,
    COLUMNS: constexpr,
    INNER_COLUMNS: constexpr,
):
    """A block of buses of one window; beyond the last bus, gradients and all products are 0."""
    bus = tl.program_id(0) * BUSES + tl.arange(0, BUSES)[:, None]
    column, j = tl.arange(0, COLUMNS)[None, :], tl.arange(0, INNER_COLUMNS)[None, :]
    window = tl.program_id(1).to(tl.int64) * 4
    inside = (bus < n_buses) & (column < HIDDEN)
    offset = tl.load(bias + column, column < HIDDEN, 0.0)
    start = window * width * HIDDEN + bus * HIDDEN + column
    p, q, values = _load_kinds(projected + start, width * HIDDEN, inside, gates, offset)
    factor = tl.load(inner + j, j < INNER, 0.0)
    summand = tl.load(inner_bias + j, j < INNER, 0.0)
    grad_inner = tl.zeros([BUSES, INNER_COLUMNS], p.dtype)
    grad_inner_bias = tl.zeros([BUSES, INNER_COLUMNS], p.dtype)
    row = window * n_buses + bus
    gradient += window * n_buses * (HIDDEN + INNER) + bus * (HIDDEN + INNER)
    by_kind = ()
    for kind in tl.static_range(4):
        grad = tl.load(gradient + column, inside, 0.0).to(p.dtype)
        by_kind += (grad * _gelu_derivative(values[kind]),)
        grad = tl.load(gradient + HIDDEN + j, (bus < n_buses) & (j < INNER), 0.0).to(p.dtype)
        mean_size = tl.load(size + row, bus < n_buses, 0.0)
        grad *= _gelu_derivative(mean_size * factor + summand)
        grad_inner += grad * mean_size
        grad_inner_bias += grad
        tl.store(grad_size + row, tl.sum(grad * factor, 1, keep_dims=True), bus < n_buses)
        row += n_buses
        gradient += n_buses * (HIDDEN + INNER)
    grad_p, grad_q, grad_v, grad_theta = by_kind
    sums += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * (4 + HIDDEN + 2 * INNER)
    tl.store(sums, tl.sum(grad_v * p))
    tl.store(sums + 1, tl.sum(grad_v * q))
    tl.store(sums + 2, tl.sum(grad_theta * p))
    tl.store(sums + 3, tl.sum(grad_theta * q))
    grad_bias = tl.sum(grad_p + grad_q + grad_v + grad_theta, 0, keep_dims=True)
    tl.store(sums + 4 + column, grad_bias, column < HIDDEN)
    sums += 4 + HIDDEN + j
    tl.store(sums, tl.sum(grad_inner, 0, keep_dims=True), j < INNER)
    tl.store(sums + INNER, tl.sum(grad_inner_bias, 0, keep_dims=True), j < INNER)
    grad_p += tl.load(gates) * grad_v + tl.load(gates + 2) * grad_theta
    grad_q += tl.load(gates + 1) * grad_v + tl.load(gates + 3) * grad_theta
    by_kind = (grad_p, grad_q, grad_v, grad_theta)
    stored = (bus < width) & (column < HIDDEN)
    for kind in tl.static_range(4):
        tl.store(grad_projected + start + kind * width * HIDDEN, by_kind[kind], stored)
