"""Work on some channels at a time, with nothing of it kept for the backward pass."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")

BLOCK_NUMBERS = 2**26
"""Numbers in one tensor of a block, where nobody says how many channels it shall have: 256 MiB."""

OfBlock = Callable[..., Tensor]
"""From the channels of a block, what all blocks share, and the block's own weights to a part."""


def channels_at_once(asked: int | None, n_channels: int, rows: int) -> int:
    """Channels of a block: as many as asked for, or as keep its tensors, of so many rows, small."""
    return min(n_channels, asked or max(1, BLOCK_NUMBERS // rows))


def blocks(n_channels: int, at_once: int) -> list[slice]:
    """All channels, so many at a time."""
    return [slice(k, min(k + at_once, n_channels)) for k in range(0, n_channels, at_once)]


def summed(of_block: OfBlock, at_once: int, shared: Tensor | None, *weights: Tensor) -> Tensor:
    """The sum of what a function makes of each block of channels.

    Of several blocks nothing is kept: the backward pass makes each once more. That is done here,
    and not by PyTorch's own checkpoints, since it leaves no small tensors between the large ones:
    on a CPU, memory fell to pieces between them.

    Args:
        of_block: takes the channels of a block, what all blocks share, and the block's weights; it
            must not draw at random.
        at_once: channels of a block.
        shared: what gradients go to from all blocks, if anything.
        weights: whose last axis but one is that of the channels.
    """
    n_channels = weights[0].shape[-2]
    if at_once >= n_channels:
        return of_block(slice(n_channels), shared, *weights)
    apply: Any = _Summed.apply
    found: Tensor = apply(of_block, blocks(n_channels, at_once), shared, *weights)
    return found


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_block: OfBlock, parts: list[slice], shared: Tensor | None, *weights: Tensor
    ) -> Tensor:
        kind = weights[0].device.type
        ctx.precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.of_block, ctx.parts = of_block, parts
        ctx.save_for_backward(shared, *weights)
        total = _part(of_block, parts[0], shared, weights)
        for here in parts[1:]:
            total += _part(of_block, here, shared, weights)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        shared, *weights = ctx.saved_tensors
        slopes = [torch.empty_like(weight) for weight in weights]
        of_shared = None if shared is None else torch.zeros_like(shared)
        for here in ctx.parts:
            own = [weight[..., here, :].detach().requires_grad_() for weight in weights]
            given = [] if shared is None else [shared.detach().requires_grad_()]
            with torch.enable_grad(), torch.autocast(*ctx.precision):
                part = ctx.of_block(here, *(given or [None]), *own)
            (*found,) = torch.autograd.grad(part, [*own, *given], upstream)
            for slope, one in zip(slopes, found, strict=False):
                slope[..., here, :] = one
            if of_shared is not None:
                of_shared += found[-1]
        return None, None, of_shared, *slopes


def _part(
    of_block: OfBlock, here: slice, shared: Tensor | None, weights: tuple[Tensor, ...]
) -> Tensor:
    return of_block(here, shared, *(weight[..., here, :] for weight in weights))


def remade(function: Callable[..., Made], pieces: Sequence[tuple[Any, ...]]) -> Iterator[Made]:
    """What a function makes of each piece; of several, the backward pass makes each once more.

    For what `summed` cannot do: several results, and gradients to tensors that are no arguments.
    Nothing random may happen in it: there is no random state to bring back.
    """
    for piece in pieces:
        if len(pieces) == 1:
            yield function(*piece)
        else:
            yield checkpoint(function, *piece, use_reentrant=False, preserve_rng_state=False)
