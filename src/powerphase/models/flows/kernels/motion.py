"""How a half is stretched and moved: its values, their moments and the determinant in one pass.

The products with the networks' last layers are made for a block of channels, and the slopes of what
they are written over them.
"""

from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.kernels.contraction import add_product
from powerphase.models.flows.kernels.tiles import (
    WARPS,
    Cut,
    added,
    aligned_blocks,
    conclude,
    empty,
    in_rows,
    kinds,
    learn,
    places,
    room,
    value_tile,
)
from powerphase.models.flows.normalisation import Affine, Moments
from powerphase.models.framework.kernels.toolkit import constexpr, jit, product_dtype, tanh, tl
from powerphase.models.recurrent.inputs import Given


def moved(
    given: Given,
    affine: Affine,
    inner: tuple[Float[Tensor, "B steps K"], Float[Tensor, "B steps K"]],
    weight: Float[Tensor, "2 C K"],
    bias: Float[Tensor, "2 C"],
    at_once: int,
    keep: bool,
) -> tuple[Float[Tensor, "B steps C"] | None, Moments, Float[Tensor, ""]]:
    """The values after a coupling, if they are kept, their moments, and the log-determinant.

    Args:
        given: the half that is moved.
        affine: what its values go through first.
        inner: what the last layers are given: of the scale, of the translation.
        weight: of the last layers.
        bias: theirs.
        at_once: channels of a block.
        keep: whether the values will be asked for.
    """
    apply: Any = _Moved.apply
    values, mean, variance, determinant = apply(
        *given.tensors, *affine, *inner, weight, bias, at_once, keep
    )
    return values, Moments(mean, variance), determinant


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        *tensors, at_once, keep = inputs
        block = _Block.of(tensors, at_once, product_dtype(tensors[0]))
        ctx.at_once, ctx.dtype = at_once, block.told.dtype
        ctx.set_materialize_grads(False)
        kept = empty(block.given.size, tensors[0]) if keep else None
        with torch.autocast(tensors[0].device.type, enabled=False):
            found = [_moved_block(block, here, kept) for here in block.parts]
        moments = Moments.joined([one for one, _ in found])
        total = torch.cat([one for _, one in found]).sum(dtype=torch.float64)
        ctx.save_for_backward(*tensors, moments.mean)
        return kept, *moments, (total / block.n_rows).to(moments.mean.dtype)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, mean = ctx.saved_tensors
        first, affine, (inner, weight) = tensors[0], tensors[3:6], (tensors[6:8], tensors[8])
        block = _Block.of(tensors, ctx.at_once, ctx.dtype)
        of_kept, *of_moments, of_total = slopes
        zero = torch.zeros_like(mean)
        level, spread = (zero if one is None else one / block.n_rows for one in of_moments)
        total = zero if of_total is None else (of_total / block.n_rows).expand_as(mean)
        table = torch.cat([block.table, torch.stack([mean, level, 2 * spread, total])])
        of_values = empty(block.given.size, first) if ctx.needs_input_grad[0] else None
        of_kept = None if of_kept is None else in_rows(of_kept)
        of_inner = [mean.new_zeros(block.n_rows, weight.shape[2]) for _ in inner]
        of_weight, sums = torch.empty_like(weight), []
        with torch.autocast(first.device.type, enabled=False):
            for here in block.parts:
                told = block.told_of(here)
                sums.append(_slopes(block, here, told, table, of_kept, of_values))
                for k, one in enumerate(told):
                    of_weight[k, here] = one.T @ block.inner[k]
                    add_product(of_inner[k], one, weight[k, here].to(one.dtype))
        of_bias, of_shift, of_scale = torch.cat(sums, dim=1).split([2, 1, 1])
        of_affine = (of_scale[0], -affine[0] * of_shift[0], of_shift[0])
        of_told = (one.view_as(of).to(of.dtype) for one, of in zip(of_inner, inner, strict=True))
        return of_values, None, None, *of_affine, *of_told, of_weight, of_bias, None, None


