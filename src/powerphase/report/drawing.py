"""Networks as drawings: where their buses lie, and what connects them.

The layouts of all catalogued grids come with the package, as they take up to minutes to make. They
hold positions alone, which are ours. Numbers, voltages and branches are the case files', some of
which may not be passed on; they are read from the installed case file or from a data set.
`make layouts` makes the stored files again.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import as_file, files
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int, UInt16

from powerphase.files import replace_file
from powerphase.grid.case import Grid
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.report.network_layout import LATTICE, on_lattice, unique_pairs


@dataclass(frozen=True, eq=False)
class Drawing:
    """A network in the unit square, buses in the case file's order."""

    grid: str
    bus_id: Int[np.ndarray, " N"]
    x: Float32[np.ndarray, " N"]
    y: Float32[np.ndarray, " N"]
    branches: Int[np.ndarray, "pairs 2"]
    """Bus rows (0-based) of each connection in service, parallel branches as one."""


def drawing_of(name: str) -> Drawing | None:
    """The drawing of the grid that the catalogue calls `name`; None of one that it lacks."""
    return draw(load_grid(name)) if name in CATALOG else None


def draw(grid: Grid) -> Drawing:
    """The drawing of any grid, such as a data set's: stored, or made in seconds to minutes."""
    pairs = unique_pairs(grid.branch_rows[grid.branch_on])
    position = stored_position(grid.name, grid.n_buses, pairs)
    if position is None:
        position = on_lattice(grid.n_buses, pairs)
    x, y = (position.T / LATTICE).astype(np.float32)
    return Drawing(grid.name, grid.bus_id, x, y, pairs)


def stored_position(
    name: str, n_buses: int, pairs: Int[np.ndarray, "pairs 2"]
) -> UInt16[np.ndarray, "N 2"] | None:
    """The stored layout of the grid `name`, provided that it was made for these connections."""
    source = files("powerphase.report") / "layouts" / f"{name}.npz"
    if not source.is_file():
        return None
    with as_file(source) as path, np.load(path) as stored:
        fits = str(stored["topology"]) == _topology(n_buses, pairs)
        return stored["position"] if fits else None


def store_layouts(folder: Path, names: Iterable[str] = tuple(CATALOG)) -> None:
    """Make the layouts of catalogued grids, a file for each."""
    for name in names:
        grid = load_grid(name)
        pairs = unique_pairs(grid.branch_rows[grid.branch_on])
        content = BytesIO()
        np.savez_compressed(
            content,
            position=on_lattice(grid.n_buses, pairs),
            topology=np.array(_topology(grid.n_buses, pairs)),
        )
        replace_file(folder / f"{name}.npz", content.getvalue())


def _topology(n_buses: int, pairs: Int[np.ndarray, "pairs 2"]) -> str:
    """A hash of what a layout depends on."""
    digest = hashlib.sha256(np.array(n_buses, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(pairs, dtype="<i8").tobytes())
    return digest.hexdigest()
