"""Small grids and short windows for the forecasters with a recurrent encoder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from powerphase.circuit import Circuit, Limits
from powerphase.models.framework import TrainingConfig
from powerphase.scenarios import Context, Layout, Record, Training, Windows

CONTEXT, HORIZON, LAGS = 16, 6, (1, 2, 5)
LSTM = {"lags": LAGS, "cells": 6}
TRANSFORMER = {"width": 8, "heads": 2, "layers": 2, "feed_forward": 12}
SMALL = {**LSTM, **TRANSFORMER, "diffusion_steps": 4, "blocks": 2, "paths": 5}
"""Sizes; each config has some of them."""


def layout_of(n_buses: int) -> Layout:
    circuit = Circuit.chain(n_buses)
    return Layout(
        grid="toy",
        bus_id=np.arange(1, n_buses + 1),
        bus_type=np.full(n_buses, 1),
        nominal_kv=np.full(n_buses, 110.0),
        circuit=circuit,
        limits=Limits.equal(circuit, (0.95, 1.05), 100.0),
        p_scale_mw=1.0,
        q_scale_mvar=1.0,
    )


def training_of(
    values: np.ndarray, context: int = CONTEXT, horizon: int = HORIZON, n_validation: int = 5
) -> Training:
    """A training on these values except the last windows, which are for validation."""
    values = values.astype(np.float32)
    layout = layout_of(values.shape[1] // 4)
    time = np.datetime64("2015-01-01", "s") + 900 * np.arange(len(values))

    def record(n: int) -> Record:
        return Record(layout, time[:n], lambda steps, channels: values[steps, channels])

    first = len(values) - n_validation * horizon
    origins = first + horizon * np.arange(n_validation)
    return Training(record(first), Windows(record(len(values)), origins, context, horizon))


def waves(n_steps: int = 200, n_channels: int = 8) -> np.ndarray:
    step, channel = np.arange(n_steps)[:, None], np.arange(n_channels)
    noise = np.random.default_rng(0).normal(0, 0.1, (n_steps, n_channels))
    return np.asarray(np.sin(step / (4 + channel)) + noise)


def windows_of(
    n_windows: int = 3, n_channels: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Context, torch.Tensor]:
    """Random windows, context and target."""
    generator = torch.Generator().manual_seed(1)
    size = (n_windows, CONTEXT + HORIZON, n_channels)
    values = torch.randn(size, generator=generator, dtype=dtype) + 0.5
    start = np.datetime64("2015-03-01T05:15", "s") + 86_400 * np.arange(n_windows)[:, None]
    time = start + 900 * np.arange(CONTEXT + HORIZON)
    context = Context(values[:, :CONTEXT], time, layout_of(n_channels // 4))
    return context, values[:, CONTEXT:]


def budget(epochs: int = 2, **changes: Any) -> TrainingConfig:
    defaults = {"epochs": epochs, "batches_per_epoch": 3, "batch_size": 4, "weight_decay": 1e-8}
    return TrainingConfig(**{**defaults, **changes})


def tiny(kind: Any, epochs: int = 2, training: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A config of the type for these windows."""
    sizes: dict[str, Any] = {k: v for k, v in SMALL.items() if k in kind.__dataclass_fields__}
    return kind(**{**sizes, **changes}, training=budget(epochs, **(training or {})))


def window(context: Context, number: int) -> Context:
    """One of several windows alone."""
    chosen = slice(number, number + 1)
    return Context(context.past[chosen], context.time[chosen], context.layout)


def equal_weights(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
