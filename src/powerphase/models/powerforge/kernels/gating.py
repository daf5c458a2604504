"""Gating: all that happens between the encoder's first layer and its second, in one pass.

The scale network ends in a linear layer, and its token is added to what the second layer makes. Two
linear layers whose results are added are one of both inputs side by side: so this pass leaves what
they read in the same rows.

Half precision is a matter of matrix products alone. What comes from them is computed with in the
precision of the parameters; what goes to the next one is rounded as the product would round it.
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


def gated(
    seen: Float[Tensor, "B 4 W K"],
    size: Float[Tensor, "B 4 N"],
    gates: Float[Tensor, "2 2"],
    bias: Float[Tensor, " K"],
    inner: Float[Tensor, "J 1"],
    inner_bias: Float[Tensor, " J"],
    fast: bool,
) -> Float[Tensor, "B 4 N KJ"]:
    """What the second layers read, in the precision of `seen`: K numbers of weeks, J of sizes.

    Args:
        seen: what the first layer sees in each week as it is; buses beyond the first N do not
            count.
        size: mean size of each channel.
        gates: what V (first row) and θ see of their own bus's P and Q: after the first layer
            instead of before it, which is linear.
        bias: of the first layer.
        inner: the weight of the scale network's first layer.
        inner_bias: its bias.
        fast: by the kernel, which needs Triton and a GPU.
    """
    inputs = (seen, size, gates, bias, inner, inner_bias)
    found: Tensor = (_Gated.apply if fast else _gated_plain)(*inputs)
    return found


def _gated_plain(
    seen: Tensor, size: Tensor, gates: Tensor, bias: Tensor, inner: Tensor, inner_bias: Tensor
) -> Tensor:
    """The same as the kernel, in PyTorch."""
    p, q, *others = seen[:, :, : size.shape[2]].to(gates.dtype).unbind(1)
    gated = [kind + row[0] * p + row[1] * q for kind, row in zip(others, gates, strict=True)]
    weeks = torch.stack([p, q, *gated], dim=1) + bias
    sizes = size.unsqueeze(3) * inner[:, 0] + inner_bias
    return F.gelu(torch.cat([weeks, sizes], dim=3)).to(seen.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        seen, size, *_, inner_bias = inputs
        (n_windows, _, width, hidden), n_inner = seen.shape, len(inner_bias)
        constants = _compiled_for(hidden, n_inner)
        found = seen.new_empty(*size.shape, hidden + n_inner)
        _gate[(triton.cdiv(size.shape[2], constants["BUSES"]), n_windows)](
            *(*inputs, found, size.shape[2], width), **constants
        )
        ctx.save_for_backward(*inputs)
        return found

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        seen, size, gates, _, inner, _ = ctx.saved_tensors
        (n_windows, _, width, hidden), n_inner = seen.shape, len(inner)
        constants = _compiled_for(hidden, n_inner)
        grid = triton.cdiv(width, constants["BUSES"]), n_windows
        of_seen, of_size = torch.empty_like(seen), torch.empty_like(size)
        # Each program's own sums, to be added always in the same order.
        n_sums = [4, hidden, n_inner, n_inner]
        sums = gates.new_empty(grid[0] * grid[1], sum(n_sums))
        _gate_backward[grid](
            *(*ctx.saved_tensors, slope.contiguous(), of_seen, of_size, sums),
            *(size.shape[2], width),
            **constants,
            maxnreg=REGISTERS,
        )
        of_gates, of_bias, of_inner, of_inner_bias = sums.sum(0).split(n_sums)
        of_gates, of_inner = of_gates.view_as(gates), of_inner.view_as(inner)
        return of_seen, of_size, of_gates, of_bias, of_inner, of_inner_bias


def _compiled_for(hidden: int, n_inner: int) -> dict[str, int]:
    """What the first pass is compiled for."""
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
def _share(x):
    """The normal distribution's share below x: GELU is x times it."""
    return 0.5 + 0.5 * tl.erf(x * HALF_ROOT)


@jit
@no_type_check
def _gelu_slope(x):
    return _share(x) + x * (BELL * tl.exp(-0.5 * x * x))