class _Block(NamedTuple):
    """All that a block of channels is made of."""

    given: Given
    table: Float[Tensor, "5 C"]
    """Of each channel: the affine map, and both biases."""
    inner: list[Float[Tensor, "rows K"]]
    weight: Float[Tensor, "2 C K"]
    parts: list[slice]
    told: Float[Tensor, "2 rows width"]
    """Room for the products with the last layers."""

    @classmethod
    def of(cls, tensors: list[Any], at_once: int, dtype: torch.dtype) -> "_Block":
        """From the inputs of the function."""
        first, second, scale, *affine, one, other, weight, bias = tensors
        given, n_rows = Given.of_tensors(first, second, scale), one.shape[0] * one.shape[1]
        parts = aligned_blocks(weight.shape[1], at_once)
        inner = [part.flatten(0, 1).to(dtype) for part in (one, other)]
        told = room(2, n_rows, parts[0].stop, dtype, first)
        return cls(given, torch.stack([*affine, *bias]), inner, weight, parts, told)

    @property
    def n_rows(self) -> int:
        """Steps of windows."""
        return self.told.shape[1]

    def told_of(self, here: slice) -> list[Float[Tensor, "rows C"]]:
        """Products of a block, without their biases: of the scale, of the translation."""
        places = self.told[:, :, : here.stop - here.start].unbind()
        for inner, weight, place in zip(self.inner, self.weight, places, strict=True):
            torch.mm(inner, weight[here].T.to(place.dtype), out=place)
        return list(places)


def _moved_block(block: _Block, here: slice, kept: Tensor | None) -> tuple[Moments, Tensor]:
    """Moments and summed log-scales of each channel; writes what is kept."""
    told, given, table = block.told_of(here), block.given.of(here), block.table[:, here]
    cut = Cut(*told[0].shape)
    sums = cut.sums(3, table)
    into = table if kept is None else kept[..., here]
    _move[cut.grid](
        *places(given),
        *(table, table.stride(0), *told, told[0].stride(0), into, into.stride(-2), sums),
        *(cut.n_rows, cut.n_channels),
        **kinds(given),
        **cut.constants,
        KEEP=kept is not None,
        num_warps=WARPS,
    )
    mean, squares, total = sums.unbind(1)
    return cut.moments(mean, squares), total.sum(0, dtype=torch.float64)


def _slopes(
    block: _Block,
    here: slice,
    told: list[Tensor],
    table: Tensor,
    of_kept: Tensor | None,
    of_values: Tensor | None,
) -> Float[Tensor, "4 C"]:
    """Sums over rows, for biases, shift and scale; writes the slopes of told and of values."""
    given, table = block.given.of(here), table[:, here]
    cut = Cut(*told[0].shape)
    sums = cut.sums(4, table)
    kept = table if of_kept is None else of_kept[..., here]
    into = table if of_values is None else of_values[..., here]
    _move_backward[cut.grid](
        *places(given),
        *(table, table.stride(0), *told, told[0].stride(0), kept, kept.stride(-2)),
        *(into, into.stride(-2), sums, cut.n_rows, cut.n_channels),
        **kinds(given),
        **cut.constants,
        KEPT=of_kept is not None,
        KEEP=of_values is not None,
        num_warps=WARPS,
    )
    return added(sums)


@jit
@no_type_check
def _move(
    first,
    second,
    scale,
    steps,
    seen,
    first_window,
    first_step,
    second_window,
    second_step,
    scale_window,
    scale_channel,
    channel,
    table,
    table_row,
    log_scale,
    translation,
    told_row,
    kept,
    kept_row,
    sums,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    TILES: constexpr,
    KEEP: constexpr,
):
    """Some channels of some rows."""
    dtype = sums.dtype.element_ty
    begin = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = column < n_channels
    factor = tl.load(table + column, there, 0.0)
    centre = tl.load(table + table_row + column, there, 0.0)
    shift = tl.load(table + 2 * table_row + column, there, 0.0)
    scale_bias = tl.load(table + 3 * table_row + column, there, 0.0)
    shift_bias = tl.load(table + 4 * table_row + column, there, 0.0)
    mean = tl.zeros([ROWS, COLUMNS], dtype)
    squares = tl.zeros([ROWS, COLUMNS], dtype)
    total = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = begin + number * ROWS
        inside = (row < n_rows) & there
        values = value_tile(
            first, second, scale, steps, seen, first_window, first_step, second_window, second_step,
            scale_window, scale_channel, channel, row, column, inside, TWO, SCALED,
        )  # fmt: skip
        here = row.to(tl.int64)
        told = here * told_row + column
        stretch, _ = tanh(tl.load(log_scale + told, inside, 0.0).to(dtype) + scale_bias)
        values = (factor * (values - centre) + shift) * tl.exp(stretch)
        values += tl.load(translation + told, inside, 0.0).to(dtype) + shift_bias
        if KEEP:
            tl.store(kept + here * kept_row + column, values, inside)
        mean, squares = learn(values, inside, number, mean, squares)
        total += tl.where(inside, stretch, 0.0)
    whole, spread = conclude(mean, squares, begin, n_rows, ROWS, TILES)
    place = sums + tl.program_id(0).to(tl.int64) * 3 * n_channels + column
    tl.store(place, whole, there)
    tl.store(place + n_channels, spread, there)
    tl.store(place + 2 * n_channels, tl.sum(total, 0, keep_dims=True), there)


