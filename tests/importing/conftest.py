"""A generated record, and the tables that hold the same states."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from powerphase.dataset import Store, generate
from tests.dataset.exact import exact_signals

COLUMNS = ("p_mw", "q_mvar", "vm_pu", "va_rad")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twelve days of 14 buses."""
    return generate(
        "ieee14", tmp_path_factory.mktemp("original") / "store", signals=exact_signals(12)
    )


@pytest.fixture(scope="session")
def states(original: Store) -> np.ndarray:
    """Its states as (S, N, 4)."""
    values = original.read().astype(np.float64)
    values.setflags(write=False)
    return values


@pytest.fixture
def table(original: Store, states: np.ndarray) -> pd.DataFrame:
    """Its states as a long table."""
    return long_table(original, states)


@pytest.fixture
def csv_file(table: pd.DataFrame, tmp_path: Path) -> Path:
    """The long table in a CSV file."""
    file = tmp_path / "states.csv"
    table.to_csv(file, index=False)
    return file


def stamps(store: Store) -> pd.DatetimeIndex:
    """The times of a record."""
    return pd.DatetimeIndex(store.time, tz="UTC")


def long_table(store: Store, states: np.ndarray) -> pd.DataFrame:
    """States as a row for each time and bus; missing ones are empty."""
    n_steps, n_buses, _ = states.shape
    text = stamps(store)[:n_steps].strftime("%Y-%m-%dT%H:%MZ")
    keys = {"time": np.repeat(text, n_buses), "bus": np.tile(store.bus_id, n_steps)}
    values = {name: states[..., k].ravel() for k, name in enumerate(COLUMNS)}
    return pd.DataFrame({**keys, **values})


def wide_table(store: Store, states: np.ndarray) -> pd.DataFrame:
    """States as a row for each time."""
    columns = {
        f"{name}_{bus}": states[:, row, k]
        for row, bus in enumerate(store.bus_id)
        for k, name in enumerate(COLUMNS)
    }
    return pd.DataFrame({"time": stamps(store).strftime("%Y-%m-%dT%H:%MZ"), **columns})
