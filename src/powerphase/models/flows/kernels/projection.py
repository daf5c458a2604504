"""Projection of one half of the channels into the networks of a coupling: a sum over channels."""

from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.kernels.tiles import (
    COLUMNS,
    ROWS,
    WARPS,
    Tiling,
    aligned_blocks,
    empty_aligned,
    load_values,
    sum_programs,
    value_arguments,
    value_constants,
    workspace,
)
from powerphase.models.flows.normalisation import Affine
from powerphase.models.framework.kernels import constexpr, jit, product_dtype, tl, triton
from powerphase.models.recurrent.encoder import ScaledValues


def fused_projection(
    inputs: ScaledValues, affine: Affine, weight: Float[Tensor, "C inner"], block_size: int
) -> Float[Tensor, "B steps inner"]:
    """The half after its affine map, multiplied by these weights."""
    apply: Any = _FusedProjection.apply
    projection: Tensor = apply(*inputs.tensors, *affine, weight, block_size)
    return projection


class _FusedProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, ctx.block_size = arguments
        first, second, scale, *affine, weight = tensors
        ctx.save_for_backward(*tensors)
        ctx.dtype, inputs = product_dtype(first), ScaledValues.from_tensors(first, second, scale)
        n_windows, n_steps, n_channels = inputs.size
        blocks = aligned_blocks(n_channels, ctx.block_size)
        buffer = workspace(1, n_windows * n_steps, blocks[0].stop, ctx.dtype, first)[0]
        total = weight.new_zeros(n_windows * n_steps, weight.shape[1])
        with torch.autocast(first.device.type, enabled=False):
            for block in blocks:
                values = _apply_affine(inputs.select(block), torch.stack(affine)[:, block], buffer)
                add_product(total, values, weight[block].to(ctx.dtype))
        return total.unflatten(0, (n_windows, n_steps))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        first, second, scale, *affine, weight = ctx.saved_tensors
        inputs, table = ScaledValues.from_tensors(first, second, scale), torch.stack(affine)
        gradient = upstream.flatten(0, 1).to(ctx.dtype)
        blocks = aligned_blocks(len(weight), ctx.block_size)
        buffer = workspace(1, len(gradient), blocks[0].stop, ctx.dtype, first)[0]
        grad_weight, sums = torch.empty_like(weight), []
        grad_values = empty_aligned(inputs.size, first) if ctx.needs_input_grad[0] else None
        with torch.autocast(first.device.type, enabled=False):
            for block in blocks:
                values = _apply_affine(inputs.select(block), table[:, block], buffer)
                grad_weight[block] = values.T @ gradient
                if any(ctx.needs_input_grad[:6]):
                    torch.mm(gradient, weight[block].T.to(ctx.dtype), out=values)
                    grad_block = None if grad_values is None else grad_values[..., block]
                    sums.append(
                        _affine_gradients(inputs.select(block), table[:, block], values, grad_block)
                    )
        if not sums:
            return (None,) * 6 + (grad_weight, None)
        grad_shift, grad_scale = torch.cat(sums, dim=1)
        grad_affine = (grad_scale, -affine[0] * grad_shift, grad_shift)
        return grad_values, None, None, *grad_affine, grad_weight, None


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a matrix product, which may be in half precision, in the precision of the total."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _apply_affine(inputs: ScaledValues, table: Tensor, buffer: Tensor) -> Tensor:
    """Apply an affine map to the inputs; the table has its scale, centre and shift."""
    n_windows, n_steps, n_channels = inputs.size
    output, n_rows = buffer[:, :n_channels], n_windows * n_steps
    grid = triton.cdiv(n_rows, ROWS), triton.cdiv(n_channels, COLUMNS)
    _affine_kernel[grid](
        *value_arguments(inputs),
        *(table, table.stride(0), output, output.stride(0), n_rows, n_channels),
        **value_constants(inputs),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
    )
    return output


def _affine_gradients(
    inputs: ScaledValues, table: Tensor, gradient: Tensor, grad_values: Tensor | None
) -> Tensor:
    """Sum gradients, alone and times the centred values, over rows; write those of the values."""
    tiling = Tiling(*gradient.shape)
    sums = tiling.partial_sums(2, inputs.parts[0])
    grad_out = gradient if grad_values is None else grad_values
    _affine_backward_kernel[tiling.grid](
        *value_arguments(inputs),
        *(
            table,
            table.stride(0),
            gradient,
            gradient.stride(0),
            grad_out,
            grad_out.stride(-2),
            sums,
        ),
        *(tiling.n_rows, tiling.n_channels),
        **value_constants(inputs),
        **tiling.constants,
        KEEP=grad_values is not None,
        num_warps=WARPS,
    )
    return sum_programs(sums)


@jit
@no_type_check
def _affine_kernel(
    first,
    second,
    scale,
    steps,
    first_steps,
    first_window,
    first_step,
    second_window,
    second_step,
    scale_window,
    scale_channel,
    channel,
    table,
    table_row,
    output,
    output_row,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
):
    """Apply the map to some channels of some rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column_valid = column < n_channels
    valid = (row < n_rows) & column_valid
    values = load_values(
        first, second, scale, steps, first_steps, first_window, first_step, second_window,
        second_step, scale_window, scale_channel, channel, row, column, valid, TWO, SCALED,
    )  # fmt: skip
    factor = tl.load(table + column, column_valid, 0.0)
    centre = tl.load(table + table_row + column, column_valid, 0.0)
    shift = tl.load(table + 2 * table_row + column, column_valid, 0.0)
    address = output + row.to(tl.int64) * output_row + column
    tl.store(address, factor * (values - centre) + shift, valid)


@jit
@no_type_check
def _affine_backward_kernel(
    first,
    second,
    scale,
    steps,
    first_steps,
    first_window,
    first_step,
    second_window,
    second_step,
    scale_window,
    scale_channel,
    channel,
    table,
    table_row,
    gradient,
    gradient_row,
    grad_values,
    grad_values_row,
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
    """Gradients of some channels of some rows; outside of them, gradients are 0."""
    dtype = sums.dtype.element_ty
    first_row = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column_valid = column < n_channels
    factor = tl.load(table + column, column_valid, 0.0)
    centre = tl.load(table + table_row + column, column_valid, 0.0)
    grad_shift = tl.zeros([ROWS, COLUMNS], dtype)
    grad_scale = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = first_row + number * ROWS
        valid = (row < n_rows) & column_valid
        values = load_values(
            first, second, scale, steps, first_steps, first_window, first_step, second_window,
            second_step, scale_window, scale_channel, channel, row, column, valid, TWO, SCALED,
        )  # fmt: skip
        row_index = row.to(tl.int64)
        upstream = tl.load(gradient + row_index * gradient_row + column, valid, 0.0).to(dtype)
        grad_shift += upstream
        grad_scale += upstream * (values - centre)
        if KEEP:
            tl.store(grad_values + row_index * grad_values_row + column, upstream * factor, valid)
    address = sums + tl.program_id(0).to(tl.int64) * 2 * n_channels + column
    tl.store(address, tl.sum(grad_shift, 0, keep_dims=True), column_valid)
    tl.store(address + n_channels, tl.sum(grad_scale, 0, keep_dims=True), column_valid)
