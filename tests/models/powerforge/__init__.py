"""Tiny PowerForge networks and windows that the tests share."""

from dataclasses import replace
from math import expm1, log

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import STEP_S, THETA, P, V
from powerphase.circuit import Circuit, Limits
from powerphase.models.powerforge import HeadOutputs, PowerForgeConfig, PowerForgeNetwork
from powerphase.scenarios import Context, Layout

TINY = PowerForgeConfig(
    segments=3,
    segment_steps=12,
    query_steps=4,
    bias_steps=3,
    hidden=8,
    kernels=(3, 5, 13),
    scale_hidden=4,
    node_embedding=3,
    dropout=0.0,
    tokens=3,
    scenarios=4,
)
"""All parts, each as small as possible and of a different size."""

ABLATED = {
    "anchor": replace(TINY, anchor=False),
    "quantile regularisation": replace(TINY, quantile_regularisation=False),
    "ordered quantiles": replace(TINY, objective="winner-takes-all"),
    "physics": replace(TINY, physics=False),
    "bridge": replace(TINY, bridge=False),
    "mixer": replace(TINY, mixer=False),
}
"""The paper's six ablations by the missing part."""

READ = {
    "a clamped gate": replace(TINY, voltage_gate="clamp"),
    "a fine deviation": replace(TINY, deviation_floor=1e-4),
    "moving channels": replace(TINY, still_channels="skip", deviation_floor=1e-4),
}
"""Other readings of what the paper leaves open."""


def layout(n_buses: int) -> Layout:
    """A chain of buses."""
    buses = np.arange(n_buses)
    types, kv, circuit = np.full(n_buses, 3), np.full(n_buses, 110.0), Circuit.chain(n_buses)
    limits = Limits.equal(circuit, (0.95, 1.05), 100.0)
    return Layout("row", buses + 1, types, kv, circuit, limits, 1.0, 1.0)


def grid_states(n_steps: int, n_buses: int = 5, n_windows: int = 2, seed: int = 0) -> Tensor:
    """States (B, steps, C) that nearly repeat every 12 steps.

    The angles of the last bus cross π. If there are several buses, the first is constant, and so is
    the P of the second.
    """
    rng = np.random.default_rng(seed)
    size = (n_windows, 1, n_buses, 4)
    phase = 2 * np.pi * np.arange(n_steps)[:, None, None] / 12 + rng.uniform(0, 6, size)
    wave = np.sin(phase) + 0.4 * rng.normal(size=(n_windows, n_steps, n_buses, 4))
    states = rng.normal(size=size) * [1, 1, 0.01, 0.5] + wave * [0.5, 0.3, 0.01, 0.2]
    states[..., V] += 1
    states[:, :, -1, THETA] += np.pi
    states[:, :, :-1][:, :, :1] = [0, 0, 1, 0]
    states[:, :, 1:2, P] = 0.7
    states[..., THETA] = np.arctan2(np.sin(states[..., THETA]), np.cos(states[..., THETA]))
    return torch.from_numpy(states.reshape(n_windows, n_steps, 4 * n_buses))


def context_of(past: Tensor, horizon: int = 12) -> Context:
    """A context with these states, whose windows start at different times."""
    n_windows, n_past, n_channels = past.shape
    steps = np.arange(n_past + horizon) + 29 * np.arange(n_windows)[:, None]
    time = np.datetime64("2016-02-03T04:15", "s") + steps * np.timedelta64(STEP_S, "s")
    return Context(past, time, layout(n_channels // 4))


def windows(
    n_buses: int = 5, n_past: int = 36, horizon: int = 12, n_windows: int = 2, seed: int = 0
) -> tuple[Context, Tensor]:
    """Contexts and targets, in float64."""
    states = grid_states(n_past + horizon, n_buses, n_windows, seed)
    return context_of(states[:, :n_past], horizon), states[:, n_past:]


def network(
    config: PowerForgeConfig = TINY,
    n_buses: int = 5,
    n_past: int = 36,
    horizon: int = 12,
    channel_block: int | None = None,
    seed: int = 1,
    backend: str = "auto",
) -> PowerForgeNetwork:
    """A network in float64, all of whose parameters differ from their initial values."""
    torch.manual_seed(seed)
    network = PowerForgeNetwork(config, n_buses, n_past, horizon, channel_block, backend).double()
    with torch.no_grad():
        for parameter in network.parameters():
            width = parameter.shape[-1] if parameter.ndim > 1 else 8
            parameter.data += 0.85 / width**0.5 * torch.randn_like(parameter)
        start = 0.07 if config.voltage_gate == "clamp" else log(expm1(0.07))
        network.decoder.voltage_range.fill_(start)
        # The first and the last are outside the allowed range.
        network.objective.type_weight.copy_(torch.tensor([0.2, 0.8, 1.3, 3.5]))
    return network


def random_heads(
    n_windows: int,
    n_buses: int,
    scenarios: int,
    steps: int,
    width: int | None = None,
    seed: int = 3,
) -> HeadOutputs:
    """Random head outputs in float64, with zeros beyond the buses, the same for every width."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator)

    rows = 4 * (steps // 4 + 1)
    maps = 0.5 * random(2, steps, 2, rows)
    maps[..., steps + 1 :] = 0
    heads = HeadOutputs(
        power=random(n_windows, 2, 2 * steps, n_buses),
        gate=0.5 * random(n_windows, 2, 3 * steps + 1, n_buses),
        power_table=random(2, 2, steps, scenarios),
        gate_table=0.5 * random(2, steps, scenarios),
        direction_table=0.5 * random(2, steps, scenarios),
        constant_table=random(scenarios),
        gate_maps=maps.flatten(2),
        bound=torch.tensor([0.07, np.pi], dtype=torch.float64),
        noise=random(2, steps, scenarios),
    )
    padding = (0, (width or n_buses) - n_buses)
    return heads._replace(power=F.pad(heads.power, padding), gate=F.pad(heads.gate, padding))
