"""The loss, the mean squared error of the predicted noise, computed piece by piece.

A piece is some rows of a tile of channels. Its gradients are computed with its loss, and only their
sums over pieces are kept. So nothing is computed twice, and only one piece is in memory at a time.
Kernels compute the same where they are available.

A tile has the channels around it that the noise network reads. Channels form a ring, as in the
reference: two channels of each end are repeated at the other end, and the ring closes after these.
A tile with its surroundings may go around the ring more than once.
"""

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import uses_triton
from powerphase.models.recurrent.blocks import channel_slices
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.launch import Piece, fused_error, fused_gradients, fused_noise

REPEATED = 2
"""Channels that are repeated at either end of the ring."""
MAX_WIDTH = 16
"""Most features per channel for which kernels fit on any multiprocessor."""
PIECE_NUMBERS = {"cpu": 2**18, "cuda": 2**24, "kernels": 2**25}
"""Numbers in the widest tensors of a piece: what fits in a core's cache, or what fills a GPU.

Kernels keep a third as many such tensors, so each may be twice as large.
"""


class Tile(NamedTuple):
    """A tile of channels and its surroundings."""

    channels: slice
    runs: tuple[slice, ...]
    """Consecutive runs of channels that make up the tile with its surroundings."""


class NoisyRows(NamedTuple):
    """Rows with noise, and the noise."""

    values: Float[Tensor, "R C"]
    noise: Float[Tensor, "R C"]


class Pieces(NamedTuple):
    """Division of the rows and channels of a batch into pieces."""

    rows: int
    """Rows per piece."""
    tiles: list[Tile]
    fast: bool = False
    """Whether kernels run."""

    @classmethod
    def of(
        cls, denoiser: Denoiser, n_channels: int, channel_block: int | None, kind: str
    ) -> "Pieces":
        """Pieces of this `piece_kind`, with tiles of at most `channel_block` channels."""
        features = 2 * len(denoiser.enter.bias)
        rows, channels = piece_size(n_channels, channel_block, features, kind)
        return cls(rows, make_tiles(n_channels, channels, denoiser.halo), kind == "kernels")

    def count(self, n_rows: int) -> int:
        """Number of pieces of so many rows."""
        return ceil(n_rows / self.rows) * len(self.tiles)

    def each(self, n_rows: int) -> Iterator[tuple[slice, Tile]]:
        """Rows and tile of each piece."""
        for first in range(0, n_rows, self.rows):
            for tile in self.tiles:
                yield slice(first, first + self.rows), tile


def piece_kind(backend: str, device: torch.device, width: int) -> str:
    """Key of `PIECE_NUMBERS` for a backend, a device and the features per channel."""
    if width <= MAX_WIDTH and uses_triton(backend, device):
        return "kernels"
    return "cpu" if device.type == "cpu" else "cuda"


