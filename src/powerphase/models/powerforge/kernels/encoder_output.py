"""Settling: all that happens after the encoder's second layer, in one pass.

States have the precision of the parameters, whatever that of matrix products is.
"""

from functools import cache
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.models.framework.kernels import (
    REGISTERS,
    constexpr,
    jit,
    rows_at_once,
    tl,
    triton,
)

ROUNDS = constexpr(7)
"""Of Philox: as few as pass all tests of randomness (Salmon et al. 2011, 10.1145/2063384.2063405).
"""

AT_ONCE = 528
"""Programs that run at a time: four on each multiprocessor of an H200."""


def settled(
    refined: Float[Tensor, "B 4 N K"],
    bias: Float[Tensor, " K"],
    norm: Float[Tensor, " K"],
    norm_bias: Float[Tensor, " K"],
    identity: Float[Tensor, "4 N K"],
    calendar: Float[Tensor, "B K"],
    epsilon: float,
    dropout: float,
    fast: bool,
) -> Float[Tensor, "B 4 N K"]:
    """The states: normed, with dropout, then named and dated.

    Args:
        refined: from the second layers, without their bias.
        bias: of the second layers. Its gradient is a sum over all channels, as others are that are
            made here.
        norm: factors of the norm, whose precision the states have.
        norm_bias: its offsets.
        identity: what is added for being this channel.
        calendar: what is added for being this window.
        epsilon: added to the variance.
        dropout: how likely a number is dropped; 0 outside training. The kernel has a generator of
            its own, whose seed comes from PyTorch's: it drops other numbers than PyTorch would.
        fast: by the kernel, which needs Triton and a GPU.
    """
    added = (identity.to(norm.dtype), calendar.to(norm.dtype))
    inputs = (refined, bias, norm, norm_bias, *added, epsilon, dropout)
    found: Tensor = (_Settled.apply if fast else _settled_plain)(*inputs)
    return found


def _settled_plain(
    refined: Tensor,
    bias: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
    identity: Tensor,
    calendar: Tensor,
    epsilon: float,
    dropout: float,
) -> Tensor:
    """The same as the kernel, in PyTorch."""
    state = F.layer_norm(refined + bias, norm.shape, norm, norm_bias, epsilon)
    return F.dropout(state, dropout) + identity + calendar[:, None, None]


class _Settled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        refined: Tensor,
        bias: Tensor,
        norm: Tensor,
        norm_bias: Tensor,
        identity: Tensor,
        calendar: Tensor,
        epsilon: float,
        dropout: float,
    ) -> Tensor:
        refined, identity, calendar = (
            tensor.contiguous() for tensor in (refined, identity, calendar)
        )
        # Drawn on the device, so that a recorded step draws another one at each replay.
        seed = torch.randint(2**62, (1,), device=refined.device) if dropout else refined
        state = torch.empty_like(refined, dtype=norm.dtype)
        moments = norm.new_empty(2, *refined.shape[:3])
        ctx.grid, ctx.constants = _settling(refined.shape, dropout)
        _settle[ctx.grid](
            *(refined, bias, norm, norm_bias, identity, calendar, seed, state, moments),
            *(len(refined), refined.shape[2]),
            EPSILON=epsilon,
            **ctx.constants,
        )
        ctx.save_for_backward(refined, bias, norm, seed, moments)
        return state

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        refined, bias, norm, seed, moments = ctx.saved_tensors
        n_windows, _, n_buses, hidden = refined.shape
        n_blocks, _, n_chunks = ctx.grid
        of_refined = torch.empty_like(refined)
        # Each program's own sums, to be added always in the same order.
        of_identity = norm.new_empty(n_chunks, KINDS, n_buses, hidden)
        of_calendar = norm.new_empty(KINDS * n_blocks, n_windows, hidden)
        sums = norm.new_empty(n_chunks * KINDS * n_blocks, 3, hidden)
        _settle_backward[ctx.grid](
            *(refined, bias, norm, seed, moments, slope.contiguous()),
            *(of_refined, of_identity, of_calendar, sums, n_windows, n_buses),
            **ctx.constants,
            maxnreg=REGISTERS,
        )
        of_identity = of_identity.sum(0) if n_chunks > 1 else of_identity[0]
        return of_refined, *sums.sum(0), of_identity, of_calendar.sum(0), None, None


