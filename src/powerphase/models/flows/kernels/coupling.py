"""Affine coupling of a half: values, moments and log-determinant in one pass.

The products with the networks' last layers are computed for a block of channels at a time; the
backward pass overwrites them with the gradients of log-scale and translation.
"""

from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.kernels.projection import add_product
from powerphase.models.flows.kernels.tiles import (
    WARPS,
    Tiling,
    aligned_blocks,
    as_rows,
    empty_aligned,
    load_values,
    merge_lanes,
    sum_programs,
    update_moments,
    value_arguments,
    value_constants,
    workspace,
)
from powerphase.models.flows.normalisation import Affine
from powerphase.models.framework.kernels import constexpr, jit, product_dtype, tanh, tl
from powerphase.models.recurrent.blocks import Moments
from powerphase.models.recurrent.encoder import ScaledValues


def fused_transform(
    inputs: ScaledValues,
    affine: Affine,
    hidden: tuple[Float[Tensor, "B steps K"], Float[Tensor, "B steps K"]],
    weight: Float[Tensor, "2 C K"],
    bias: Float[Tensor, "2 C"],
    block_size: int,
    keep: bool,
) -> tuple[Float[Tensor, "B steps C"] | None, Moments, Float[Tensor, ""]]:
    """The values after a coupling if `keep`, else None, their moments, and the log-determinant.

    Args:
        inputs: the half that is transformed.
        affine: map that is applied to its values first.
        hidden: inputs of the last layers: of the log-scale and of the translation.
        weight: of the last layers.
        bias: of the last layers.
        block_size: channels per block.
        keep: whether the values will be read.
    """
    apply: Any = _FusedTransform.apply
    values, mean, variance, determinant = apply(
        *inputs.tensors, *affine, *hidden, weight, bias, block_size, keep
    )
    return values, Moments(mean, variance), determinant


