"""The noise network by Triton kernels: its noise, its loss, and the gradients of the loss.

Sampling a path takes thousands of calls. In PyTorch a call is more than a hundred commands, each of
which reads and writes all features; here it is eleven, and a residual block reads and writes its
features once.

The loss takes one kernel per layer in the forward pass and two in the backward pass. Of a piece,
only the features before each block are stored, `width` numbers per channel. Everything else is
recomputed from them in the backward pass and stays on the multiprocessor, except the gradients.
"""

from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import REGISTERS, triton
from powerphase.models.timegrad.denoiser import Convolution, Denoiser, ResidualBlock
from powerphase.models.timegrad.kernels import (
    block_backward,
    block_forward,
    block_inference,
    convolution_backward,
    convolution_forward,
)

INFERENCE_COLUMNS = 128
"""Channels per program, in kernels without gradients."""
COLUMNS = 64
"""Channels per tile, in the backward pass of a convolution."""
BLOCK_COLUMNS = 32
"""Channels per group, in the forward and backward pass of a residual block."""
PROGRAMS = 1024
"""Most programs per layer, the same on every machine, so that sums are too."""
MIN_SIDE = 16
"""Smallest side of a matrix that tensor cores multiply."""


class Piece(NamedTuple):
    """Inputs of the noise network for some rows of a tile with its surroundings, and the noise."""

    noisy: Float[Tensor, "R P"]
    conditioner: Float[Tensor, "R P"]
    step: Float[Tensor, "R blocks width"]
    noise: Float[Tensor, "R inner"]


@torch.no_grad()
def fused_noise(
    denoiser: Denoiser,
    noisy: Float[Tensor, "R P"],
    conditioner: Float[Tensor, "R P"],
    step: Float[Tensor, "1 blocks width"],
) -> Float[Tensor, "R inner"]:
    """The output of the noise network for rows of one diffusion step, without gradients."""
    features = convolve_fused(noisy.reshape(1, -1), denoiser.enter, rectify=True)
    conditions, skips = conditioner.reshape(-1), torch.zeros_like(features)
    for number, block in enumerate(denoiser.blocks):
        assert isinstance(block, ResidualBlock)
        embedding = step[0, number].contiguous()
        features = _run_block(features, conditions, skips, block, embedding)
    factor = 1 / sqrt(len(denoiser.blocks))
    collected = convolve_fused(skips, denoiser.collect, factor, rectify=True)
    noise = convolve_fused(collected, denoiser.leave).view_as(noisy)
    return noise[:, denoiser.halo : -denoiser.halo]


def fused_error(denoiser: Denoiser, piece: Piece, weight: float) -> Float[Tensor, ""]:
    """The sum of squared errors of a piece times a weight, without gradients."""
    return _ForwardPass(denoiser, piece, n_stored=2).error(weight)[0]


def fused_gradients(
    denoiser: Denoiser, piece: Piece, weight: float
) -> tuple[Float[Tensor, ""], list[Tensor]]:
    """The same with its gradients: of conditioner, step and `denoiser.convolution_parameters()`."""
    forward = _ForwardPass(denoiser, piece, n_stored=len(denoiser.blocks))
    error, grad_output = forward.error(weight)
    return error, _backward(forward, grad_output)


def convolve_fused(
    features: Float[Tensor, "I N"], layer: Any, factor: float = 1.0, rectify: bool = False
) -> Float[Tensor, "O N"]:
    """The convolution of features times a factor, followed by a leaky ReLU if `rectify`."""
    n_out, n_in, taps = layer.weight.shape
    n_columns = features.shape[1]
    outputs = features.new_empty(n_out, n_columns)
    convolution_forward[(triton.cdiv(n_columns, INFERENCE_COLUMNS),)](
        *(features, layer.weight, layer.bias, outputs, n_columns),
        FACTOR=factor,
        N_IN=n_in,
        N_OUT=n_out,
        ROWS=triton.next_power_of_2(n_out),
        TAPS=taps,
        DILATION=layer.dilation,
        RECTIFY=rectify,
        COLUMNS=INFERENCE_COLUMNS,
    )
    return outputs


def _run_block(
    features: Float[Tensor, "width N"],
    conditioner: Float[Tensor, " N"],
    skips: Float[Tensor, "width N"],
    block: ResidualBlock,
    embedding: Float[Tensor, " width"],
) -> Float[Tensor, "width N"]:
    """The features after a block; adds its skip output to `skips` in place."""
    width, n_columns = features.shape
    outputs = torch.empty_like(features)
    block_inference[(triton.cdiv(n_columns, INFERENCE_COLUMNS),)](
        *(features, conditioner, embedding, skips, outputs, n_columns, *_weights(block)),
        N=width,
        ROWS=triton.next_power_of_2(width),
        DILATION=block.mix.dilation,
        COLUMNS=INFERENCE_COLUMNS,
    )
    return outputs


