"""Bags of channels: random ones to train on, and those in which a forecast draws all channels.

A forecast draws the first bag by itself. Some of its channels, the links, are then part of every
other bag, whose other channels are drawn given the links. So the bags are independent of each other
given the history and the links, and together they are one joint distribution of all channels.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Bags(NamedTuple):
    """Bags of a forecast that are drawn in the same way, independently of each other."""

    known: Int[Tensor, "G known"]
    """Channels of each bag that are drawn before it."""
    new: Int[Tensor, "G new"]
    """Channels that the bag draws."""

    @property
    def channels(self) -> Int[Tensor, "G K"]:
        """All channels of each bag, the known ones first."""
        return torch.cat([self.known, self.new], dim=1)

    def split(self, at_once: int) -> Iterator["Bags"]:
        """So many bags at a time."""
        return map(Bags, self.known.split(at_once), self.new.split(at_once))


class BagNoise(NamedTuple):
    """What is random in the draw of some bags."""

    order: Int[Tensor, "G tokens"]
    """The tokens, counted channel by channel, in the order of drawing: the known ones first."""
    uniform: Float[Tensor, "G new M"]
    """A number for each new token, in the order of drawing, and each path."""


def draw_bags(
    n_windows: int, n_channels: int, size: int, device: torch.device
) -> Int[Tensor, "B K"]:
    """`size` different channels for each window; all sets of channels are equally likely.

    R. Floyd's algorithm, which draws only `size` numbers: the k-th is one of the first
    `n_channels − size + k + 1`, and is replaced by the last of these if it was drawn before.
    """
    size = min(size, n_channels)
    chosen = torch.empty((n_windows, 0), dtype=torch.int64, device=device)
    for last in range(n_channels - size, n_channels):
        candidate = torch.randint(last + 1, (n_windows, 1), device=device)
        repeated = (chosen == candidate).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(repeated, last, candidate)], dim=1)
    return chosen


def forecast_bags(n_channels: int, size: int, links: int, generator: torch.Generator) -> list[Bags]:
    """A random partition of the channels into bags: the first one, and those that are linked to it.

    If too few channels are left for the last bag, it has more links instead.

    Args:
        n_channels: channels of the grid, C.
        size: channels of a bag, K.
        links: channels of the first bag that are in every other bag.
        generator: on the device of the result.
    """
    order = torch.randperm(n_channels, generator=generator, device=generator.device)
    first, rest = order[None, :size], order[size:]
    whole = len(rest) - len(rest) % (size - links)
    groups = (rest[:whole].view(-1, size - links), rest[None, whole:])
    linked = (Bags(first[:, : size - new.shape[1]].expand(len(new), -1), new) for new in groups)
    return [Bags(first[:, :0], first), *(bags for bags in linked if bags.new.numel())]


def draw_noise(
    bags: Bags, horizon: int, n_paths: int, dtype: torch.dtype, generator: torch.Generator
) -> BagNoise:
    """The noise of some bags, drawn one bag after another.

    So the noise of a bag does not depend on which bags are drawn together with it.
    """
    n_known, n_new = (part.shape[1] * horizon for part in bags)
    options: Any = {"generator": generator, "device": generator.device}
    orders, uniforms = [], []
    for _ in bags.new:
        known, new = (torch.randperm(n, **options) for n in (n_known, n_new))
        orders.append(torch.cat([known, n_known + new]))
        uniforms.append(torch.rand((n_new, n_paths), dtype=dtype, **options))
    return BagNoise(torch.stack(orders), torch.stack(uniforms))
