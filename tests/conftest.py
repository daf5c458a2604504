"""Fixtures for many tests: signals made of formulas, grids that are read once, a data set."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from powerphase.axes import STEP_S
from powerphase.dataset import Store, generate
from powerphase.grid import Grid, PowerFlow, load_grid
from powerphase.models.framework import training
from powerphase.synthesis import Injections, Signals
from tests.dataset.exact import exact_signals

# readline, which pytest loads, sets these variables for every process that pytest starts, and a
# console would then ignore the width that a test requests.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)

# Several threads make small tensors slower, because they wait for each other on a busy machine.
torch.set_num_threads(1)

# No test is timed: a busy machine must not make one fail.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

SETPOINT_PU = 1.02


@pytest.fixture(autouse=True)
def saved_after_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save after every epoch: the trainings of tests are too short to be saved otherwise."""
    monkeypatch.setattr(training, "SAVE_SECONDS", 0.0)


@dataclass(frozen=True)
class Problem:
    """A grid with the recipe's injections and power flow."""

    grid: Grid
    injections: Injections
    flow: PowerFlow


@pytest.fixture(scope="session")
def signals() -> Signals:
    """Two weeks of functions of time: a daily load, solar by day, slow wind."""
    time = np.datetime64("2015-01-01", "s") + np.arange(0, 14 * 86_400, STEP_S)
    hour = np.arange(len(time)) / 4
    load = 55e3 - 9e3 * np.cos(2 * np.pi * (hour - 3) / 24) - 3e3 * np.cos(4 * np.pi * hour / 24)
    solar = 17e3 * np.maximum(0, -np.cos(2 * np.pi * hour / 24))
    wind = 9e3 + 6e3 * np.sin(2 * np.pi * hour / 77)
    return Signals(time, np.stack([load, solar, wind], axis=1), "analytic", "formulas of a test")


@pytest.fixture(scope="session")
def grid_of() -> Callable[[str], Grid]:
    """The grid with a name of the catalogue."""
    return cache(load_grid)


@pytest.fixture(scope="session")
def problem_of(grid_of: Callable[[str], Grid], signals: Signals) -> Callable[[str], Problem]:
    """A grid by name, with injections of seed 0 and every set-point at 1.02 p.u."""

    @cache
    def problem(name: str) -> Problem:
        grid = grid_of(name)
        injections = Injections(grid, signals, seed=0, dispatch="proportional")
        setpoint_pu = np.full(grid.n_buses, SETPOINT_PU)
        return Problem(grid, injections, PowerFlow(grid, setpoint_pu, *injections.mean()))

    return problem


@pytest.fixture(scope="session")
def some_steps(signals: Signals) -> NDArray[np.int64]:
    """A fixed random choice of steps."""
    return np.random.default_rng(20150101).choice(len(signals.time), size=4, replace=False)


@pytest.fixture(scope="session")
def sixty_days(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A data set of 14 buses: 35 days for training, 10 for validation, 15 for testing."""
    out: Path = tmp_path_factory.mktemp("sixty") / "days"
    return generate("ieee14", out, signals=exact_signals(60))
