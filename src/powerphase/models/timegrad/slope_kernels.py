"""Kernels of the noise network's loss: a block, its slopes, and those of any convolution.

A program has some tiles of columns, one after the other, each within a row: so all columns of a
tile have one diffusion step, and nothing of another row is read. Slopes of weights are added up
over its tiles; the sums of all programs are added afterwards, in their order.

Tensor cores multiply matrices of 16 rows, and a column has eight features. So a block's tiles are
two groups of columns, or more, whose features are rows of one matrix; weights are then a matrix
with a block for each group.
"""

from typing import no_type_check

from powerphase.models.framework.kernels import constexpr, jit, tanh, tl
from powerphase.models.timegrad.denoiser import SLOPE

__all__ = ["block_backward", "block_forward", "filter_backward"]

LEAK = constexpr(SLOPE)
HALF = constexpr(0.7071067811865476)
"""The root of it: what a block changes is added, over √2."""


@jit
@no_type_check
def _found(tile, n_rows, length, tiles, COLUMNS: constexpr):
    """Row of a tile, where it begins, the tile's places in it, and which of these there are."""
    row = tile // tiles
    place = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    return row, row * length, place, (place < length) & (row < n_rows)


@jit
@no_type_check
def _shifted(values, begin, place, there, length, n_columns, AHEAD: constexpr, N: constexpr,
             TAPS: constexpr, PADDED: constexpr, DILATION: constexpr):  # fmt: skip
    """N numbers of each tap's column, tap by tap, and which of them are in the row."""
    source = tl.arange(0, PADDED)
    shift = (source // N - TAPS // 2) * DILATION * AHEAD
    at = place[None, :] + shift[:, None]
    known = (source < TAPS * N)[:, None] & there[None, :] & (at >= 0) & (at < length)
    where = (source % N)[:, None] * n_columns + begin + at
    return tl.load(values + where, known, 0.0), known


@jit
@no_type_check
def _told(features, added, begin, place, exists, length, n_columns, N: constexpr,
          GROUPS: constexpr, FAN: constexpr, DILATION: constexpr, COLUMNS: constexpr):  # fmt: skip
    """All that a column's convolution reads: features, and what the diffusion step adds."""
    source = tl.arange(0, GROUPS * FAN)
    tap, feature = source % FAN // N, source % FAN % N
    at = place[None, :] + (source // FAN * COLUMNS + (tap - 1) * DILATION)[:, None]
    known = (tap < 3)[:, None] & exists & (at >= 0) & (at < length)
    value = tl.load(features + feature[:, None] * n_columns + begin + at, known, 0.0)
    return tl.where(known, value + tl.load(added + feature, tap < 3, 0.0)[:, None], 0.0)


@jit
@no_type_check
def _taps(weight, first, N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr):
    """N rows of a convolution from the first on, as the matrix for `_told`."""
    lane, source = tl.arange(0, GROUPS * SPAN)[:, None], tl.arange(0, GROUPS * FAN)[None, :]
    tap, feature = source % FAN // N, source % FAN % N
    real = (lane // SPAN == source // FAN) & (lane % SPAN < N) & (tap < 3)
    return tl.load(weight + ((first + lane % SPAN) * N + feature) * 3 + tap, real, 0.0)


@jit
@no_type_check
def _pairs(N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """Where a matrix of N rows has what one lane has from another, and which of these there are."""
    lane, source = tl.arange(0, GROUPS * SPAN)[:, None], tl.arange(0, GROUPS * SPAN)[None, :]
    real = (lane // SPAN == source // SPAN) & (lane % SPAN < N) & (source % SPAN < N)
    return lane % SPAN * N + source % SPAN, real


@jit
@no_type_check
def _some(vector, first, N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """N numbers from the first on, as a column."""
    feature = tl.arange(0, GROUPS * SPAN) % SPAN
    return tl.load(vector + first + feature, feature < N, 0.0)[:, None]


@jit
@no_type_check
def _mixing(mix, mix_bias, told, told_bias, N: constexpr, SPAN: constexpr, GROUPS: constexpr,
            FAN: constexpr):  # fmt: skip
    """What makes gate and content: matrices of taps, biases, what the conditioner is told by."""
    gate_bias = _some(mix_bias, 0, N, SPAN, GROUPS) + _some(told_bias, 0, N, SPAN, GROUPS)
    content_bias = _some(mix_bias, N, N, SPAN, GROUPS) + _some(told_bias, N, N, SPAN, GROUPS)
    return (
        _taps(mix, 0, N, SPAN, GROUPS, FAN), _taps(mix, N, N, SPAN, GROUPS, FAN),
        gate_bias, content_bias,
        _some(told, 0, N, SPAN, GROUPS), _some(told, N, N, SPAN, GROUPS),
    )  # fmt: skip


@jit
@no_type_check
def _leaving(leave, leave_bias, N: constexpr, SPAN: constexpr, GROUPS: constexpr):
    """What makes a block's change and what it adds to the collected: matrices, biases."""
    pairs, both = _pairs(N, SPAN, GROUPS)
    to_change = tl.load(leave + pairs, both, 0.0)
    to_skip = tl.load(leave + N * N + pairs, both, 0.0)
    change_bias = _some(leave_bias, 0, N, SPAN, GROUPS)
    return to_change, to_skip, change_bias, _some(leave_bias, N, N, SPAN, GROUPS)


@jit
@no_type_check
def _leaned(values, told):
    """Values times the slope of a rectifier, where it was given what has the sign of the others."""
    return tl.where(told > 0, values, LEAK * values)


@jit
@no_type_check
def block_forward(
    features, conditioner, added, added_row, collected, made,
    n_rows, length, tiles, EACH: constexpr,
    mix, mix_bias, told, told_bias, leave, leave_bias,
    N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr, DILATION: constexpr,
    FIRST: constexpr, LAST: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """The features after a block, which the last need not make; adds to what is collected."""
    LANES: constexpr = GROUPS * SPAN
    group, feature = tl.arange(0, LANES) // SPAN, tl.arange(0, LANES) % SPAN
    n_columns = n_rows * length
    gate_taps, content_taps, gate_bias, content_bias, gate_told, content_told = _mixing(
        mix, mix_bias, told, told_bias, N, SPAN, GROUPS, FAN
    )
    to_change, to_skip, change_bias, skip_bias = _leaving(leave, leave_bias, N, SPAN, GROUPS)
    for number in range(EACH):
        tile = tl.program_id(0) * EACH + number
        row, exists = tile // tiles, tile // tiles < n_rows
        begin, place = row * length, tile % tiles * GROUPS * COLUMNS + tl.arange(0, COLUMNS)
        seen = _told(features, added + tl.where(exists, row, 0) * added_row, begin, place, exists,
                     length, n_columns, N, GROUPS, FAN, DILATION, COLUMNS)  # fmt: skip
        spot = place[None, :] + group[:, None] * COLUMNS
        there = (spot < length) & exists
        at, here = feature[:, None] * n_columns + begin + spot, (feature < N)[:, None] & there
        beside = tl.load(conditioner + begin + spot, there, 0.0)
        gate = tl.dot(gate_taps, seen, input_precision=PRECISION)
        content = tl.dot(content_taps, seen, input_precision=PRECISION)
        turned, _ = tanh(content + content_bias + content_told * beside)
        gated = turned / (1 + tl.exp(-(gate + gate_bias + gate_told * beside)))
        skipped = tl.dot(to_skip, gated, input_precision=PRECISION) + skip_bias
        skipped = _leaned(skipped, skipped)
        if not FIRST:
            skipped += tl.load(collected + at, here, 0.0)
        tl.store(collected + at, skipped, here)
        if not LAST:
            change = tl.dot(to_change, gated, input_precision=PRECISION) + change_bias
            change = _leaned(change, change)
            tl.store(made + at, (tl.load(features + at, here, 0.0) + change) * HALF, here)


@jit
@no_type_check
def block_backward(
    features, conditioner, added, added_row, of_made, of_collected, of_mixed, of_conditioner,
    of_leave, of_told, parts_row,
    n_rows, length, tiles, EACH: constexpr,
    mix, mix_bias, told, told_bias, leave, leave_bias,
    N: constexpr, SPAN: constexpr, GROUPS: constexpr, FAN: constexpr, DILATION: constexpr,
    LAST: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """Slopes of what a convolution has made for a block, and of all that comes after.

    The slopes of the convolution itself are `filter_backward`'s.
    """
    LANES: constexpr = GROUPS * SPAN
    group, feature = tl.arange(0, LANES) // SPAN, tl.arange(0, LANES) % SPAN
    n_columns = n_rows * length
    gate_taps, content_taps, gate_bias, content_bias, gate_told, content_told = _mixing(
        mix, mix_bias, told, told_bias, N, SPAN, GROUPS, FAN
    )
    to_change, to_skip, change_bias, skip_bias = _leaving(leave, leave_bias, N, SPAN, GROUPS)
    pairs, both = _pairs(N, SPAN, GROUPS)
    kind: constexpr = features.dtype.element_ty
    change_sum, skip_sum = tl.zeros([LANES, LANES], kind), tl.zeros([LANES, LANES], kind)
    change_all, skip_all = tl.zeros([LANES, COLUMNS], kind), tl.zeros([LANES, COLUMNS], kind)
    gate_all, content_all = tl.zeros([LANES, COLUMNS], kind), tl.zeros([LANES, COLUMNS], kind)
    for number in range(EACH):
        tile = tl.program_id(0) * EACH + number
        row, exists = tile // tiles, tile // tiles < n_rows
        begin, place = row * length, tile % tiles * GROUPS * COLUMNS + tl.arange(0, COLUMNS)
        seen = _told(features, added + tl.where(exists, row, 0) * added_row, begin, place, exists,
                     length, n_columns, N, GROUPS, FAN, DILATION, COLUMNS)  # fmt: skip
        spot = place[None, :] + group[:, None] * COLUMNS
        there = (spot < length) & exists
        at, here = feature[:, None] * n_columns + begin + spot, (feature < N)[:, None] & there
        beside = tl.load(conditioner + begin + spot, there, 0.0)
        gate = tl.dot(gate_taps, seen, input_precision=PRECISION)
        content = tl.dot(content_taps, seen, input_precision=PRECISION)
        turned, steep = tanh(content + content_bias + content_told * beside)
        opened = 1 / (1 + tl.exp(-(gate + gate_bias + gate_told * beside)))
        gated = turned * opened
        skipped = tl.dot(to_skip, gated, input_precision=PRECISION) + skip_bias
        of_skipped = _leaned(tl.load(of_collected + at, here, 0.0), skipped)
        of_gated = tl.dot(tl.trans(to_skip), of_skipped, input_precision=PRECISION)
        skip_all += of_skipped
        if not LAST:
            change = tl.dot(to_change, gated, input_precision=PRECISION) + change_bias
            of_change = _leaned(tl.load(of_made + at, here, 0.0) * HALF, change)
            of_gated += tl.dot(tl.trans(to_change), of_change, input_precision=PRECISION)
            change_all += of_change
        # A branch, since Triton would divide all products of one among warps as it does the last.
        if exists:
            skip_sum += tl.dot(of_skipped, tl.trans(gated), input_precision=PRECISION)
            if not LAST:
                change_sum += tl.dot(of_change, tl.trans(gated), input_precision=PRECISION)
        of_content = of_gated * opened * steep
        of_gate = of_gated * gated * (1 - opened)
        tl.store(of_mixed + at, of_gate, here)
        tl.store(of_mixed + N * n_columns + at, of_content, here)
        gate_all += of_gate * beside
        content_all += of_content * beside
        of_told_beside = of_gate * gate_told + of_content * content_told
        for k in tl.static_range(GROUPS):
            of_beside = tl.sum(tl.where(group[:, None] == k, of_told_beside, 0.0), 0)
            mine = place + k * COLUMNS
            if not LAST:
                of_beside += tl.load(of_conditioner + begin + mine, exists & (mine < length), 0.0)
            tl.store(of_conditioner + begin + mine, of_beside, exists & (mine < length))
    part, real = (tl.program_id(0) * GROUPS + group) * parts_row, feature < N
    tl.store(of_leave + part[:, None] + pairs, change_sum, both)
    tl.store(of_leave + part[:, None] + N * N + pairs, skip_sum, both)
    tl.store(of_leave + part + 2 * N * N + feature, tl.sum(change_all, 1), real)
    tl.store(of_leave + part + 2 * N * N + N + feature, tl.sum(skip_all, 1), real)
    tl.store(of_told + part + feature, tl.sum(gate_all, 1), real)
    tl.store(of_told + part + N + feature, tl.sum(content_all, 1), real)


@jit
@no_type_check
def filter_backward(
    slope, features, added, added_row, of_features, of_added, of_added_tile, of_filter, parts_row,
    n_rows, length, tiles, EACH: constexpr, weight,
    FACTOR: constexpr, N_IN: constexpr, N_OUT: constexpr, INS: constexpr, OUTS: constexpr,
    WIDE: constexpr, TAPS: constexpr, DILATION: constexpr, TOLD: constexpr, RESIDUAL: constexpr,
    RECTIFIED: constexpr, NEEDED: constexpr, COLUMNS: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """Slopes of a convolution, its weight and its bias, from those of what it has made.

    It was made of features times FACTOR and, where TOLD, what the row's diffusion step adds. Where
    RESIDUAL, features had another use: their place has √2 times its slope. Where RECTIFIED, they
    come from a rectifier, and its slope is taken too. Where not NEEDED, weight and bias are all.
    """
    n_columns = n_rows * length
    lane, source = tl.arange(0, INS), tl.arange(0, OUTS)
    real, sent = lane < N_IN, source < TAPS * N_OUT
    spot = ((source % N_OUT)[None, :] * N_IN + lane[:, None]) * TAPS + (source // N_OUT)[None, :]
    pairs = real[:, None] & sent[None, :]
    matrix = tl.load(weight + spot, pairs, 0.0)
    kind: constexpr = features.dtype.element_ty
    total, sums = tl.zeros([WIDE, COLUMNS], kind), tl.zeros([INS, OUTS], kind)
    made = tl.arange(0, WIDE)
    for number in range(EACH):
        tile = tl.program_id(0) * EACH + number
        row, begin, place, there = _found(tile, n_rows, length, tiles, COLUMNS)
        slopes, _ = _shifted(
            slope, begin, place, there, length, n_columns, -1, N_OUT, TAPS, OUTS, DILATION
        )
        at = lane[:, None] * n_columns + begin + place[None, :]
        here = real[:, None] & there[None, :]
        value = tl.load(features + at, here, 0.0)
        seen = value * FACTOR
        if TOLD:
            from_step = tl.load(added + row * added_row + lane, real & (row < n_rows), 0.0)
            seen = tl.where(here, seen + from_step[:, None], 0.0)
        own = made[:, None] * n_columns + begin + place[None, :]
        total += tl.load(slope + own, (made < N_OUT)[:, None] & there[None, :], 0.0)
        sums += tl.dot(seen, tl.trans(slopes), input_precision=PRECISION)
        if NEEDED:
            found = tl.dot(matrix, slopes, input_precision=PRECISION) * FACTOR
            if TOLD:
                mine = tl.sum(tl.where(here, found, 0.0), 1)
                tl.store(of_added + tile * of_added_tile + lane, mine, real & (row < n_rows))
            if RESIDUAL:
                found += tl.load(of_features + at, here, 0.0) * HALF
            if RECTIFIED:
                found = _leaned(found, value)
            tl.store(of_features + at, found, here)
    mine = tl.program_id(0) * parts_row
    tl.store(of_filter + mine + spot, sums, pairs)
    tl.store(of_filter + mine + TAPS * N_IN * N_OUT + made, tl.sum(total, 1), made < N_OUT)