def groups(width: int) -> int:
    """Groups of columns whose features share one matrix, to fill tensor cores."""
    return max(1, MIN_SIDE // int(triton.next_power_of_2(width)))


class _Tiling(NamedTuple):
    """Distribution of a layer's work among programs."""

    n_rows: int
    length: int
    tiles_per_row: int
    tiles_per_program: int
    programs: int

    @classmethod
    def of(cls, n_rows: int, length: int, columns: int) -> "_Tiling":
        """Tiles of so many columns."""
        tiles = triton.cdiv(length, columns)
        # A compile-time constant of the kernels: powers of two keep the number of versions small.
        per_program = triton.next_power_of_2(triton.cdiv(n_rows * tiles, PROGRAMS))
        return cls(n_rows, length, tiles, per_program, triton.cdiv(n_rows * tiles, per_program))


class _ForwardPass:
    """The forward pass of the noise network on a piece.

    Args:
        denoiser: the network.
        piece: its inputs.
        n_stored: number of blocks whose features are stored.
    """

    def __init__(self, denoiser: Denoiser, piece: Piece, n_stored: int) -> None:
        self.denoiser, self.piece = denoiser, piece
        n_rows, length = piece.noisy.shape
        self.groups = groups(piece.step.shape[2])
        self.block_tiling = _Tiling.of(n_rows, length, self.groups * BLOCK_COLUMNS)
        self.convolution_tiling = _Tiling.of(n_rows, length, COLUMNS)
        self.conditioner, self.step = piece.conditioner.contiguous(), piece.step.contiguous()
        precision = _precision(piece.noisy)
        self.constants = {"PRECISION": precision, "num_warps": 4, "num_stages": 1}
        # If the kernel needs more registers, spilling them costs more than fewer warps do.
        self.registers = REGISTERS if precision == "tf32" and self.groups > 1 else None
        entered = convolve_fused(piece.noisy.reshape(1, -1), denoiser.enter, rectify=True)
        self.features = [entered, *(torch.empty_like(entered) for _ in range(n_stored - 1))]
        self.skips = torch.empty_like(entered)
        self.blocks = [block for block in denoiser.blocks if isinstance(block, ResidualBlock)]
        for number, block in enumerate(self.blocks):
            self._run_block(number, block)
        self.factor = 1 / sqrt(len(self.blocks))
        self.hidden = convolve_fused(self.skips, denoiser.collect, self.factor, rectify=True)

    def _run_block(self, number: int, block: ResidualBlock) -> None:
        features, outputs = (self.features[k % len(self.features)] for k in (number, number + 1))
        block_forward[(self.block_tiling.programs,)](
            *(features, self.conditioner, *self.embedding(number), self.skips, outputs),
            *(*self.block_tiling[:4], *_weights(block)),
            **(_block_constants(block) | self.constants),
            FIRST=number == 0,
            LAST=number == len(self.blocks) - 1,
        )

    def embedding(self, number: int) -> tuple[Tensor, int]:
        """Step embeddings of a block, and the stride of their rows."""
        return self.step[:, number], self.step.stride(0)

    def error(self, weight: float) -> tuple[Float[Tensor, ""], Float[Tensor, "1 N"]]:
        """The sum of squares times a weight, and its gradient with respect to the last layer."""
        outputs = convolve_fused(self.hidden, self.denoiser.leave).view_as(self.piece.noisy)
        halo = self.denoiser.halo
        error = outputs[:, halo:-halo] - self.piece.noise
        gradient = torch.zeros_like(outputs)
        torch.mul(error, 2 * weight, out=gradient[:, halo:-halo])
        return error.square().sum() * weight, gradient.view(1, -1)


class _PartialGradients:
    """Gradients of all convolution parameters, summed by program."""

    def __init__(self, denoiser: Denoiser, n_programs: int) -> None:
        self.parameters = denoiser.convolution_parameters()
        sizes = [parameter.numel() for parameter in self.parameters]
        offsets = (sum(sizes[:k]) for k in range(len(sizes)))
        self._offsets = dict(zip(map(id, self.parameters), offsets, strict=True))
        self.sums = self.parameters[0].new_zeros(n_programs, sum(sizes))

    def of(self, parameter: Tensor) -> tuple[Tensor, int]:
        """The sums of a parameter and those after it, and the stride of programs."""
        return self.sums[:, self._offsets[id(parameter)] :], self.sums.stride(0)

    def total(self, same: dict[int, Tensor]) -> list[Tensor]:
        """The gradients, summed over programs; `same` maps parameters to others with equal ones."""
        total, gradients = self.sums.sum(0), []
        for parameter in self.parameters:
            offset = self._offsets[id(same.get(id(parameter), parameter))]
            gradients.append(total[offset : offset + parameter.numel()].view_as(parameter))
        return gradients


def _backward(forward: _ForwardPass, grad_output: Float[Tensor, "1 N"]) -> list[Tensor]:
    """Gradients of conditioner, step and convolution parameters."""
    denoiser, blocks, tiling = forward.denoiser, forward.blocks, forward.convolution_tiling
    programs = max(tiling.programs, forward.groups * forward.block_tiling.programs)
    partial = _PartialGradients(denoiser, programs)
    step, hidden = forward.step, forward.hidden
    grad_step = step.new_empty(tiling.n_rows, tiling.tiles_per_row, *step.shape[1:])
    grad_conditioner, grad_features = (
        torch.empty_like(forward.conditioner),
        torch.empty_like(hidden),
    )
    grad_mixed = grad_features.new_empty(2 * len(grad_features), grad_features.shape[1])
    tensors: tuple[Tensor, Tensor, Tensor] = (grad_output, hidden, grad_features)
    _convolution_gradients(forward, denoiser.leave, partial, *tensors, RECTIFIED=True)
    grad_skips = hidden  # overwritten: nothing reads it from here on
    tensors = (grad_features, forward.skips, grad_skips)
    _convolution_gradients(forward, denoiser.collect, partial, *tensors, FACTOR=forward.factor)
    for number, block in reversed(list(enumerate(blocks))):
        last = number == len(blocks) - 1
        block_backward[(forward.block_tiling.programs,)](
            *(forward.features[number], forward.conditioner, *forward.embedding(number)),
            *(grad_features, grad_skips, grad_mixed, grad_conditioner),
            *(partial.of(block.leave.weight)[0], *partial.of(block.told.weight)),
            *(*forward.block_tiling[:4], *_weights(block)),
            **(_block_constants(block) | forward.constants),
            LAST=last,
            maxnreg=forward.registers,
        )
        embedding = (*forward.embedding(number), grad_step[:, :, number], grad_step.stride(1))
        tensors = (grad_mixed, forward.features[number], grad_features)
        options: Any = {"RESIDUAL": not last, "RECTIFIED": number == 0}
        _convolution_gradients(forward, block.mix, partial, *tensors, embedding, **options)
    noisy = forward.piece.noisy.reshape(1, -1)
    tensors = (grad_features, noisy, noisy)
    _convolution_gradients(forward, denoiser.enter, partial, *tensors, NEEDED=False)
    same: dict[int, Tensor] = {id(block.told.bias): block.mix.bias for block in blocks}
    return [grad_conditioner, grad_step.sum(1), *partial.total(same)]


def _convolution_gradients(
    forward: _ForwardPass,
    layer: Convolution,
    partial: _PartialGradients,
    upstream: Float[Tensor, "O N"],
    features: Float[Tensor, "I N"],
    grad_features: Float[Tensor, "I N"],
    embedding: tuple[Tensor, int, Tensor, int] | None = None,
    **options: Any,
) -> None:
    """Write the gradients of a convolution's features, and the partial ones of its parameters."""
    n_out, n_in, taps = layer.weight.shape
    step, step_row, grad_step, grad_step_tile = embedding or (features, 0, features, 0)
    defaults = {"FACTOR": 1.0, "RESIDUAL": False, "RECTIFIED": False, "NEEDED": True}
    convolution_backward[(forward.convolution_tiling.programs,)](
        *(upstream, features, step, step_row, grad_features, grad_step, grad_step_tile),
        *(*partial.of(layer.weight), *forward.convolution_tiling[:4], layer.weight),
        **(defaults | options | forward.constants),
        N_IN=n_in,
        N_OUT=n_out,
        INS=_padded_size(n_in),
        OUTS=_padded_size(taps * n_out),
        WIDE=_padded_size(n_out),
        TAPS=taps,
        DILATION=layer.dilation,
        EMBEDDED=embedding is not None,
        COLUMNS=COLUMNS,
    )


def _weights(block: ResidualBlock) -> tuple[Tensor, ...]:
    layers = (block.mix, block.told, block.leave)
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def _block_constants(block: ResidualBlock) -> dict[str, int]:
    width = block.mix.weight.shape[1]
    span, fan = (int(triton.next_power_of_2(size)) for size in (width, 3 * width))
    sizes = {"N": width, "SPAN": span, "GROUPS": groups(width), "FAN": fan}
    return sizes | {"DILATION": block.mix.dilation, "COLUMNS": BLOCK_COLUMNS}


def _padded_size(size: int) -> int:
    return max(MIN_SIDE, int(triton.next_power_of_2(size)))


def _precision(like: Tensor) -> str:
    """Precision of products, the same as PyTorch's."""
    uses_tf32 = like.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if uses_tf32 else "ieee"
