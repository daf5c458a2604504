"""Mean and variance of values as they are given, in one pass over them."""

from typing import no_type_check

import torch

from powerphase.models.flows.kernels.tiles import (
    WARPS,
    Cut,
    conclude,
    kinds,
    learn,
    places,
    value_tile,
)
from powerphase.models.flows.normalisation import Moments
from powerphase.models.framework.kernels.toolkit import constexpr, jit, tl
from powerphase.models.recurrent.inputs import Given


@torch.no_grad()
def moments_of(given: Given) -> Moments:
    """Those of each channel over all rows. No gradient goes through them."""
    n_windows, n_steps, n_channels = given.size
    cut = Cut(n_windows * n_steps, n_channels)
    sums = cut.sums(2, given.parts[0])
    _learn_all[cut.grid](
        *places(given),
        *(sums, cut.n_rows, n_channels),
        **kinds(given),
        **cut.constants,
        num_warps=WARPS,
    )
    return cut.moments(*sums.unbind(1))


@jit
@no_type_check
def _learn_all(
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
    sums,
    n_rows,
    n_channels,
    TWO: constexpr,
    SCALED: constexpr,
    ROWS: constexpr,
    COLUMNS: constexpr,
    TILES: constexpr,
):
    """Some channels of some rows."""
    begin = tl.program_id(0) * ROWS * TILES + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mean = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    squares = tl.zeros([ROWS, COLUMNS], sums.dtype.element_ty)
    for number in range(TILES):
        row = begin + number * ROWS
        inside = (row < n_rows) & (column < n_channels)
        values = value_tile(
            first, second, scale, steps, seen, first_window, first_step, second_window, second_step,
            scale_window, scale_channel, channel, row, column, inside, TWO, SCALED,
        )  # fmt: skip
        mean, squares = learn(values, inside, number, mean, squares)
    whole, spread = conclude(mean, squares, begin, n_rows, ROWS, TILES)
    place = sums + tl.program_id(0).to(tl.int64) * 2 * n_channels + column
    tl.store(place, whole, column < n_channels)
    tl.store(place + n_channels, spread, column < n_channels)
