"""What the flow's kernels share: how values are read, what is learned of them, and memory.

A program has some channels of some rows, tile after tile. Sums over rows are those of programs,
added up afterwards, in double precision and always in the same order.
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.normalisation import Moments
from powerphase.models.framework.kernels.toolkit import constexpr, jit, tl, triton
from powerphase.models.recurrent.blocks import blocks
from powerphase.models.recurrent.inputs import Given

ROWS, COLUMNS, WARPS = 8, 128, 4
"""Of a tile: eight numbers for each thread, of which the registers of an H100 hold all that is
made, and rows that a warp reads at once."""
MOST_TILES = 64
"""That a program has."""
ALIGNED = 16
"""Numbers: rows that begin at whole multiples are read and written several numbers at a time."""


class Cut:
    """How so many rows and channels are shared out among programs."""

    def __init__(self, n_rows: int, n_channels: int) -> None:
        self.n_rows, self.n_channels = n_rows, n_channels
        tiles = triton.next_power_of_2(triton.cdiv(n_rows, ROWS))
        self.constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "TILES": min(MOST_TILES, tiles)}
        self.at_once = ROWS * self.constants["TILES"]
        self.programs = triton.cdiv(n_rows, self.at_once)

    @property
    def grid(self) -> tuple[int, int]:
        """Programs by rows and by channels."""
        return self.programs, triton.cdiv(self.n_channels, COLUMNS)

    def sums(self, n: int, like: Tensor) -> Float[Tensor, "programs n C"]:
        """Where each program puts so many sums of its rows."""
        return like.new_empty(self.programs, n, self.n_channels)

    def moments(self, mean: Tensor, squares: Tensor) -> Moments:
        """Those of all rows, of the means and summed squares of each program's."""
        first = self.at_once * torch.arange(self.programs, device=mean.device)
        rows = (self.n_rows - first).clamp(max=self.at_once).double().unsqueeze(1)
        means = mean.double()
        whole = (rows * means).sum(0) / self.n_rows
        spread = squares.double().sum(0) + (rows * (means - whole).square()).sum(0)
        return Moments(whole.to(mean.dtype), (spread / self.n_rows).to(mean.dtype))


def added(sums: Float[Tensor, "programs n C"]) -> Float[Tensor, "n C"]:
    """The sums of all programs, always in the same order."""
    return sums.sum(0, dtype=torch.float64).to(sums.dtype)


def empty(size: tuple[int, int, int], like: Tensor) -> Float[Tensor, "B steps C"]:
    """Room for values whose rows are aligned."""
    *rows, n_channels = size
    return like.new_empty(*rows, pitch(n_channels))[..., :n_channels]


def room(n: int, n_rows: int, n_channels: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """Room for so many tensors of a block whose rows are aligned."""
    return torch.empty(n, n_rows, pitch(n_channels), dtype=dtype, device=like.device)


def pitch(n_channels: int) -> int:
    """How far aligned rows of so many numbers are from each other."""
    return -(-n_channels // ALIGNED) * ALIGNED


def aligned_blocks(n_channels: int, at_once: int) -> list[slice]:
    """All channels, no more than so many at a time, most of them in aligned numbers."""
    parts = blocks(n_channels, at_once - at_once % ALIGNED or at_once)
    start, stop = parts[-1].start, parts[-1].stop
    odd = (stop - start) % ALIGNED
    if odd and stop - start > COLUMNS:
        parts[-1:] = [slice(start, stop - odd), slice(stop - odd, stop)]
    return parts


def in_rows(slope: Float[Tensor, "B steps C"]) -> Float[Tensor, "B steps C"]:
    """A tensor that the kernels can read: rows one after the other, channels side by side."""
    window, step, channel = slope.stride()
    lies_so = channel == 1 and window == slope.shape[1] * step
    return slope if lies_so else slope.contiguous()


def places(given: Given) -> tuple[Any, ...]:
    """Where a kernel finds the values."""
    first, second = given.parts[0], given.parts[-1]
    scale = first if given.scale is None else given.scale
    assert {part.stride(2) for part in given.parts} == {first.stride(2)}
    steps = sum(part.shape[1] for part in given.parts)
    strides = (*first.stride()[:2], *second.stride()[:2], *scale.stride()[:2])
    return (first, second, scale, steps, first.shape[1], *strides, first.stride(2))


def kinds(given: Given) -> dict[str, bool]:
    """What a kernel is compiled for."""
    return {"TWO": len(given.parts) > 1, "SCALED": given.scale is not None}


@jit
@no_type_check
def value_tile(
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
    row,
    column,
    inside,
    TWO: constexpr,
    SCALED: constexpr,
):
    """The values of some rows and channels: from one part or two, divided if they are to be."""
    window, step = (row // steps).to(tl.int64), (row % steps).to(tl.int64)
    far = column.to(tl.int64) * channel
    place = first + window * first_window + step * first_step + far
    if TWO:
        values = tl.load(place, inside & (step < seen), 0.0)
        place = second + window * second_window + (step - seen) * second_step + far
        values += tl.load(place, inside & (step >= seen), 0.0)
    else:
        values = tl.load(place, inside, 0.0)
    if SCALED:
        values /= tl.load(scale + window * scale_window + column * scale_channel, inside, 1.0)
    return values


@jit
@no_type_check
def learn(values, inside, number, mean, squares):
    """Mean and sum of squares about it, after the values with this number; each lane its own.

    By differences from the mean so far: of a channel that hardly moves, nothing else has digits.
    """
    off = tl.where(inside, values - mean, 0.0)
    mean += off / (number + 1)
    squares += off * tl.where(inside, values - mean, 0.0)
    return mean, squares


@jit
@no_type_check
def conclude(mean, squares, first, n_rows, ROWS: constexpr, TILES: constexpr):
    """Those of all lanes of a program, of which the last rows may not exist.

    Again by differences, from the first lane: the mean of equal numbers is that number.
    """
    count = tl.minimum(tl.maximum((n_rows - first + ROWS - 1) // ROWS, 0), TILES).to(mean.dtype)
    lane = tl.arange(0, ROWS)[:, None]
    pivot = tl.sum(tl.where(lane == 0, mean, 0.0), 0, keep_dims=True)
    off = tl.where(count > 0, mean - pivot, 0.0)
    further = tl.sum(off * count, 0, keep_dims=True) / tl.sum(count)
    off = tl.where(count > 0, off - further, 0.0)
    return pivot + further, tl.sum(squares + count * off * off, 0, keep_dims=True)