def piece_size(
    n_channels: int, channel_block: int | None, features: int, kind: str
) -> tuple[int, int]:
    """Rows and channels of a piece whose widest tensors have so many features per channel.

    The number of rows follows from all channels, so a channel block makes smaller pieces.
    """
    positions = max(1, PIECE_NUMBERS[kind] // features)
    return max(1, positions // n_channels), min(n_channels, channel_block or positions)


def make_tiles(n_channels: int, size: int, halo: int) -> list[Tile]:
    """All channels in tiles of this size, each with a halo on either side."""
    return [
        Tile(tile, _runs(tile.start + REPEATED - halo, tile.stop + REPEATED + halo, n_channels))
        for tile in channel_slices(n_channels, size)
    ]


def gather(values: Float[Tensor, "R C"], tile: Tile) -> Float[Tensor, "R P"]:
    """The values of a tile and its surroundings."""
    return torch.cat([values[:, run] for run in tile.runs], dim=1)


def scatter_add(total: Float[Tensor, "R C"], gradients: Float[Tensor, "R P"], tile: Tile) -> None:
    """Add gradients of a tile and its surroundings to their channels: the adjoint of `gather`."""
    parts = gradients.split([run.stop - run.start for run in tile.runs], dim=1)
    for run, part in zip(tile.runs, parts, strict=True):
        total[:, run] += part


def predict_noise(
    denoiser: Denoiser,
    values: Float[Tensor, "R C"],
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "1 blocks width"],
    pieces: Pieces,
) -> Float[Tensor, "R C"]:
    """The noise in values of one diffusion step, without gradients."""
    noise = torch.empty_like(values)
    network = partial(fused_noise, denoiser) if pieces.fast else denoiser
    for rows, tile in pieces.each(len(values)):
        inputs = gather(values[rows], tile), gather(conditioner[rows], tile)
        noise[rows, tile.channels] = network(*inputs, step)
    return noise


def noise_loss(
    denoiser: Denoiser,
    noisy: NoisyRows,
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "R blocks width"],
    pieces: Pieces,
) -> Float[Tensor, ""]:
    """Mean squared error of the noise, with gradients to all arguments but the rows."""
    with torch.autocast(conditioner.device.type, enabled=False):
        if torch.is_grad_enabled():
            apply: Any = _NoiseLoss.apply
            parameters = denoiser.convolution_parameters()
            loss: Tensor = apply(denoiser, noisy, pieces, conditioner, step, *parameters)
            return loss
        total, error_of = conditioner.new_zeros(()), fused_error if pieces.fast else _error
        for rows, tile in pieces.each(len(conditioner)):
            piece = _piece(noisy, conditioner, step, rows, tile)
            total += error_of(denoiser, piece, 1 / noisy.noise.numel())
        return total


class _NoiseLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        denoiser: Denoiser,
        noisy: NoisyRows,
        pieces: Pieces,
        conditioner: Tensor,
        step: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        grad_conditioner, grad_step, *grad_parameters = map(
            torch.zeros_like, (conditioner, step, *parameters)
        )
        total = conditioner.new_zeros(())
        gradients_of = fused_gradients if pieces.fast else _gradients
        for rows, tile in pieces.each(len(conditioner)):
            piece = _piece(noisy, conditioner, step, rows, tile)
            error, gradients = gradients_of(denoiser, piece, 1 / noisy.noise.numel())
            total += error
            scatter_add(grad_conditioner[rows], gradients[0], tile)
            grad_step[rows] += gradients[1]
            torch._foreach_add_(grad_parameters, gradients[2:])
        ctx.save_for_backward(grad_conditioner, grad_step, *grad_parameters)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *torch._foreach_mul(ctx.saved_tensors, upstream)


def _piece(
    noisy: NoisyRows,
    conditioner: Float[Tensor, "R C"],
    step: Float[Tensor, "R blocks width"],
    rows: slice,
    tile: Tile,
) -> Piece:
    values, conditions = (gather(part[rows], tile) for part in (noisy.values, conditioner))
    return Piece(values, conditions, step[rows], noisy.noise[rows, tile.channels])


def _error(denoiser: Denoiser, piece: Piece, weight: float) -> Float[Tensor, ""]:
    """The sum of squared errors of a piece, times its weight in the mean."""
    noise: Tensor = denoiser(piece.noisy, piece.conditioner, piece.step)
    return (noise - piece.noise).square().sum() * weight


def _gradients(
    denoiser: Denoiser, piece: Piece, weight: float
) -> tuple[Float[Tensor, ""], tuple[Tensor, ...]]:
    """The same with its gradients: of conditioner, step and parameters."""
    conditioner, step = (part.detach().requires_grad_() for part in piece[1:3])
    with torch.enable_grad():
        error = _error(denoiser, piece._replace(conditioner=conditioner, step=step), weight)
    arguments = [conditioner, step, *denoiser.convolution_parameters()]
    return error.detach(), torch.autograd.grad(error, arguments)


def _runs(start: int, stop: int, n_channels: int) -> tuple[slice, ...]:
    """The channels at these positions of the ring, which starts with the repeated ones."""
    runs, circumference = [], n_channels + 2 * REPEATED
    while start < stop:
        position = start % circumference
        channel = (position - REPEATED) % n_channels
        end = n_channels if position < n_channels + REPEATED else REPEATED
        length = min(end - channel, stop - start)
        runs.append(slice(channel, channel + length))
        start += length
    return tuple(runs)
