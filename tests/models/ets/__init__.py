"""Shared by the tests of ETS: processes with known parameters."""

import torch
from torch import Tensor

from powerphase.models.ets import SEASON, gains_of


def random(*size: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*size, dtype=torch.float64, generator=_generator(seed))


def some_gains(n_channels: int, seed: int = 0) -> Tensor:
    """Gains of parameters within their bounds, small enough that errors do not grow."""
    share = torch.rand(3, n_channels, dtype=torch.float64, generator=_generator(seed))
    alpha = 0.1 + 0.6 * share[0]
    return gains_of(torch.stack([alpha, 0.2 * share[1], 0.4 * (1 - alpha) * share[2]]))


def process(gains: Tensor, states: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
    """Values and final states of Holt-Winters, step by step with these errors."""
    level, trend, *season = states
    alpha, drift, gamma = gains
    values = []
    for error in errors:
        values.append(level + trend + season[0] + error)
        level, trend = level + trend + alpha * error, trend + drift * error
        season = [*season[1:], season[0] + gamma * error]
    return torch.stack(values), torch.stack([level, trend, *season])


def waves(season: int, n_channels: int) -> Tensor:
    """States at a level of 3, with a season of two waves."""
    turn = 2 * torch.pi * torch.arange(season, dtype=torch.float64) / season
    shape = torch.sin(turn) + 0.5 * torch.cos(2 * turn)
    states = torch.zeros(SEASON + season, n_channels, dtype=torch.float64)
    states[0] = 3.0
    states[SEASON:] = shape[:, None] * torch.linspace(0.5, 2, n_channels)
    return states


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