@jit
@no_type_check
def _four(start, plane, inside, gates, bias):
    """P and Q as the first layer has seen them, and all four kinds with gates and bias."""
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
def _gate(
    seen,
    size,
    gates,
    bias,
    inner,
    inner_bias,
    found,
    n_buses,
    width,
    HIDDEN: constexpr,
    INNER: constexpr,
    BUSES: constexpr,
    COLUMNS: constexpr,
    INNER_COLUMNS: constexpr,
):
    """Some buses of one window."""
    bus = tl.program_id(0) * BUSES + tl.arange(0, BUSES)[:, None]
    column, j = tl.arange(0, COLUMNS)[None, :], tl.arange(0, INNER_COLUMNS)[None, :]
    window = tl.program_id(1).to(tl.int64) * 4
    inside = (bus < n_buses) & (column < HIDDEN)
    above = tl.load(bias + column, column < HIDDEN, 0.0)
    start = seen + window * width * HIDDEN + bus * HIDDEN + column
    _, _, values = _four(start, width * HIDDEN, inside, gates, above)
    factor = tl.load(inner + j, j < INNER, 0.0)
    summand = tl.load(inner_bias + j, j < INNER, 0.0)
    size += window * n_buses + bus
    found += window * n_buses * (HIDDEN + INNER) + bus * (HIDDEN + INNER)
    for kind in tl.static_range(4):
        x = values[kind]
        tl.store(found + column, x * _share(x), inside)
        x = tl.load(size, bus < n_buses, 0.0) * factor + summand
        tl.store(found + HIDDEN + j, x * _share(x), (bus < n_buses) & (j < INNER))
        size += n_buses
        found += n_buses * (HIDDEN + INNER)


@jit
@no_type_check
def _gate_backward(
    seen,
    size,
    gates,
    bias,
    inner,
    inner_bias,
    slope,
    of_seen,
    of_size,
    sums,
    n_buses,
    width,
    HIDDEN: constexpr,
    INNER: constexpr,
    BUSES: constexpr,
    COLUMNS: constexpr,
    INNER_COLUMNS: constexpr,
):
    """Some buses of one window; beyond the last bus, slopes and so all products are 0."""
    bus = tl.program_id(0) * BUSES + tl.arange(0, BUSES)[:, None]
    column, j = tl.arange(0, COLUMNS)[None, :], tl.arange(0, INNER_COLUMNS)[None, :]
    window = tl.program_id(1).to(tl.int64) * 4
    inside = (bus < n_buses) & (column < HIDDEN)
    above = tl.load(bias + column, column < HIDDEN, 0.0)
    start = window * width * HIDDEN + bus * HIDDEN + column
    p, q, values = _four(seen + start, width * HIDDEN, inside, gates, above)
    factor = tl.load(inner + j, j < INNER, 0.0)
    summand = tl.load(inner_bias + j, j < INNER, 0.0)
    of_inner = tl.zeros([BUSES, INNER_COLUMNS], p.dtype)
    of_inner_bias = tl.zeros([BUSES, INNER_COLUMNS], p.dtype)
    row = window * n_buses + bus
    slope += window * n_buses * (HIDDEN + INNER) + bus * (HIDDEN + INNER)
    slopes = ()
    for kind in tl.static_range(4):
        given = tl.load(slope + column, inside, 0.0).to(p.dtype)
        slopes += (given * _gelu_slope(values[kind]),)
        given = tl.load(slope + HIDDEN + j, (bus < n_buses) & (j < INNER), 0.0).to(p.dtype)
        length = tl.load(size + row, bus < n_buses, 0.0)
        given *= _gelu_slope(length * factor + summand)
        of_inner += given * length
        of_inner_bias += given
        tl.store(of_size + row, tl.sum(given * factor, 1, keep_dims=True), bus < n_buses)
        row += n_buses
        slope += n_buses * (HIDDEN + INNER)
    of_p, of_q, of_v, of_theta = slopes
    sums += (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * (4 + HIDDEN + 2 * INNER)
    tl.store(sums, tl.sum(of_v * p))
    tl.store(sums + 1, tl.sum(of_v * q))
    tl.store(sums + 2, tl.sum(of_theta * p))
    tl.store(sums + 3, tl.sum(of_theta * q))
    of_bias = tl.sum(of_p + of_q + of_v + of_theta, 0, keep_dims=True)
    tl.store(sums + 4 + column, of_bias, column < HIDDEN)
    sums += 4 + HIDDEN + j
    tl.store(sums, tl.sum(of_inner, 0, keep_dims=True), j < INNER)
    tl.store(sums + INNER, tl.sum(of_inner_bias, 0, keep_dims=True), j < INNER)
    of_p += tl.load(gates) * of_v + tl.load(gates + 2) * of_theta
    of_q += tl.load(gates + 1) * of_v + tl.load(gates + 3) * of_theta
    slopes = (of_p, of_q, of_v, of_theta)
    there = (bus < width) & (column < HIDDEN)
    for kind in tl.static_range(4):
        tl.store(of_seen + start + kind * width * HIDDEN, slopes[kind], there)
