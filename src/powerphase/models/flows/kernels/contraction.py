"""The sum over a half's channels that goes into a coupling's networks."""

from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.kernels.tiles import (
    COLUMNS,
    ROWS,
    WARPS,
    Cut,
    added,
    aligned_blocks,
    empty,
    kinds,
    places,
    room,
    value_tile,
)
from powerphase.models.flows.normalisation import Affine
from powerphase.models.framework.kernels.toolkit import constexpr, jit, product_dtype, tl, triton
from powerphase.models.recurrent.inputs import Given


def contracted(
    given: Given, affine: Affine, weight: Float[Tensor, "C inner"], at_once: int
) -> Float[Tensor, "B steps inner"]:
    """What is made of a half by its affine map and these weights."""
    apply: Any = _Contracted.apply
    found: Tensor = apply(*given.tensors, *affine, weight, at_once)
    return found


class _Contracted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.at_once = inputs
        first, second, scale, *affine, weight = tensors
        ctx.save_for_backward(*tensors)
        ctx.dtype, given = product_dtype(first), Given.of_tensors(first, second, scale)
        n_windows, n_steps, n_channels = given.size
        parts = aligned_blocks(n_channels, ctx.at_once)
        made = room(1, n_windows * n_steps, parts[0].stop, ctx.dtype, first)[0]
        total = weight.new_zeros(n_windows * n_steps, weight.shape[1])
        with torch.autocast(first.device.type, enabled=False):
            for here in parts:
                values = _written(given.of(here), torch.stack(affine)[:, here], made)
                add_product(total, values, weight[here].to(ctx.dtype))
        return total.unflatten(0, (n_windows, n_steps))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        first, second, scale, *affine, weight = ctx.saved_tensors
        given, table = Given.of_tensors(first, second, scale), torch.stack(affine)
        slope = upstream.flatten(0, 1).to(ctx.dtype)
        parts = aligned_blocks(len(weight), ctx.at_once)
        made = room(1, len(slope), parts[0].stop, ctx.dtype, first)[0]
        of_weight, sums = torch.empty_like(weight), []
        of_values = empty(given.size, first) if ctx.needs_input_grad[0] else None
        with torch.autocast(first.device.type, enabled=False):
            for here in parts:
                values = _written(given.of(here), table[:, here], made)
                of_weight[here] = values.T @ slope
                if any(ctx.needs_input_grad[:6]):
                    torch.mm(slope, weight[here].T.to(ctx.dtype), out=values)
                    own = None if of_values is None else of_values[..., here]
                    sums.append(_slopes(given.of(here), table[:, here], values, own))
        if not sums:
            return (None,) * 6 + (of_weight, None)
        of_shift, of_scale = torch.cat(sums, dim=1)
        return of_values, None, None, of_scale, -affine[0] * of_shift, of_shift, of_weight, None


def add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """Add a matrix product, which may be made in half precision but not added up in it."""
    if one.dtype == total.dtype:
        total.addmm_(one, other)
    else:
        total += one @ other


def _written(given: Given, table: Tensor, made: Tensor) -> Tensor:
    """What an affine map, of which the table has scale, centre and shift, makes of values."""
    n_windows, n_steps, n_channels = given.size
    found, n_rows = made[:, :n_channels], n_windows * n_steps
    grid = triton.cdiv(n_rows, ROWS), triton.cdiv(n_channels, COLUMNS)
    _write[grid](
        *places(given),
        *(table, table.stride(0), found, found.stride(0), n_rows, n_channels),
        **kinds(given),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return found


def _slopes(given: Given, table: Tensor, slope: Tensor, of_values: Tensor | None) -> Tensor:
    """Sums over rows of the slope, and of it times the centred values; writes that of values."""
    cut = Cut(*slope.shape)
    sums, keep = cut.sums(2, given.parts[0]), of_values is not None
    into = slope if of_values is None else of_values
    _write_backward[cut.grid](
        *places(given),
        *(table, table.stride(0), slope, slope.stride(0), into, into.stride(-2), sums),
        *(cut.n_rows, cut.n_channels),
        **kinds(given),
        **cut.constants,
        KEEP=keep,
        num_warps=WARPS,
    )
    return added(sums)


@jit
@no_type_check
def _write(
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
    found,
    found_row,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """Some channels of some rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = column < n_channels
    inside = (row < n_rows) & there
    values = value_tile(
        first, second, scale, steps, seen, first_window, first_step, second_window, second_step,
        scale_window, scale_channel, channel, row, column, inside, TWO, SCALED,
    )  # fmt: skip
    factor = tl.load(table + column, there, 0.0)
    centre = tl.load(table + table_row + column, there, 0.0)
    shift = tl.load(table + 2 * table_row + column, there, 0.0)
    place = found + row.to(tl.int64) * found_row + column
    tl.store(place, factor * (values - centre) + shift, inside)


@jit
@no_type_check
def _write_backward(
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
    slope,
    slope_row,
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
    KEEP: constexpr,
):
    """Some channels of some rows; beyond them slopes are 0."""
    dtype = sums.dtype.element_ty
    begin = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    there = column < n_channels
    factor = tl.load(table + column, there, 0.0)
    centre = tl.load(table + table_row + column, there, 0.0)
    of_shift = tl.zeros([ROWS, COLUMNS], dtype)
    of_scale = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = begin + number * ROWS
        inside = (row < n_rows) & there
        values = value_tile(
            first, second, scale, steps, seen, first_window, first_step, second_window, second_step,
            scale_window, scale_channel, channel, row, column, inside, TWO, SCALED,
        )  # fmt: skip
        here = row.to(tl.int64)
        given = tl.load(slope + here * slope_row + column, inside, 0.0).to(dtype)
        of_shift += given
        of_scale += given * (values - centre)
        if KEEP:
            tl.store(of_values + here * of_row + column, given * factor, inside)
    place = sums + tl.program_id(0).to(tl.int64) * 2 * n_channels + column
    tl.store(place, tl.sum(of_shift, 0, keep_dims=True), there)
    tl.store(place + n_channels, tl.sum(of_scale, 0, keep_dims=True), there)
