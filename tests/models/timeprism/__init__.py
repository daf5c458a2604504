"""Small networks and windows that TimePrism's tests share."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerphase.models.framework import TrainingConfig
from powerphase.models.timeprism import TimePrismConfig, TimePrismNetwork
from powerphase.scenarios import Context
from tests.models.factorforge import layout, moments

CONTEXT, HORIZON = 24, 8


def small(**changes: Any) -> TimePrismConfig:
    """Two trends with three seasons each, so that tests can tell them apart."""
    epochs = changes.pop("epochs", 2)
    training = TrainingConfig(epochs=epochs, batches_per_epoch=3, batch_size=4, weight_decay=1e-8)
    return TimePrismConfig(**{"hypotheses": 6, "training": training, **changes})


def network_of(
    config: TimePrismConfig, block: int | None = None, dtype: torch.dtype = torch.float64
) -> TimePrismNetwork:
    """A network whose first weights depend neither on block nor on precision."""
    torch.manual_seed(5)
    return TimePrismNetwork(config, CONTEXT, HORIZON, block).to(dtype)


def batch(
    windows: int = 3, channels: int = 8, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Context, Tensor]:
    """Random walks of different sizes; one channel is zero, and one is constant."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(
        windows, CONTEXT + HORIZON, channels, generator=generator, dtype=torch.float64
    )
    values = 3 + 0.3 * steps.cumsum(1)
    values *= torch.logspace(-3, 2, channels, dtype=torch.float64)
    values[..., 1], values[..., 2] = 0, -0.7
    past, target = values.to(dtype).split([CONTEXT, HORIZON], dim=1)
    time = np.tile(moments(CONTEXT + HORIZON), (windows, 1))
    time += 86_400 * np.arange(windows)[:, None]
    return Context(past, time, layout(channels // 4)), target
