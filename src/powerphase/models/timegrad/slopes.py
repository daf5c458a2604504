"""A piece's loss and its slopes by kernels: one for a layer on the way there, two on the way back.

What is kept of a piece are the features before each block, eight numbers of a channel. All else is
made from them again where it is needed, and never leaves the multiprocessor but for the slopes.
"""

from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import REGISTERS, triton
from powerphase.models.timegrad.convolution import Filter
from powerphase.models.timegrad.denoiser import Block, Denoiser
from powerphase.models.timegrad.kernels import filtered
from powerphase.models.timegrad.slope_kernels import block_backward, block_forward, filter_backward

COLUMNS = 64
"""Channels of a tile, where a convolution's slopes are made."""
BLOCK_COLUMNS = 32
"""Those of each group, where a block is made or its slopes are."""
PROGRAMS = 1024
"""At most so many share a layer, whatever the machine, so that all add up alike."""
LEAST = 16
"""Of any side of a matrix that tensor cores multiply."""


class Piece(NamedTuple):
    """Some rows of a tile of channels, with those around them, and what is said of them."""

    noisy: Float[Tensor, "R P"]
    conditioner: Float[Tensor, "R P"]
    step: Float[Tensor, "R blocks width"]
    noise: Float[Tensor, "R inner"]


def fast_error(denoiser: Denoiser, piece: Piece, share: float) -> Float[Tensor, ""]:
    """The sum of squared errors times a share, without slopes."""
    return _Pass(denoiser, piece, kept=2).error(share)[0]


def fast_slopes(
    denoiser: Denoiser, piece: Piece, share: float
) -> tuple[Float[Tensor, ""], list[Tensor]]:
    """The same, and its slopes: along conditioner, step, and each of `denoiser.filters()`."""
    there = _Pass(denoiser, piece, kept=len(denoiser.blocks))
    total, slope = there.error(share)
    return total, _slopes(there, slope)