def _settling(size: torch.Size, dropout: float) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Programs by block of buses, kind and chunk of windows, and what they are compiled for.

    A program goes through the windows of its chunk with one block of buses: so the sums over
    windows, as large as all states of one window, are made in registers.
    """
    n_windows, _, n_buses, hidden = size
    columns = max(4, triton.next_power_of_2(hidden))
    rows = rows_at_once(columns)
    n_blocks = triton.cdiv(n_buses, rows)
    per_chunk = _windows_per_chunk(n_windows, n_blocks * KINDS)
    return (n_blocks, KINDS, n_windows // per_chunk), {
        "WINDOWS": per_chunk,
        "HIDDEN": hidden,
        "DROPOUT": dropout,
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": 4,
    }


@cache
def _windows_per_chunk(n_windows: int, n_programs: int) -> int:
    """So many that all programs end together, as near as may be; sums cost as much as a window."""

    def duration(per_chunk: int) -> int:
        n_turns = -(-n_programs * (n_windows // per_chunk) // AT_ONCE)
        return n_turns * (per_chunk + 1)

    whole = [per_chunk for per_chunk in range(n_windows, 0, -1) if n_windows % per_chunk == 0]
    return min(whole, key=duration)


@jit
@no_type_check
def _kept(values, row, seed, DROPOUT: constexpr):
    """With dropout, the same at each call with the same rows and seed.

    Four neighbours share one draw of four numbers, which is what Philox gives at once.
    """
    if DROPOUT > 0:
        quarter = tl.arange(0, values.shape[1] // 4)[None, :] + tl.zeros_like(row)
        none = tl.zeros_like(quarter)
        a, b, c, d = tl.philox(tl.load(seed), row + none, quarter, none, none, ROUNDS)
        drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), values.shape)
        kept = drawn >= int(DROPOUT * 4294967296)
        values = tl.where(kept, values * (1 / (1 - DROPOUT)), 0.0)
    return values


@jit
@no_type_check
def _settle(
    refined,
    bias,
    norm,
    norm_bias,
    identity,
    calendar,
    seed,
    state,
    moments,
    n_windows,
    n_buses,
    EPSILON: constexpr,
    WINDOWS: constexpr,
    HIDDEN: constexpr,
    DROPOUT: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """Some buses of one kind, in some windows."""
    kind = tl.program_id(1)
    bus = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    known, real = bus < n_buses, column < HIDDEN
    offset = bus * HIDDEN + column
    above = tl.load(bias + column, real, 0.0)
    factor = tl.load(norm + column, real, 0.0)
    summand = tl.load(norm_bias + column, real, 0.0)
    own = tl.load(identity + kind * n_buses * HIDDEN + offset, known & real, 0.0)
    for step in range(WINDOWS):
        window = tl.program_id(2) * WINDOWS + step
        row = (window * 4 + kind) * n_buses + bus
        start = (window * 4 + kind).to(tl.int64) * n_buses * HIDDEN
        x = tl.load(refined + start + offset, known & real, 0.0).to(own.dtype) + above
        mean = tl.sum(x, 1, keep_dims=True) / HIDDEN
        x = tl.where(real, x - mean, 0.0)
        steepness = 1 / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / HIDDEN + EPSILON)
        tl.store(moments + row, mean, known)
        tl.store(moments + n_windows * 4 * n_buses + row, steepness, known)
        x = _kept(x * steepness * factor + summand, row, seed, DROPOUT)
        x += own + tl.load(calendar + window * HIDDEN + column, real, 0.0)
        tl.store(state + start + offset, x, known & real)


@jit
@no_type_check
def _folded(values):
    """Four rows: each warp has every fourth row, and so adds up nothing but its own."""
    rows: constexpr = values.shape[0] // 4
    return tl.sum(tl.reshape(values, [rows, 4, values.shape[1]]), 0)


@jit
@no_type_check
def _settle_backward(
    refined,
    bias,
    norm,
    seed,
    moments,
    slope,
    of_refined,
    of_identity,
    of_calendar,
    sums,
    n_windows,
    n_buses,
    WINDOWS: constexpr,
    HIDDEN: constexpr,
    DROPOUT: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """Some buses of one kind, in some windows; beyond the last bus, slopes are 0."""
    kind, chunk = tl.program_id(1), tl.program_id(2)
    item = kind * tl.num_programs(0) + tl.program_id(0)
    bus = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    known, real = bus < n_buses, column < HIDDEN
    offset = bus * HIDDEN + column
    above = tl.load(bias + column, real, 0.0)
    factor = tl.load(norm + column, real, 0.0)
    own = tl.zeros([ROWS, COLUMNS], factor.dtype)
    of_above = tl.zeros([4, COLUMNS], factor.dtype)
    of_factor = tl.zeros([4, COLUMNS], factor.dtype)
    of_summand = tl.zeros([4, COLUMNS], factor.dtype)
    of_calendar += item.to(tl.int64) * n_windows * HIDDEN + column
    for step in range(WINDOWS):
        window = chunk * WINDOWS + step
        row = (window * 4 + kind) * n_buses + bus
        start = (window * 4 + kind).to(tl.int64) * n_buses * HIDDEN
        given = tl.load(slope + start + offset, known & real, 0.0)
        x = tl.load(refined + start + offset, known & real, 0.0).to(factor.dtype) + above
        mean = tl.load(moments + row, known, 0.0)
        steepness = tl.load(moments + n_windows * 4 * n_buses + row, known, 0.0)
        own += given
        total = tl.sum(_folded(given), 0, keep_dims=True)
        tl.store(of_calendar + window * HIDDEN, total, real)
        x = (x - mean) * steepness
        given = _kept(given, row, seed, DROPOUT)
        of_factor += _folded(given * x)
        of_summand += _folded(given)
        given *= factor
        level = tl.sum(given, 1, keep_dims=True) / HIDDEN
        tilt = tl.sum(given * x, 1, keep_dims=True) / HIDDEN
        given = steepness * (given - level - x * tilt)
        of_above += _folded(given)
        tl.store(of_refined + start + offset, given, known & real)
    of_identity += (chunk * 4 + kind).to(tl.int64) * n_buses * HIDDEN
    tl.store(of_identity + offset, own, known & real)
    sums += (chunk * tl.num_programs(0) * 4 + item) * 3 * HIDDEN + column
    tl.store(sums, tl.sum(of_above, 0, keep_dims=True), real)
    tl.store(sums + HIDDEN, tl.sum(of_factor, 0, keep_dims=True), real)
    tl.store(sums + 2 * HIDDEN, tl.sum(of_summand, 0, keep_dims=True), real)
