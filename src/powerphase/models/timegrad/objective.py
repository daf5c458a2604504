"""The loss: how far the predicted noise is from the true one, piece by piece.

A piece is some rows and a tile of channels. Its slopes are made with its loss, and then it is
forgotten; only the slopes along what it was made of are kept. So no piece is made twice, and not
more than one is in memory. Kernels make it where there are some, with the same slopes.
"""

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.kernels import denoised
from powerphase.models.timegrad.slopes import Piece, fast_error, fast_slopes
from powerphase.models.timegrad.tiles import Tile, add_back, cut, piece_size, tiles


class Pieces(NamedTuple):
    """How work is cut."""

    rows: int
    tiles: list[Tile]
    fast: bool = False
    """Whether kernels do it."""

    @classmethod
    def of(cls, denoiser: Denoiser, n_channels: int, asked: int | None, kind: str) -> "Pieces":
        """Pieces of a `piece_kind`, with so many channels as asked for."""
        features = 2 * len(denoiser.enter.bias)
        rows, channels = piece_size(n_channels, asked, features, kind)
        return cls(rows, tiles(n_channels, channels, denoiser.halo), kind == "kernels")

    def count(self, n_rows: int) -> int:
        """How many there are."""
        return ceil(n_rows / self.rows) * len(self.tiles)

    def each(self, n_rows: int) -> Iterator[tuple[slice, Tile]]:
        """All pieces."""
        for first in range(0, n_rows, self.rows):
            for tile in self.tiles:
                yield slice(first, first + self.rows), tile


class Noisy(NamedTuple):
    """Rows with noise, and the noise."""

    values: Float[Tensor, "R C"]
    noise: Float[Tensor, "R C"]


def predicted(
    denoiser: Denoiser,
    values: Float[Tensor, "R C"],
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "1 blocks width"],
    pieces: Pieces,
) -> Float[Tensor, "R C"]:
    """The noise in values that all come from the same diffusion step; without slopes."""
    found = torch.empty_like(values)
    network = partial(denoised, denoiser) if pieces.fast else denoiser
    for rows, tile in pieces.each(len(values)):
        made = network(cut(values[rows], tile), cut(conditioner[rows], tile), step)
        found[rows, tile.channels] = made
    return found


def mean_error(
    denoiser: Denoiser,
    given: Noisy,
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "R blocks width"],
    pieces: Pieces,
) -> Float[Tensor, ""]:
    """Mean squared error of the noise, with gradients to all but the rows themselves."""
    with torch.autocast(conditioner.device.type, enabled=False):
        if torch.is_grad_enabled():
            apply: Any = _MeanError.apply
            made: Tensor = apply(denoiser, given, pieces, conditioner, step, *denoiser.filters())
            return made
        total, find = conditioner.new_zeros(()), fast_error if pieces.fast else _error
        for rows, tile in pieces.each(len(conditioner)):
            piece = _piece(given, conditioner, step, rows, tile)
            total += find(denoiser, piece, 1 / given.noise.numel())
        return total


class _MeanError(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        denoiser: Denoiser,
        given: Noisy,
        pieces: Pieces,
        conditioner: Tensor,
        step: Tensor,
        *filters: Tensor,
    ) -> Tensor:
        of_conditioner, of_step, *of_filters = map(torch.zeros_like, (conditioner, step, *filters))
        total = conditioner.new_zeros(())
        find = fast_slopes if pieces.fast else _slopes
        for rows, tile in pieces.each(len(conditioner)):
            piece = _piece(given, conditioner, step, rows, tile)
            error, slopes = find(denoiser, piece, 1 / given.noise.numel())
            total += error
            add_back(of_conditioner[rows], slopes[0], tile)
            of_step[rows] += slopes[1]
            torch._foreach_add_(of_filters, slopes[2:])
        ctx.save_for_backward(of_conditioner, of_step, *of_filters)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *torch._foreach_mul(ctx.saved_tensors, upstream)


def _piece(
    given: Noisy,
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "R blocks width"],
    rows: slice,
    tile: Tile,
) -> Piece:
    noisy, beside = (cut(one[rows], tile) for one in (given.values, conditioner))
    return Piece(noisy, beside, step[rows], given.noise[rows, tile.channels])


def _error(denoiser: Denoiser, piece: Piece, share: float) -> Float[Tensor, ""]:
    """What a piece adds to the mean."""
    made: Tensor = denoiser(piece.noisy, piece.conditioner, piece.step)
    return (made - piece.noise).square().sum() * share


def _slopes(
    denoiser: Denoiser, piece: Piece, share: float
) -> tuple[Float[Tensor, ""], tuple[Tensor, ...]]:
    """The same, and its slopes: along conditioner, step and filters."""
    beside, step = (one.detach().requires_grad_() for one in (piece.conditioner, piece.step))
    with torch.enable_grad():
        error = _error(denoiser, piece._replace(conditioner=beside, step=step), share)
    return error.detach(), torch.autograd.grad(error, [beside, step, *denoiser.filters()])
