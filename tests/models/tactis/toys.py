"""Small grids and short windows for TACTiS-2."""

from typing import Any

import torch

from powerphase.models.tactis import TactisConfig, TactisNetwork
from tests.models.recurrent.toys import CONTEXT, HORIZON, budget


def tiny(epochs: int = 2, training: dict[str, Any] | None = None, **changes: Any) -> TactisConfig:
    """A small configuration for these windows."""
    sizes: dict[str, Any] = {"width": 8, "margin_hidden": 12, "paths": 7, "validation_bags": 3}
    return TactisConfig(**{**sizes, **changes}, training=budget(epochs, **(training or {})))


def network_of(n_channels: int = 8, block: int | None = None, **changes: Any) -> TactisNetwork:
    """A network in double precision, in evaluation mode."""
    torch.manual_seed(1)
    network = TactisNetwork(tiny(**changes), n_channels, CONTEXT, HORIZON, block)
    return network.double().eval()
