"""Everything after the encoder's second layer in one pass: norm, dropout and embeddings.

States have the precision of the parameters, regardless of that of matrix products.
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
"""Rounds of Philox, the fewest that pass all tests of randomness (Salmon et al. 2011,
10.1145/2063384.2063405)."""

PROGRAMS_AT_ONCE = 528
"""Programs that run concurrently: four on each multiprocessor of an H200."""


def normalise_and_embed(
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
    """The channel states: layer norm and dropout, then the embeddings of channel and calendar.

    Args:
        refined: the second layers' output without bias.
        bias: bias of the second layers. The kernel computes its gradient, a sum over all channels,
            like those of the other parameters.
        norm: factors of the norm; the states have their precision.
        norm_bias: offsets of the norm.
        identity: embedding of each channel.
        calendar: embedding of each window's time.
        epsilon: added to the variance.
        dropout: probability of dropping a number; 0 outside training. The kernel has its own
            generator, seeded from PyTorch's, so it drops other numbers than PyTorch would.
        fast: run the kernel, which needs Triton and a GPU.
    """
    embeddings = (identity.to(norm.dtype), calendar.to(norm.dtype))
    inputs = (refined, bias, norm, norm_bias, *embeddings, epsilon, dropout)
    state: Tensor = (_NormaliseAndEmbed.apply if fast else _normalise_and_embed_plain)(*inputs)
    return state


def _normalise_and_embed_plain(
    refined: Tensor,
    bias: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
    identity: Tensor,
    calendar: Tensor,
    epsilon: float,
    dropout: float,
) -> Tensor:
    """The same in plain PyTorch."""
    state = F.layer_norm(refined + bias, norm.shape, norm, norm_bias, epsilon)
    return F.dropout(state, dropout) + identity + calendar[:, None, None]


class _NormaliseAndEmbed(torch.autograd.Function):
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
        # Drawn on the device, so that each replay of a captured step draws another seed.
        seed = torch.randint(2**62, (1,), device=refined.device) if dropout else refined
        state = torch.empty_like(refined, dtype=norm.dtype)
        moments = norm.new_empty(2, *refined.shape[:3])
        ctx.grid, ctx.constants = _launch_grid(refined.shape, dropout)
        _forward_kernel[ctx.grid](
            *(refined, bias, norm, norm_bias, identity, calendar, seed, state, moments),
            *(len(refined), refined.shape[2]),
            EPSILON=epsilon,
            **ctx.constants,
        )
        ctx.save_for_backward(refined, bias, norm, seed, moments)
        return state

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refined, bias, norm, seed, moments = ctx.saved_tensors
        n_windows, _, n_buses, hidden = refined.shape
        n_blocks, _, n_chunks = ctx.grid
        grad_refined = torch.empty_like(refined)
        # Sums of each program, added afterwards, always in the same order.
        grad_identity = norm.new_empty(n_chunks, KINDS, n_buses, hidden)
        grad_calendar = norm.new_empty(KINDS * n_blocks, n_windows, hidden)
        sums = norm.new_empty(n_chunks * KINDS * n_blocks, 3, hidden)
        _backward_kernel[ctx.grid](
            *(refined, bias, norm, seed, moments, gradient.contiguous()),
            *(grad_refined, grad_identity, grad_calendar, sums, n_windows, n_buses),
            **ctx.constants,
            maxnreg=REGISTERS,
        )
        grad_identity = grad_identity.sum(0) if n_chunks > 1 else grad_identity[0]
        return grad_refined, *sums.sum(0), grad_identity, grad_calendar.sum(0), None, None


def _launch_grid(size: torch.Size, dropout: float) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Programs by block of buses, kind and chunk of windows, and the kernels' constants.

    A program loops over the windows of its chunk with one block of buses, so that the sums over
    windows, as large as all states of one window, stay in registers.
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
    """The chunk for which all programs end soonest; writing sums costs as much as a window."""

    def duration(per_chunk: int) -> int:
        n_turns = -(-n_programs * (n_windows // per_chunk) // PROGRAMS_AT_ONCE)
        return n_turns * (per_chunk + 1)

    divisors = [per_chunk for per_chunk in range(n_windows, 0, -1) if n_windows % per_chunk == 0]
    return min(divisors, key=duration)


@jit
@no_type_check
def _apply_dropout(values, row, seed, DROPOUT: constexpr):
    """The values with dropout, which is the same at each call with the same rows and seed.

    Four neighbours share one draw, because Philox returns four numbers at once.
    """
    if DROPOUT > 0:
        quarter = tl.arange(0, values.shape[1] // 4)[None, :] + tl.zeros_like(row)
        none = tl.zeros_like(quarter)
        a, b, c, d = tl.philox(tl.load(seed), row + none, quarter, none, none, ROUNDS)
        draws = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), values.shape)
        keep = draws >= int(DROPOUT * 4294967296)
        values = tl.where(keep, values * (1 / (1 - DROPOUT)), 0.0)
    return values


@jit
@no_type_check
def _forward_kernel(
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
    """A block of buses of one kind, in a chunk of windows."""
    kind = tl.program_id(1)
    bus = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    valid_bus, valid_column = bus < n_buses, column < HIDDEN
    offset = bus * HIDDEN + column
    second_bias = tl.load(bias + column, valid_column, 0.0)
    factor = tl.load(norm + column, valid_column, 0.0)
    summand = tl.load(norm_bias + column, valid_column, 0.0)
    embedding = tl.load(identity + kind * n_buses * HIDDEN + offset, valid_bus & valid_column, 0.0)
    for step in range(WINDOWS):
        window = tl.program_id(2) * WINDOWS + step
        row = (window * 4 + kind) * n_buses + bus
        start = (window * 4 + kind).to(tl.int64) * n_buses * HIDDEN
        x = (
            tl.load(refined + start + offset, valid_bus & valid_column, 0.0).to(embedding.dtype)
            + second_bias
        )
        mean = tl.sum(x, 1, keep_dims=True) / HIDDEN
        x = tl.where(valid_column, x - mean, 0.0)
        inverse_deviation = 1 / tl.sqrt(tl.sum(x * x, 1, keep_dims=True) / HIDDEN + EPSILON)
        tl.store(moments + row, mean, valid_bus)
        tl.store(moments + n_windows * 4 * n_buses + row, inverse_deviation, valid_bus)
        x = _apply_dropout(x * inverse_deviation * factor + summand, row, seed, DROPOUT)
        x += embedding + tl.load(calendar + window * HIDDEN + column, valid_column, 0.0)
        tl.store(state + start + offset, x, valid_bus & valid_column)


@jit
@no_type_check
def _sum_to_four_rows(values):
    """The sum as four rows: each warp has every fourth row, and so sums only its own."""
    rows: constexpr = values.shape[0] // 4
    return tl.sum(tl.reshape(values, [rows, 4, values.shape[1]]), 0)


@jit
@no_type_check
def _backward_kernel(
    refined,
    bias,
    norm,
    seed,
    moments,
    gradient,
    grad_refined,
    grad_identity,
    grad_calendar,
    sums,
    n_windows,
    n_buses,
    WINDOWS: constexpr,
    HIDDEN: constexpr,
    DROPOUT: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """A block of buses of one kind, in a chunk of windows; beyond the last bus, gradients are 0."""
    kind, chunk = tl.program_id(1), tl.program_id(2)
    item = kind * tl.num_programs(0) + tl.program_id(0)
    bus = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    valid_bus, valid_column = bus < n_buses, column < HIDDEN
    offset = bus * HIDDEN + column
    second_bias = tl.load(bias + column, valid_column, 0.0)
    factor = tl.load(norm + column, valid_column, 0.0)
    grad_embedding = tl.zeros([ROWS, COLUMNS], factor.dtype)
    grad_bias = tl.zeros([4, COLUMNS], factor.dtype)
    grad_factor = tl.zeros([4, COLUMNS], factor.dtype)
    grad_summand = tl.zeros([4, COLUMNS], factor.dtype)
    grad_calendar += item.to(tl.int64) * n_windows * HIDDEN + column
    for step in range(WINDOWS):
        window = chunk * WINDOWS + step
        row = (window * 4 + kind) * n_buses + bus
        start = (window * 4 + kind).to(tl.int64) * n_buses * HIDDEN
        grad = tl.load(gradient + start + offset, valid_bus & valid_column, 0.0)
        x = (
            tl.load(refined + start + offset, valid_bus & valid_column, 0.0).to(factor.dtype)
            + second_bias
        )
        mean = tl.load(moments + row, valid_bus, 0.0)
        inverse_deviation = tl.load(moments + n_windows * 4 * n_buses + row, valid_bus, 0.0)
        grad_embedding += grad
        total = tl.sum(_sum_to_four_rows(grad), 0, keep_dims=True)
        tl.store(grad_calendar + window * HIDDEN, total, valid_column)
        x = (x - mean) * inverse_deviation
        grad = _apply_dropout(grad, row, seed, DROPOUT)
        grad_factor += _sum_to_four_rows(grad * x)
        grad_summand += _sum_to_four_rows(grad)
        grad *= factor
        mean_grad = tl.sum(grad, 1, keep_dims=True) / HIDDEN
        projection = tl.sum(grad * x, 1, keep_dims=True) / HIDDEN
        grad = inverse_deviation * (grad - mean_grad - x * projection)
        grad_bias += _sum_to_four_rows(grad)
        tl.store(grad_refined + start + offset, grad, valid_bus & valid_column)
    grad_identity += (chunk * 4 + kind).to(tl.int64) * n_buses * HIDDEN
    tl.store(grad_identity + offset, grad_embedding, valid_bus & valid_column)
    sums += (chunk * tl.num_programs(0) * 4 + item) * 3 * HIDDEN + column
    tl.store(sums, tl.sum(grad_bias, 0, keep_dims=True), valid_column)
    tl.store(sums + HIDDEN, tl.sum(grad_factor, 0, keep_dims=True), valid_column)
    tl.store(sums + 2 * HIDDEN, tl.sum(grad_summand, 0, keep_dims=True), valid_column)
