"""Work on some channels at a time, with as little kept for the backward pass."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint

Made = TypeVar("Made")

BLOCK_NUMBERS = 2**26
"""Numbers in one tensor of a block, where nobody says how many channels it shall have: 256 MiB."""


def channels_at_once(asked: int | None, n_channels: int, rows: int) -> int:
    """Channels of a block: as many as asked for, or as keep its tensors, of so many rows, small."""
    return min(n_channels, asked or max(1, BLOCK_NUMBERS // rows))


def blocks(n_channels: int, at_once: int) -> list[slice]:
    """All channels, so many at a time."""
    return [slice(k, min(k + at_once, n_channels)) for k in range(0, n_channels, at_once)]


def summed(function: Callable[..., Tensor], pieces: Iterable[tuple[Any, ...]]) -> Tensor:
    """The sum of what the function makes of each piece.

    Of several pieces nothing is kept for the backward pass: there, each is made once more.
    """
    first, *others = pieces
    if not others:
        return function(*first)
    total = remade(function, first)
    for piece in others:
        total = total + remade(function, piece)
    return total


def remade(function: Callable[..., Made], piece: tuple[Any, ...]) -> Made:
    """What the function makes of a piece; the backward pass makes it once more.

    Nothing random may happen in it: there is no random state to bring back.
    """
    made: Made = checkpoint(function, *piece, use_reentrant=False, preserve_rng_state=False)
    return made
