"""A data set, and scenarios of it that are joint, solved and unequally likely."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from powerphase import Context, Forecast, Scenarios, Store, Task, Training, forecast, generate
from powerphase.evaluation import join_channels
from tests.dataset.exact import exact_signals

PAST_DAYS = 3
WEIGHT = np.array([0.5, 0.3, 0.2])


class WeightedDays:
    """The last three days, which are states of the grid, with different probabilities."""

    joint_scenarios: bool | None = True

    def fit(self, train: Training) -> None: ...

    def predict(self, context: Context) -> Scenarios:
        n_channels = context.layout.n_channels
        past = context.past[:, -PAST_DAYS * context.horizon :]
        values = past.reshape(1, PAST_DAYS, context.horizon, n_channels)
        weight = torch.tensor(WEIGHT, dtype=torch.float32)[None, :, None]
        return Scenarios(values, weight.expand(1, PAST_DAYS, n_channels))


@pytest.fixture(scope="session")
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Store]:
    """Fourteen days of a grid."""
    folder: Path = tmp_path_factory.mktemp("exports")
    return cache(lambda grid: generate(grid, folder / grid, signals=exact_signals(14)))


@pytest.fixture(scope="session")
def task(store_of: Callable[[str], Store]) -> Task:
    """Two windows of IEEE 30."""
    return make_task(store_of("ieee30"))


def make_task(store: Store) -> Task:
    """Two windows of a data set."""
    return Task(store, windows=2)


@pytest.fixture(scope="session")
def weighted_days(task: Task) -> Forecast:
    """Three scenarios of two windows."""
    return forecast(WeightedDays(), task)


@pytest.fixture(scope="session")
def states(weighted_days: Forecast, task: Task) -> NDArray[np.float32]:
    """What the forecast says, in MW, MVAr, p.u. and rad: windows, scenarios, steps, buses, four."""
    return states_of(weighted_days, task)


def states_of(source: Forecast, task: Task) -> NDArray[np.float32]:
    """The scenarios of a forecast in physical units."""
    windows = [
        values * task.layout.scale
        for _, values, _ in join_channels(source.pieces(()), task.layout.n_channels)
    ]
    stacked = np.stack(windows)
    return stacked.reshape(*stacked.shape[:-1], -1, 4)
