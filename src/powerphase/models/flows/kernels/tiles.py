"""Common parts of the flow's kernels: tiling, aligned memory, reading values, and moments.

A program processes some channels of some rows, tile after tile. Sums over rows are first computed
by program and then added in double precision, always in the same order.
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import constexpr, jit, tl, triton
from powerphase.models.recurrent.blocks import Moments, channel_slices
from powerphase.models.recurrent.encoder import ScaledValues

ROWS, COLUMNS, WARPS = 8, 128, 4
"""Size of a tile: eight numbers per thread, for which the registers of an H100 hold all
intermediate results, in rows that a warp reads at once."""
MAX_TILES = 64
"""Largest number of tiles per program."""
ALIGNMENT = 16
"""Rows that start at multiples of so many numbers are read and written in wide accesses."""


class Tiling:
    """Distributes rows and channels among programs."""

    def __init__(self, n_rows: int, n_channels: int) -> None:
        self.n_rows, self.n_channels = n_rows, n_channels
        tiles = triton.next_power_of_2(triton.cdiv(n_rows, ROWS))
        self.constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "TILES": min(MAX_TILES, tiles)}
        self.rows_per_program = ROWS * self.constants["TILES"]
        self.programs = triton.cdiv(n_rows, self.rows_per_program)

    @property
    def grid(self) -> tuple[int, int]:
        """Programs by rows and by channels."""
        return self.programs, triton.cdiv(self.n_channels, COLUMNS)

    def partial_sums(self, n: int, like: Tensor) -> Float[Tensor, "programs n C"]:
        """Output for n sums over the rows of each program."""
        return like.new_empty(self.programs, n, self.n_channels)

    def moments(self, mean: Tensor, squares: Tensor) -> Moments:
        """Moments over all rows, from the means and summed squares of each program."""
        first = self.rows_per_program * torch.arange(self.programs, device=mean.device)
        rows = (self.n_rows - first).clamp(max=self.rows_per_program).double().unsqueeze(1)
        means = mean.double()
        total_mean = (rows * means).sum(0) / self.n_rows
        total = squares.double().sum(0) + (rows * (means - total_mean).square()).sum(0)
        return Moments(total_mean.to(mean.dtype), (total / self.n_rows).to(mean.dtype))


def sum_programs(sums: Float[Tensor, "programs n C"]) -> Float[Tensor, "n C"]:
    """The sums over all programs, always in the same order."""
    return sums.sum(0, dtype=torch.float64).to(sums.dtype)


def empty_aligned(size: tuple[int, int, int], like: Tensor) -> Float[Tensor, "B steps C"]:
    """An uninitialised tensor with aligned rows."""
    *rows, n_channels = size
    return like.new_empty(*rows, aligned_width(n_channels))[..., :n_channels]


def workspace(n: int, n_rows: int, n_channels: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Uninitialised memory for n tensors of a block, with aligned rows."""
    return torch.empty(n, n_rows, aligned_width(n_channels), dtype=dtype, device=like.device)