class _FusedTransform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        *tensors, block_size, keep = arguments
        operands = _Operands.of(tensors, block_size, product_dtype(tensors[0]))
        ctx.block_size, ctx.dtype = block_size, operands.buffer.dtype
        ctx.set_materialize_grads(False)
        output = empty_aligned(operands.inputs.size, tensors[0]) if keep else None
        with torch.autocast(tensors[0].device.type, enabled=False):
            results = [_transform(operands, channels, output) for channels in operands.blocks]
        block_moments, log_scales = zip(*results, strict=True)
        moments = Moments.concatenate(list(block_moments))
        total = torch.cat(log_scales).sum(dtype=torch.float64)
        ctx.save_for_backward(*tensors, moments.mean)
        return output, *moments, (total / operands.n_rows).to(moments.mean.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, mean = ctx.saved_tensors
        first, affine, (hidden, weight) = tensors[0], tensors[3:6], (tensors[6:8], tensors[8])
        operands = _Operands.of(tensors, ctx.block_size, ctx.dtype)
        table = torch.cat([operands.table, _moment_gradients(mean, operands.n_rows, *upstream[1:])])
        size, needs_values = operands.inputs.size, ctx.needs_input_grad[0]
        grad_values = empty_aligned(size, first) if needs_values else None
        grad_output = None if upstream[0] is None else as_rows(upstream[0])
        grad_hidden = [mean.new_zeros(operands.n_rows, weight.shape[2]) for _ in hidden]
        grad_weight, sums = torch.empty_like(weight), []
        with torch.autocast(first.device.type, enabled=False):
            for channels in operands.blocks:
                products = operands.products(channels)
                args = (products, table, grad_output, grad_values)
                sums.append(_transform_backward(operands, channels, *args))
                for k, gradient in enumerate(products):
                    grad_weight[k, channels] = gradient.T @ operands.hidden[k]
                    add_product(grad_hidden[k], gradient, weight[k, channels].to(gradient.dtype))
        grad_bias, grad_shift, grad_scale = torch.cat(sums, dim=1).split([2, 1, 1])
        grad_affine = (grad_scale[0], -affine[0] * grad_shift[0], grad_shift[0])
        pairs = zip(grad_hidden, hidden, strict=True)
        grad_inner = (gradient.view_as(inner).to(inner.dtype) for gradient, inner in pairs)
        grad_layers = (*grad_inner, grad_weight, grad_bias)
        return grad_values, None, None, *grad_affine, *grad_layers, None, None


def _moment_gradients(
    mean: Tensor,
    n_rows: int,
    grad_mean: Tensor | None,
    grad_variance: Tensor | None,
    grad_determinant: Tensor | None,
) -> Float[Tensor, "4 C"]:
    """Mean, and a row's share of the gradients of mean, variance and log-determinant."""
    zero = torch.zeros_like(mean)
    of_mean = zero if grad_mean is None else grad_mean / n_rows
    of_variance = zero if grad_variance is None else grad_variance / n_rows
    total = zero if grad_determinant is None else (grad_determinant / n_rows).expand_as(mean)
    return torch.stack([mean, of_mean, 2 * of_variance, total])


class _Operands(NamedTuple):
    """Arguments of the function, as the kernels of a block need them."""

    inputs: ScaledValues
    table: Float[Tensor, "5 C"]
    """Affine map and both biases of each channel."""
    hidden: list[Float[Tensor, "rows K"]]
    weight: Float[Tensor, "2 C K"]
    blocks: list[slice]
    buffer: Float[Tensor, "2 rows width"]
    """Memory for the products with the last layers."""

    @classmethod
    def of(cls, tensors: list[Any], block_size: int, dtype: torch.dtype) -> "_Operands":
        """Prepare the tensor arguments of the function."""
        first, second, scale, *affine, scale_hidden, shift_hidden, weight, bias = tensors
        inputs, n_rows = (
            ScaledValues.from_tensors(first, second, scale),
            scale_hidden[..., 0].numel(),
        )
        blocks = aligned_blocks(weight.shape[1], block_size)
        hidden = [part.flatten(0, 1).to(dtype) for part in (scale_hidden, shift_hidden)]
        buffer = workspace(2, n_rows, blocks[0].stop, dtype, first)
        return cls(inputs, torch.stack([*affine, *bias]), hidden, weight, blocks, buffer)

    @property
    def n_rows(self) -> int:
        """Windows × steps."""
        return self.buffer.shape[1]

    def products(self, channels: slice) -> list[Float[Tensor, "rows C"]]:
        """Products of a block, without biases: of the log-scale and of the translation."""
        products = self.buffer[:, :, : channels.stop - channels.start].unbind()
        for hidden, weight, product in zip(self.hidden, self.weight, products, strict=True):
            torch.mm(hidden, weight[channels].T.to(product.dtype), out=product)
        return list(products)


def _transform(
    operands: _Operands, channels: slice, output: Tensor | None
) -> tuple[Moments, Tensor]:
    """Moments and summed log-scales of each channel; writes the values to `output`, if any."""
    products, inputs = operands.products(channels), operands.inputs.select(channels)
    table = operands.table[:, channels]
    tiling = Tiling(*products[0].shape)
    sums = tiling.partial_sums(3, table)
    out = table if output is None else output[..., channels]
    _transform_kernel[tiling.grid](
        *value_arguments(inputs),
        *(table, table.stride(0), *products, products[0].stride(0), out, out.stride(-2), sums),
        *(tiling.n_rows, tiling.n_channels),
        **value_constants(inputs),
        **tiling.constants,
        KEEP=output is not None,
        num_warps=WARPS,
    )
    mean, squares, total = sums.unbind(1)
    return tiling.moments(mean, squares), total.sum(0, dtype=torch.float64)


def _transform_backward(
    operands: _Operands,
    channels: slice,
    products: list[Tensor],
    table: Tensor,
    grad_output: Tensor | None,
    grad_values: Tensor | None,
) -> Float[Tensor, "4 C"]:
    """Gradients of biases, shift and scale; writes those of products and values."""
    inputs, table = operands.inputs.select(channels), table[:, channels]
    tiling = Tiling(*products[0].shape)
    sums = tiling.partial_sums(4, table)
    upstream = table if grad_output is None else grad_output[..., channels]
    out = table if grad_values is None else grad_values[..., channels]
    _transform_backward_kernel[tiling.grid](
        *value_arguments(inputs),
        *(table, table.stride(0), *products, products[0].stride(0), upstream, upstream.stride(-2)),
        *(out, out.stride(-2), sums, tiling.n_rows, tiling.n_channels),
        **value_constants(inputs),
        **tiling.constants,
        KEPT=grad_output is not None,
        KEEP=grad_values is not None,
        num_warps=WARPS,
    )
    return sum_programs(sums)


@jit
@no_type_check
def _transform_kernel(
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
    log_scale,
    translation,
    product_row,
    output,
    output_row,
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
    """Transform some channels of some rows."""
    dtype = sums.dtype.element_ty
    first_row = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column_valid = column < n_channels
    factor = tl.load(table + column, column_valid, 0.0)
    centre = tl.load(table + table_row + column, column_valid, 0.0)
    shift = tl.load(table + 2 * table_row + column, column_valid, 0.0)
    scale_bias = tl.load(table + 3 * table_row + column, column_valid, 0.0)
    shift_bias = tl.load(table + 4 * table_row + column, column_valid, 0.0)
    mean = tl.zeros([ROWS, COLUMNS], dtype)
    squares = tl.zeros([ROWS, COLUMNS], dtype)
    total = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = first_row + number * ROWS
        valid = (row < n_rows) & column_valid
        values = load_values(
            first, second, scale, steps, first_steps, first_window, first_step, second_window,
            second_step, scale_window, scale_channel, channel, row, column, valid, TWO, SCALED,
        )  # fmt: skip
        row_index = row.to(tl.int64)
        product = row_index * product_row + column
        log_s, _ = tanh(tl.load(log_scale + product, valid, 0.0).to(dtype) + scale_bias)
        values = (factor * (values - centre) + shift) * tl.exp(log_s)
        values += tl.load(translation + product, valid, 0.0).to(dtype) + shift_bias
        if KEEP:
            tl.store(output + row_index * output_row + column, values, valid)
        mean, squares = update_moments(values, valid, number, mean, squares)
        total += tl.where(valid, log_s, 0.0)
    total_mean, total_squares = merge_lanes(mean, squares, first_row, n_rows, ROWS, TILES)
    address = sums + tl.program_id(0).to(tl.int64) * 3 * n_channels + column
    tl.store(address, total_mean, column_valid)
    tl.store(address + n_channels, total_squares, column_valid)
    tl.store(address + 2 * n_channels, tl.sum(total, 0, keep_dims=True), column_valid)


@jit
@no_type_check
def _transform_backward_kernel(
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
    log_scale,
    translation,
    product_row,
    grad_output,
    grad_output_row,
    grad_values,
    values_row,
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
    """Gradients of some channels of some rows; the outputs are recomputed, not read."""
    dtype = sums.dtype.element_ty
    first_row = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column_valid = column < n_channels
    factor = tl.load(table + column, column_valid, 0.0)
    centre = tl.load(table + table_row + column, column_valid, 0.0)
    shift = tl.load(table + 2 * table_row + column, column_valid, 0.0)
    scale_bias = tl.load(table + 3 * table_row + column, column_valid, 0.0)
    shift_bias = tl.load(table + 4 * table_row + column, column_valid, 0.0)
    mean = tl.load(table + 5 * table_row + column, column_valid, 0.0)
    grad_mean = tl.load(table + 6 * table_row + column, column_valid, 0.0)
    grad_variance = tl.load(table + 7 * table_row + column, column_valid, 0.0)
    grad_determinant = tl.load(table + 8 * table_row + column, column_valid, 0.0)
    sum_scale_bias = tl.zeros([ROWS, COLUMNS], dtype)
    sum_shift_bias = tl.zeros([ROWS, COLUMNS], dtype)
    sum_shift = tl.zeros([ROWS, COLUMNS], dtype)
    sum_scale = tl.zeros([ROWS, COLUMNS], dtype)
    for number in range(TILES):
        row = first_row + number * ROWS
        valid = (row < n_rows) & column_valid
        values = load_values(
            first, second, scale, steps, first_steps, first_window, first_step, second_window,
            second_step, scale_window, scale_channel, channel, row, column, valid, TWO, SCALED,
        )  # fmt: skip
        row_index = row.to(tl.int64)
        product = row_index * product_row + column
        log_s, derivative = tanh(tl.load(log_scale + product, valid, 0.0).to(dtype) + scale_bias)
        growth = tl.exp(log_s)
        deviation = values - centre
        scaled = (factor * deviation + shift) * growth
        output = scaled + (tl.load(translation + product, valid, 0.0).to(dtype) + shift_bias)
        grad_after = grad_mean + grad_variance * (output - mean)
        if KEPT:
            grad_after += tl.load(grad_output + row_index * grad_output_row + column, valid, 0.0)
        grad_after = tl.where(valid, grad_after, 0.0)
        grad_log_scale = tl.where(valid, (grad_after * scaled + grad_determinant) * derivative, 0.0)
        grad_before = grad_after * growth
        tl.store(log_scale + product, grad_log_scale, valid)
        tl.store(translation + product, grad_after, valid)
        if KEEP:
            tl.store(grad_values + row_index * values_row + column, grad_before * factor, valid)
        sum_scale_bias += grad_log_scale
        sum_shift_bias += grad_after
        sum_shift += grad_before
        sum_scale += grad_before * deviation
    address = sums + tl.program_id(0).to(tl.int64) * 4 * n_channels + column
    tl.store(address, tl.sum(sum_scale_bias, 0, keep_dims=True), column_valid)
    tl.store(address + n_channels, tl.sum(sum_shift_bias, 0, keep_dims=True), column_valid)
    tl.store(address + 2 * n_channels, tl.sum(sum_shift, 0, keep_dims=True), column_valid)
    tl.store(address + 3 * n_channels, tl.sum(sum_scale, 0, keep_dims=True), column_valid)
