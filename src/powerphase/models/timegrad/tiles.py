"""Some channels at a time, with those around them that the noise network looks at.

The channels lie on a ring, as the reference has it: two more at either end repeat the other end's,
and the ring closes after these. Going round it as often as needed, any stretch of channels can be
cut out with its surroundings, also one that is longer than the ring.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels import uses_triton
from powerphase.models.recurrent.blocks import channel_slices

REPEATED = 2
"""Channels of the other end, at either end."""
MOST_WIDTH = 16
"""Features of a channel, for which kernels find room on any multiprocessor."""
PIECE_NUMBERS = {"cpu": 2**18, "cuda": 2**24, "kernels": 2**25}
"""Numbers of the widest tensors of a piece: what a core's cache holds, or what fills a GPU.

Kernels keep a third as many such tensors, so each may have twice as many numbers.
"""


def piece_kind(backend: str, device: torch.device, width: int) -> str:
    """Who makes pieces of so many features on a device, if asked so: one of `PIECE_NUMBERS`."""
    if width <= MOST_WIDTH and uses_triton(backend, device):
        return "kernels"
    return "cpu" if device.type == "cpu" else "cuda"


class Tile(NamedTuple):
    """Channels, and where those around them are."""

    channels: slice
    runs: tuple[slice, ...]
    """With those around them, one run after the other."""


def tiles(n_channels: int, at_once: int, halo: int) -> list[Tile]:
    """All channels, so many at a time, each with so many on either side as the halo has."""
    return [
        Tile(here, _runs(here.start + REPEATED - halo, here.stop + REPEATED + halo, n_channels))
        for here in channel_slices(n_channels, at_once)
    ]


def cut(values: Float[Tensor, "R C"], tile: Tile) -> Float[Tensor, "R P"]:
    """A tile's values, and those around it."""
    return torch.cat([values[:, run] for run in tile.runs], dim=1)


def add_back(total: Float[Tensor, "R C"], slopes: Float[Tensor, "R P"], tile: Tile) -> None:
    """Add to every channel what its places in a tile have, as the slope of `cut` does."""
    parts = slopes.split([run.stop - run.start for run in tile.runs], dim=1)
    for run, part in zip(tile.runs, parts, strict=True):
        total[:, run] += part


def piece_size(n_channels: int, asked: int | None, features: int, kind: str) -> tuple[int, int]:
    """Rows and channels of a piece, whose widest tensors have so many features of each channel.

    Rows are as many as all channels allow. So fewer channels, where they are asked for, make
    smaller pieces. The kind is one of `PIECE_NUMBERS`.
    """
    positions = max(1, PIECE_NUMBERS[kind] // features)
    return max(1, positions // n_channels), min(n_channels, asked or positions)


def _runs(start: int, stop: int, n_channels: int) -> tuple[slice, ...]:
    """The channels at these places of the ring, which begins with the repeated ones."""
    found, around = [], n_channels + 2 * REPEATED
    while start < stop:
        place = start % around
        channel = (place - REPEATED) % n_channels
        end = n_channels if place < n_channels + REPEATED else REPEATED
        length = min(end - channel, stop - start)
        found.append(slice(channel, channel + length))
        start += length
    return tuple(found)
