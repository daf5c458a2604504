"""Tokens: one for each channel and step of a window, known or asked for."""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from powerphase.models.tactis.config import TactisConfig

SLOWEST = 10_000.0
"""Steps over 2π of the slowest wave that tells the time, about."""


class Scale(NamedTuple):
    """By what the channels of windows are shifted and divided."""

    mean: Float[Tensor, "B K"]
    deviation: Float[Tensor, "B K"]

    def normalised(self, values: Float[Tensor, "B steps K"]) -> Float[Tensor, "B K steps"]:
        """The values by their own context, channel by channel."""
        return ((values - self.mean[:, None]) / self.deviation[:, None]).mT


def scale_of(past: Float[Tensor, "B T K"], least: float) -> Scale:
    """Mean and unbiased standard deviation of each channel's context, the latter with a floor."""
    mean = past.mean(1)
    size = torch.linalg.vector_norm(past - mean[:, None], dim=1) / sqrt(past.shape[1] - 1)
    return Scale(mean, size.clamp(min=least))


def draw_bags(
    n_windows: int, n_channels: int, size: int, device: torch.device
) -> Int[Tensor, "B K"]:
    """For each window as many different channels, any set of them as likely as any other.

    By R. Floyd's way, which draws only so many numbers: the k-th is among the first `n_channels −
    size + k + 1`; where it was drawn before, the last of these is taken.
    """
    size = min(size, n_channels)
    chosen = torch.empty((n_windows, 0), dtype=torch.int64, device=device)
    for last in range(n_channels - size, n_channels):
        drawn = torch.randint(last + 1, (n_windows, 1), device=device)
        taken = (chosen == drawn).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(taken, last, drawn)], dim=1)
    return chosen


class Tokens(nn.Module):
    """Makes a vector of each token: its value, whose it is, whether it is known, and when it is.

    Args:
        config: widths.
        n_channels: channels of the grid, C.
        context_steps: steps that are known, T.
        horizon: steps that are asked for, H.
    """

    known: Tensor
    waves: Tensor

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.series = nn.Embedding(n_channels, config.series_embedding)
        self.first = nn.Linear(1 + config.series_embedding + 1, config.width)
        self.second = nn.Linear(config.width, config.width)
        steps = torch.arange(context_steps + horizon)
        self.register_buffer("known", (steps < context_steps).float(), persistent=False)
        self.register_buffer("waves", _waves(len(steps), config.width), persistent=False)

    def forward(
        self, past: Float[Tensor, "B K T"], series: Int[Tensor, "B K"]
    ) -> Float[Tensor, "B K steps width"]:
        """The tokens of normalised contexts and of the horizons after them."""
        n_steps = len(self.known)
        value = nn.functional.pad(past, (0, n_steps - past.shape[2]))
        whose = self.series(series)[:, :, None].expand(-1, -1, n_steps, -1)
        known = self.known.expand_as(value)
        told = torch.cat([value[..., None], whose, known[..., None]], dim=3)
        made = self.second(self.first(told).relu()).relu()
        return sqrt(made.shape[3]) * made + self.waves


def _waves(n_steps: int, width: int) -> Float[Tensor, "steps width"]:
    """Sines and cosines of the step, the fastest first."""
    speed = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-log(SLOWEST) / width))
    turned = torch.arange(n_steps, dtype=torch.float64)[:, None] * speed
    return torch.stack([turned.sin(), turned.cos()], dim=2).flatten(1).float()