def groups(width: int) -> int:
    """Columns that lie side by side where a matrix has features of a column, to make it full."""
    return max(1, LEAST // int(triton.next_power_of_2(width)))


class _Cut(NamedTuple):
    """How a layer's work is cut."""

    n_rows: int
    length: int
    tiles: int
    """Of a row."""
    each: int
    """Tiles of a program."""
    programs: int

    @classmethod
    def of(cls, n_rows: int, length: int, columns: int) -> "_Cut":
        """Tiles of so many columns."""
        tiles = triton.cdiv(length, columns)
        # A kernel is compiled for how many it has: so these are few numbers.
        each = triton.next_power_of_2(triton.cdiv(n_rows * tiles, PROGRAMS))
        return cls(n_rows, length, tiles, each, triton.cdiv(n_rows * tiles, each))


class _Pass:
    """The noise network's way through a piece.

    Args:
        denoiser: the network.
        piece: what goes through it.
        kept: features of so many blocks are kept.
    """

    def __init__(self, denoiser: Denoiser, piece: Piece, kept: int) -> None:
        self.denoiser, self.piece = denoiser, piece
        n_rows, length = piece.noisy.shape
        self.groups = groups(piece.step.shape[2])
        self.of_blocks = _Cut.of(n_rows, length, self.groups * BLOCK_COLUMNS)
        self.of_filters = _Cut.of(n_rows, length, COLUMNS)
        self.beside, self.step = piece.conditioner.contiguous(), piece.step.contiguous()
        precision = _precision(piece.noisy)
        self.constants = {"PRECISION": precision, "num_warps": 4, "num_stages": 1}
        # Where more are needed, to write them to memory costs more than fewer warps do.
        self.registers = REGISTERS if precision == "tf32" and self.groups > 1 else None
        entered = filtered(piece.noisy.reshape(1, -1), denoiser.enter, rectify=True)
        self.kept = [entered, *(torch.empty_like(entered) for _ in range(kept - 1))]
        self.collected = torch.empty_like(entered)
        self.blocks = [block for block in denoiser.blocks if isinstance(block, Block)]
        for number, block in enumerate(self.blocks):
            self._through(number, block)
        self.factor = 1 / sqrt(len(self.blocks))
        self.hidden = filtered(self.collected, denoiser.collect, self.factor, rectify=True)

    def _through(self, number: int, block: Block) -> None:
        features, made = (self.kept[k % len(self.kept)] for k in (number, number + 1))
        block_forward[(self.of_blocks.programs,)](
            *(features, self.beside, *self.told(number), self.collected, made),
            *(*self.of_blocks[:4], *_weights(block)),
            **(_blocked(block) | self.constants),
            FIRST=number == 0,
            LAST=number == len(self.blocks) - 1,
        )

    def told(self, number: int) -> tuple[Tensor, int]:
        """What the diffusion steps add in a block, and how far a row is from the next."""
        return self.step[:, number], self.step.stride(0)

    def error(self, share: float) -> tuple[Float[Tensor, ""], Float[Tensor, "1 N"]]:
        """The sum of squares times a share, and the slopes of what the last layer made."""
        made = filtered(self.hidden, self.denoiser.leave).view_as(self.piece.noisy)
        halo = self.denoiser.halo
        error = made[:, halo:-halo] - self.piece.noise
        slope = torch.zeros_like(made)
        torch.mul(error, 2 * share, out=slope[:, halo:-halo])
        return error.square().sum() * share, slope.view(1, -1)


class _Parts:
    """Sums over a program's tiles, of all that is learned: filter after filter, weight and bias."""

    def __init__(self, denoiser: Denoiser, n_programs: int) -> None:
        self.learned = denoiser.filters()
        sizes = [one.numel() for one in self.learned]
        places = (sum(sizes[:k]) for k in range(len(sizes)))
        self._places = dict(zip(map(id, self.learned), places, strict=True))
        self.sums = self.learned[0].new_zeros(n_programs, sum(sizes))

    def of(self, parameter: Tensor) -> tuple[Tensor, int]:
        """Where those of a parameter and the next ones lie, and how far programs are apart."""
        return self.sums[:, self._places[id(parameter)] :], self.sums.stride(0)

    def added(self, same: dict[int, Tensor]) -> list[Tensor]:
        """The sums of all programs; some parameters have the same as others."""
        total, found = self.sums.sum(0), []
        for one in self.learned:
            begin = self._places[id(same.get(id(one), one))]
            found.append(total[begin : begin + one.numel()].view_as(one))
        return found


def _slopes(there: _Pass, slope: Float[Tensor, "1 N"]) -> list[Tensor]:
    """Along conditioner, step and filters."""
    denoiser, blocks = there.denoiser, there.blocks
    cut = there.of_filters
    parts = _Parts(denoiser, max(cut.programs, there.groups * there.of_blocks.programs))
    of_step = there.step.new_empty(cut.n_rows, cut.tiles, *there.step.shape[1:])
    of_beside, of_features = torch.empty_like(there.beside), torch.empty_like(there.hidden)
    of_mixed = of_features.new_empty(2 * len(of_features), of_features.shape[1])
    _back(there, denoiser.leave, parts, slope, there.hidden, of_features, RECTIFIED=True)
    of_collected = there.hidden  # which nobody asks for from here on
    to = (of_features, there.collected, of_collected)
    _back(there, denoiser.collect, parts, *to, FACTOR=there.factor)
    for number, block in reversed(list(enumerate(blocks))):
        last = number == len(blocks) - 1
        block_backward[(there.of_blocks.programs,)](
            *(there.kept[number], there.beside, *there.told(number)),
            *(of_features, of_collected, of_mixed, of_beside),
            *(parts.of(block.leave.weight)[0], *parts.of(block.told.weight)),
            *(*there.of_blocks[:4], *_weights(block)),
            **(_blocked(block) | there.constants),
            LAST=last,
            maxnreg=there.registers,
        )
        told = (*there.told(number), of_step[:, :, number], of_step.stride(1))
        to = (of_mixed, there.kept[number], of_features)
        _back(there, block.mix, parts, *to, told, RESIDUAL=not last, RECTIFIED=number == 0)
    noisy = there.piece.noisy.reshape(1, -1)
    _back(there, denoiser.enter, parts, of_features, noisy, noisy, NEEDED=False)
    same: dict[int, Tensor] = {id(block.told.bias): block.mix.bias for block in blocks}
    return [of_beside, of_step.sum(1), *parts.added(same)]


def _back(
    there: _Pass,
    layer: Filter,
    parts: _Parts,
    slope: Float[Tensor, "O N"],
    features: Float[Tensor, "I N"],
    of_features: Float[Tensor, "I N"],
    told: tuple[Tensor, int, Tensor, int] | None = None,
    **choices: Any,
) -> None:
    """Write the slopes of a convolution's features in their place, and its parts."""
    n_out, n_in, taps = layer.weight.shape
    added, added_row, of_added, of_added_tile = told or (features, 0, features, 0)
    usual = {"FACTOR": 1.0, "RESIDUAL": False, "RECTIFIED": False, "NEEDED": True}
    filter_backward[(there.of_filters.programs,)](
        *(slope, features, added, added_row, of_features, of_added, of_added_tile),
        *(*parts.of(layer.weight), *there.of_filters[:4], layer.weight),
        **(usual | choices | there.constants),
        N_IN=n_in,
        N_OUT=n_out,
        INS=_padded(n_in),
        OUTS=_padded(taps * n_out),
        WIDE=_padded(n_out),
        TAPS=taps,
        DILATION=layer.dilation,
        TOLD=told is not None,
        COLUMNS=COLUMNS,
    )


def _weights(block: Block) -> tuple[Tensor, ...]:
    layers = (block.mix, block.told, block.leave)
    return tuple(one for layer in layers for one in (layer.weight, layer.bias))


def _blocked(block: Block) -> dict[str, int]:
    width = block.mix.weight.shape[1]
    span, fan = (int(triton.next_power_of_2(size)) for size in (width, 3 * width))
    sizes = {"N": width, "SPAN": span, "GROUPS": groups(width), "FAN": fan}
    return sizes | {"DILATION": block.mix.dilation, "COLUMNS": BLOCK_COLUMNS}


def _padded(size: int) -> int:
    return max(LEAST, int(triton.next_power_of_2(size)))


def _precision(like: Tensor) -> str:
    """What products are rounded to, as those of PyTorch are."""
    is_rough = like.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if is_rough else "ieee"