@jit
@no_type_check
def _move_backward(
    first,
    second,
    scale,
    steps,
    seen,
    first_window,
    first_step,
    second_window,
    second_step,
    scale_window,
    scale_channel,
    channel,
    table,
    table_row,
    log_scale,
    translation,
    told_row,
    of_kept,
    kept_row,
    of_values,
    of_row,
    sums,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    TILES: constexpr,
    KEPT: constexpr,
    KEEP: constexpr,
):
    """Some channels of some rows; what is made once more is not read."""
    dtype = sums.dtype.element_ty
    begin = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = column < n_channels
    factor = tl.load(table + column, there, 0.0)
    centre = tl.load(table + table_row + column, there, 0.0)
    shift = tl.load(table + 2 * table_row + column, there, 0.0)
    scale_bias = tl.load(table + 3 * table_row + column, there, 0.0)
    shift_bias = tl.load(table + 4 * table_row + column, there, 0.0)
    mean = tl.load(table + 5 * table_row + column, there, 0.0)
    of_mean = tl.load(table + 6 * table_row + column, there, 0.0)
    of_spread = tl.load(table + 7 * table_row + column, there, 0.0)
    of_total = tl.load(table + 8 * table_row + column, there, 0.0)
    for_scale_bias = tl.zeros([ROWS, COLUMNS], dtype)
    for_shift_bias = tl.zeros([ROWS, COLUMNS], dtype)
    for_shift = tl.zeros([ROWS, COLUMNS], dtype)
    for_scale = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = begin + number * ROWS
        inside = (row < n_rows) & there
        values = value_tile(
            first, second, scale, steps, seen, first_window, first_step, second_window, second_step,
            scale_window, scale_channel, channel, row, column, inside, TWO, SCALED,
        )  # fmt: skip
        here = row.to(tl.int64)
        told = here * told_row + column
        stretch, steep = tanh(tl.load(log_scale + told, inside, 0.0).to(dtype) + scale_bias)
        by = tl.exp(stretch)
        off = values - centre
        wide = (factor * off + shift) * by
        after = wide + (tl.load(translation + told, inside, 0.0).to(dtype) + shift_bias)
        of_after = of_mean + of_spread * (after - mean)
        if KEPT:
            of_after += tl.load(of_kept + here * kept_row + column, inside, 0.0)
        of_after = tl.where(inside, of_after, 0.0)
        of_stretch = tl.where(inside, (of_after * wide + of_total) * steep, 0.0)
        of_before = of_after * by
        tl.store(log_scale + told, of_stretch, inside)
        tl.store(translation + told, of_after, inside)
        if KEEP:
            tl.store(of_values + here * of_row + column, of_before * factor, inside)
        for_scale_bias += of_stretch
        for_shift_bias += of_after
        for_shift += of_before
        for_scale += of_before * off
    place = sums + tl.program_id(0).to(tl.int64) * 4 * n_channels + column
    tl.store(place, tl.sum(for_scale_bias, 0, keep_dims=True), there)
    tl.store(place + n_channels, tl.sum(for_shift_bias, 0, keep_dims=True), there)
    tl.store(place + 2 * n_channels, tl.sum(for_shift, 0, keep_dims=True), there)
    tl.store(place + 3 * n_channels, tl.sum(for_scale, 0, keep_dims=True), there)