def aligned_width(n_channels: int) -> int:
    """Stride of aligned rows of so many numbers."""
    return -(-n_channels // ALIGNMENT) * ALIGNMENT


def aligned_blocks(n_channels: int, block_size: int) -> list[slice]:
    """All channels in blocks of at most this size, most of them with an aligned width."""
    parts = channel_slices(n_channels, block_size - block_size % ALIGNMENT or block_size)
    start, stop = parts[-1].start, parts[-1].stop
    remainder = (stop - start) % ALIGNMENT
    if remainder and stop - start > COLUMNS:
        parts[-1:] = [slice(start, stop - remainder), slice(stop - remainder, stop)]
    return parts


def as_rows(gradient: Float[Tensor, "B steps C"]) -> Float[Tensor, "B steps C"]:
    """The tensor in a layout that kernels can read: equidistant rows of adjacent channels."""
    window, step, channel = gradient.stride()
    is_readable = channel == 1 and window == gradient.shape[1] * step
    return gradient if is_readable else gradient.contiguous()


def value_arguments(values: ScaledValues) -> tuple[Any, ...]:
    """Pointers, sizes and strides for `load_values`."""
    first, second = values.parts[0], values.parts[-1]
    scale = first if values.scale is None else values.scale
    assert {part.stride(2) for part in values.parts} == {first.stride(2)}
    steps = sum(part.shape[1] for part in values.parts)
    strides = (*first.stride()[:2], *second.stride()[:2], *scale.stride()[:2])
    return (first, second, scale, steps, first.shape[1], *strides, first.stride(2))


def value_constants(values: ScaledValues) -> dict[str, bool]:
    """Compile-time constants for `load_values`."""
    return {"TWO": len(values.parts) > 1, "SCALED": values.scale is not None}


@torch.no_grad()
def channel_moments(values: ScaledValues) -> Moments:
    """Mean and variance of each channel over all rows, in one pass, without gradients."""
    n_windows, n_steps, n_channels = values.size
    tiling = Tiling(n_windows * n_steps, n_channels)
    sums = tiling.partial_sums(2, values.parts[0])
    _moments_kernel[tiling.grid](
        *value_arguments(values),
        *(sums, tiling.n_rows, n_channels),
        **value_constants(values),
        **tiling.constants,
        num_warps=WARPS,
    )
    return tiling.moments(*sums.unbind(1))


@jit
@no_type_check
def load_values(
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
    row,
    column,
    valid,
    TWO: constexpr,
    SCALED: constexpr,
):
    """Load the values of some rows and channels from one part or two, and scale them."""
    window, step = (row // steps).to(tl.int64), (row % steps).to(tl.int64)
    offset = column.to(tl.int64) * channel
    address = first + window * first_window + step * first_step + offset
    if TWO:
        values = tl.load(address, valid & (step < first_steps), 0.0)
        address = second + window * second_window + (step - first_steps) * second_step + offset
        values += tl.load(address, valid & (step >= first_steps), 0.0)
    else:
        values = tl.load(address, valid, 0.0)
    if SCALED:
        values /= tl.load(scale + window * scale_window + column * scale_channel, valid, 1.0)
    return values


@jit
@no_type_check
def update_moments(values, valid, number, mean, squares):
    """Update each lane's mean and sum of squared deviations by its value with this number.

    By deviations from the running mean: the squares of a channel that hardly moves have no digits.
    """
    deviation = tl.where(valid, values - mean, 0.0)
    mean += deviation / (number + 1)
    squares += deviation * tl.where(valid, values - mean, 0.0)
    return mean, squares


@jit
@no_type_check
def merge_lanes(mean, squares, first, n_rows, ROWS: constexpr, TILES: constexpr):
    """Mean and squared deviations over all lanes of a program, some of which may have no rows.

    By deviations from the first lane, so that the mean of equal numbers is that number.
    """
    count = tl.minimum(tl.maximum((n_rows - first + ROWS - 1) // ROWS, 0), TILES).to(mean.dtype)
    lane = tl.arange(0, ROWS)[:, None]
    pivot = tl.sum(tl.where(lane == 0, mean, 0.0), 0, keep_dims=True)
    deviation = tl.where(count > 0, mean - pivot, 0.0)
    offset = tl.sum(deviation * count, 0, keep_dims=True) / tl.sum(count)
    deviation = tl.where(count > 0, deviation - offset, 0.0)
    total = tl.sum(squares + count * deviation * deviation, 0, keep_dims=True)
    return pivot + offset, total


@jit
@no_type_check
def _moments_kernel(
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
    sums,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    TILES: constexpr,
):
    """Moments of some channels over the rows of a program."""
    first_row = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mean = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    squares = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    for number in range(TILES):
        row = first_row + number * ROWS
        valid = (row < n_rows) & (column < n_channels)
        values = load_values(
            first, second, scale, steps, first_steps, first_window, first_step, second_window,
            second_step, scale_window, scale_channel, channel, row, column, valid, TWO, SCALED,
        )  # fmt: skip
        mean, squares = update_moments(values, valid, number, mean, squares)
    total_mean, total_squares = merge_lanes(mean, squares, first_row, n_rows, ROWS, TILES)
    out = sums + tl.program_id(0).to(tl.int64) * 2 * n_channels + column
    tl.store(out, total_mean, column < n_channels)
    tl.store(out + n_channels, total_squares, column < n_channels)
