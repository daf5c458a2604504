"""Work on some channels at a time: sums, recomputed for the backward pass, and moments."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from powerphase.models.framework.device import process_mean

Result = TypeVar("Result")

BLOCK_NUMBERS = 2**26
"""Numbers in one tensor of a block, unless the number of channels is set: 256 MiB."""

BlockFunction = Callable[..., Tensor]
"""From the channels of a block, the shared tensor and the block's weights to a summand."""


def channels_at_once(channel_block: int | None, n_channels: int, rows: int) -> int:
    """Channels of a block: as many as set, or as keep its tensors of so many rows small."""
    return min(n_channels, channel_block or max(1, BLOCK_NUMBERS // rows))


def channel_slices(n_channels: int, at_once: int) -> list[slice]:
    """All channels, so many at a time."""
    return [slice(k, min(k + at_once, n_channels)) for k in range(0, n_channels, at_once)]


def sum_blocks(
    function: BlockFunction, at_once: int, shared: Tensor | None, *weights: Tensor
) -> Tensor:
    """The sum of a function over the blocks of channels.

    With several blocks, nothing is kept: the backward pass computes each block again. It is done
    here and not by PyTorch's checkpoints because it leaves no small tensors between the large
    ones, which fragmented the memory of a CPU.

    Args:
        function: takes the channels of a block, the shared tensor and the block's weights; it must
            not draw random numbers.
        at_once: channels of a block.
        shared: a tensor that gets gradients from all blocks, or None.
        weights: tensors whose last axis but one is that of the channels.
    """
    n_channels = weights[0].shape[-2]
    if at_once >= n_channels:
        return function(slice(n_channels), shared, *weights)
    apply: Any = _BlockSum.apply
    total: Tensor = apply(function, channel_slices(n_channels, at_once), shared, *weights)
    return total


class _BlockSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: BlockFunction,
        blocks: list[slice],
        shared: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        kind = weights[0].device.type
        ctx.precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.function, ctx.blocks = function, blocks
        ctx.save_for_backward(shared, *weights)
        total = _summand(function, blocks[0], shared, weights)
        for channels in blocks[1:]:
            total += _summand(function, channels, shared, weights)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        shared, *weights = ctx.saved_tensors
        weight_gradients = [torch.empty_like(weight) for weight in weights]
        shared_gradient = None if shared is None else torch.zeros_like(shared)
        for channels in ctx.blocks:
            parts = [weight[..., channels, :].detach().requires_grad_() for weight in weights]
            inputs = [] if shared is None else [shared.detach().requires_grad_()]
            with torch.enable_grad(), torch.autocast(*ctx.precision):
                summand = ctx.function(channels, *(inputs or [None]), *parts)
            (*gradients,) = torch.autograd.grad(summand, [*parts, *inputs], upstream)
            for whole, part in zip(weight_gradients, gradients, strict=False):
                whole[..., channels, :] = part
            if shared_gradient is not None:
                shared_gradient += gradients[-1]
        return None, None, shared_gradient, *weight_gradients


def _summand(
    function: BlockFunction, channels: slice, shared: Tensor | None, weights: tuple[Tensor, ...]
) -> Tensor:
    return function(channels, shared, *(weight[..., channels, :] for weight in weights))


def map_checkpointed(
    function: Callable[..., Result], pieces: Sequence[tuple[Any, ...]]
) -> Iterator[Result]:
    """The function of each piece; if there are several, the backward pass computes each again.

    For what `sum_blocks` cannot do: several results, and gradients to tensors that are no
    arguments. The function must not draw random numbers: the random state is not restored.
    """
    for piece in pieces:
        if len(pieces) == 1:
            yield function(*piece)
        else:
            yield checkpoint(function, *piece, use_reentrant=False, preserve_rng_state=False)


MEASURED_BATCHES = 10
"""Batches whose moments standardise the channels."""


class Moments(NamedTuple):
    """Mean and (biased) variance of each channel over all rows."""

    mean: Float[Tensor, " C"]
    variance: Float[Tensor, " C"]

    @classmethod
    def of(cls, values: Float[Tensor, "B steps C"]) -> "Moments":
        """Moments over all windows and steps."""
        variance, mean = torch.var_mean(values, dim=(0, 1), correction=0)
        return cls(mean, variance)

    def over_processes(self) -> "Moments":
        """Moments over the rows of all training processes, which have equally many rows."""
        mean = process_mean(self.mean)
        return Moments(mean, process_mean(self.variance + (self.mean - mean).square()))

    @classmethod
    def concatenate(cls, blocks: list["Moments"]) -> "Moments":
        """Moments of several blocks of channels, as one."""
        return cls(*(torch.cat(block) for block in zip(*blocks, strict=True)))

    @classmethod
    def pool(cls, batches: list["Moments"]) -> "Moments":
        """Moments over several batches of the same channels, with equally many rows."""
        means, variances = (torch.stack(batch) for batch in zip(*batches, strict=True))
        return cls(means.mean(0), variances.mean(0) + means.var(0, correction=0))
