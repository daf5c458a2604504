"""Grids of other programs: their buses under the numbers of a MATPOWER case, and their names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerphase.errors import CaseError, RecordError
from powerphase.grid.case import Grid
from powerphase.grid.catalog import load_grid


@dataclass(frozen=True, eq=False)
class Network:
    """A grid, and what a source may call its buses."""

    grid: Grid
    rows: Mapping[str, int]
    """The row of the grid for each name of a bus."""
    names: Mapping[int, str] = field(default_factory=dict)
    """The names of buses that have one beside their number, by row."""
    shunt_mva: Mapping[str, complex] = field(default_factory=dict)
    """What a source counts as consumption of a bus at 1 p.u., and the grid as its shunt."""


def read_network(grid: Any) -> Network:
    """The network that a user's grid is.

    Args:
        grid: a `Grid`, a name of the catalogue, the path of a MATPOWER file, a network of
            pandapower or PyPSA, or the path of one (`.json`, `.nc`).
    """
    from powerphase.importing import pandapower, pypsa

    if isinstance(grid, Network):
        return grid
    if isinstance(grid, str | Path):
        if str(grid).endswith(".json"):
            return pandapower.read_grid(pandapower.load(grid))
        if str(grid).endswith(".nc"):
            return pypsa.read_grid(pypsa.load(grid))
        grid = load_grid(grid)
    if isinstance(grid, Grid):
        return Network(grid, {str(number): row for row, number in enumerate(grid.bus_id.tolist())})
    if pandapower.is_network(grid):
        return pandapower.read_grid(grid)
    if pypsa.is_network(grid):
        return pypsa.read_grid(grid)
    raise CaseError(
        f"{type(grid).__name__} is no grid; give a name of the catalogue, a MATPOWER file, or a "
        "network of pandapower or PyPSA"
    )


def plain_name(text: str, otherwise: str) -> str:
    """A name as files and results have it: lower-case letters, digits, hyphens and dots."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in text.lower())
    return plain.strip("-._") or otherwise


def number_buses(labels: list[Any]) -> np.ndarray:
    """Positive bus numbers for the labels of another program: its own numbers where they are.

    Whole numbers from 0 on are counted from 1; names are numbered in their order.
    """
    if all(isinstance(label, int | np.integer) and label >= 0 for label in labels):
        return np.array(labels, dtype=np.int64) + (1 if min(labels) == 0 else 0)
    texts = [str(label) for label in labels]
    if all(text.isdecimal() and 0 < int(text) < 2**53 for text in texts):
        return np.array([int(text) for text in texts])
    return np.arange(1, len(labels) + 1)


def as_frame(table: Any, source: str) -> pd.DataFrame:
    """A table of another program, by attribute access only."""
    if not isinstance(table, pd.DataFrame):
        raise RecordError(f"{source}: is {type(table).__name__}, not a table")
    return table


def column(table: pd.DataFrame, name: str, default: float) -> np.ndarray:
    """The numbers of a column; the default where they are missing."""
    if name not in table:
        return np.full(len(table), float(default))
    return pd.to_numeric(table[name], errors="coerce").fillna(default).to_numpy(dtype=np.float64)
