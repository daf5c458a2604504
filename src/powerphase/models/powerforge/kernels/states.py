"""States: all that happens around the encoder's second layer, in one pass before and one after.

The scale network ends in a linear layer, and its token is added to what the second layer makes. Two
linear layers whose results are added are one of both inputs side by side: so the first pass leaves
what they read in the same rows.

Half precision is a matter of matrix products alone. What comes from them is computed with in the
precision of the parameters; what goes to the next one is rounded as the product would round it; and
states have the precision of the parameters.
"""

from functools import cache
from math import sqrt, tau
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.models.powerforge.kernels.toolkit import constexpr, jit, tl, triton

HALF_ROOT, BELL = constexpr(sqrt(0.5)), constexpr(1 / sqrt(tau))
ROUNDS = constexpr(7)
"""Of Philox: as few as pass all tests of randomness (Salmon et al. 2011, 10.1145/2063384.2063405).
"""

TILE = 2048
"""Numbers at a time, of each of the four kinds in the first pass and of one in the second. In the
second, each row is one warp's."""
REGISTERS = 128
"""At most, for each thread of the backward passes: so that 16 warps run on a multiprocessor."""
AT_ONCE = 528
"""Programs of the second pass that run at a time: four on each multiprocessor of an H200."""


def opened(
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
    found: Tensor = (_Opened.apply if fast else _opened_plain)(*inputs)
    return found


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


def _opened_plain(
    seen: Tensor, size: Tensor, gates: Tensor, bias: Tensor, inner: Tensor, inner_bias: Tensor
) -> Tensor:
    """The same as the kernel, in PyTorch."""
    p, q, *others = seen[:, :, : size.shape[2]].to(gates.dtype).unbind(1)
    gated = [kind + row[0] * p + row[1] * q for kind, row in zip(others, gates, strict=True)]
    weeks = torch.stack([p, q, *gated], dim=1) + bias
    sizes = size.unsqueeze(3) * inner[:, 0] + inner_bias
    return F.gelu(torch.cat([weeks, sizes], dim=3)).to(seen.dtype)


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


class _Opened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        seen, size, *_, inner_bias = inputs
        (n_windows, _, width, hidden), n_inner = seen.shape, len(inner_bias)
        constants = _opening(hidden, n_inner)
        found = seen.new_empty(*size.shape, hidden + n_inner)
        _open[(triton.cdiv(size.shape[2], constants["BUSES"]), n_windows)](
            *(*inputs, found, size.shape[2], width), **constants
        )
        ctx.save_for_backward(*inputs)
        return found

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        seen, size, gates, _, inner, _ = ctx.saved_tensors
        (n_windows, _, width, hidden), n_inner = seen.shape, len(inner)
        constants = _opening(hidden, n_inner)
        grid = triton.cdiv(width, constants["BUSES"]), n_windows
        of_seen, of_size = torch.empty_like(seen), torch.empty_like(size)
        # Each program's own sums, to be added always in the same order.
        n_sums = [4, hidden, n_inner, n_inner]
        sums = gates.new_empty(grid[0] * grid[1], sum(n_sums))
        _open_backward[grid](
            *(*ctx.saved_tensors, slope.contiguous(), of_seen, of_size, sums),
            *(size.shape[2], width),
            **constants,
            maxnreg=REGISTERS,
        )
        of_gates, of_bias, of_inner, of_inner_bias = sums.sum(0).split(n_sums)
        of_gates, of_inner = of_gates.view_as(gates), of_inner.view_as(inner)
        return of_seen, of_size, of_gates, of_bias, of_inner, of_inner_bias


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


def _opening(hidden: int, n_inner: int) -> dict[str, int]:
    """What the first pass is compiled for."""
    columns = triton.next_power_of_2(hidden)
    return {
        "HIDDEN": hidden,
        "INNER": n_inner,
        "BUSES": _rows(columns),
        "COLUMNS": columns,
        "INNER_COLUMNS": triton.next_power_of_2(n_inner),
        "num_warps": 8,
    }


def _settling(size: torch.Size, dropout: float) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """Programs by block of buses, kind and chunk of windows, and what they are compiled for.

    A program goes through the windows of its chunk with one block of buses: so the sums over
    windows, as large as all states of one window, are made in registers.
    """
    n_windows, _, n_buses, hidden = size
    columns = max(4, triton.next_power_of_2(hidden))
    rows = _rows(columns)
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


def _rows(columns: int) -> int:
    return max(4, min(16, TILE // columns))


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
def _open(
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
def _open_backward(
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
