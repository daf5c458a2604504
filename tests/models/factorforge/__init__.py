"""Shared by the tests of FactorForge: records with known factors, on grids of a few buses."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from powerphase.axes import KINDS, STEP_S, STEPS_PER_DAY
from powerphase.circuit import Circuit, Limits
from powerphase.clock import day_of_week, holiday_share, hour_of_day
from powerphase.scenarios import Context, Layout, Record, Training, Windows

START = "2015-01-01"


def moments(n_steps: int, start: str = START) -> np.ndarray:
    """Steps of a quarter of an hour, UTC."""
    return np.datetime64(start, "s") + np.arange(n_steps) * np.timedelta64(STEP_S, "s")


def layout(n_buses: int) -> Layout:
    """Buses in a row."""
    buses = np.arange(n_buses)
    types, kv, circuit = np.full(n_buses, 3), np.full(n_buses, 110.0), Circuit.chain(n_buses)
    limits = Limits.equal(circuit, (0.95, 1.05), 100.0)
    return Layout("row", buses + 1, types, kv, circuit, limits, 1.0, 1.0)


def training_of(
    values: np.ndarray,
    context: int = STEPS_PER_DAY,
    horizon: int = STEPS_PER_DAY,
    start: str = START,
    on_read: Callable[[slice], None] = lambda steps: None,
) -> Training:
    """A training on these states, with one validation window at the last midnight."""
    states = values.astype(np.float32)

    def read(steps: slice, channels: slice) -> np.ndarray:
        on_read(steps)
        return states[steps, channels]

    record = Record(layout(states.shape[1] // KINDS), moments(len(states), start), read)
    last = (len(states) - horizon) // STEPS_PER_DAY * STEPS_PER_DAY
    return Training(record, Windows(record, np.array([last]), context, horizon))


def autocorrelated(
    n_steps: int, correlations: tuple[float, ...], rng: np.random.Generator
) -> np.ndarray:
    """Series of unit variance, each with its correlation from step to step."""
    memory = np.array(correlations)
    shocks = rng.normal(size=(n_steps, len(memory)))
    shocks[1:] *= np.sqrt(1 - memory**2)
    for step in range(1, n_steps):
        shocks[step] += memory * shocks[step - 1]
    return shocks


def profile(time: np.ndarray) -> np.ndarray:
    """A series of the Berlin clock and calendar: a daily wave, lower and flatter on days off."""
    wave = np.sin(2 * np.pi * hour_of_day(time) / 24)
    off = np.where(day_of_week(time) >= 5, 1.0, holiday_share(time))
    return wave - off * (1 + 0.4 * wave)


@dataclass(frozen=True)
class World:
    """A grid that follows two hidden signals, with shared and independent noise."""

    n_buses: int = 6
    constant: tuple[int, ...] = ()
    """Channels that never change."""
    seed: int = 3

    @property
    def loads(self) -> np.ndarray:
        """The loading of each signal, then of each shared noise, on every channel."""
        loads = np.random.default_rng(self.seed).normal(size=(4, KINDS * self.n_buses))
        loads[2:] *= 0.15
        loads[:, list(self.constant)] = 0
        return loads

    @property
    def noise_size(self) -> np.ndarray:
        """The standard deviation of the independent noise of each channel."""
        size = np.linspace(0.05, 0.15, KINDS * self.n_buses)
        size[list(self.constant)] = 0
        return size

    def states(self, n_days: int, seed: int, start: str = START) -> np.ndarray:
        """One random history of this grid."""
        rng = np.random.default_rng(seed)
        n_steps = n_days * STEPS_PER_DAY
        calendar = profile(moments(n_steps, start))[:, None] * [1.0, 0.4]
        signals = calendar + 0.5 * autocorrelated(n_steps, (0.985, 0.97), rng)
        shared = rng.normal(size=(n_steps, 2))
        noise = self.noise_size * rng.normal(size=(n_steps, KINDS * self.n_buses))
        return (1.02 + np.hstack([signals, shared]) @ self.loads + noise).astype(np.float32)


def windows_of(
    states: np.ndarray, context: int, horizon: int, start: str = START
) -> tuple[Context, Tensor]:
    """All windows of these states that start at midnight, and their targets."""
    first = -(-context // STEPS_PER_DAY) * STEPS_PER_DAY
    origins = np.arange(first, len(states) - horizon + 1, STEPS_PER_DAY)
    steps = origins[:, None] + np.arange(-context, horizon)
    values = torch.from_numpy(states.astype(np.float32))[torch.from_numpy(steps)]
    time = moments(len(states), start)[steps]
    past, target = values.split([context, horizon], dim=1)
    return Context(past, time, layout(states.shape[1] // KINDS)), target
