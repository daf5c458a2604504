"""Where the buses of a grid stand on the page, and which branches join them."""

from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO

import numpy as np
from jaxtyping import Float32, Int

from powerphase.grid.catalog import CATALOG, load_grid

LAYOUTS = files("powerphase.report") / "layouts"
LATTICE = np.iinfo(np.uint16).max
"""Steps along a side of the square in which stored places are counted."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A network as a picture: places in the unit square."""

    bus_id: Int[np.ndarray, " N"]
    x: Float32[np.ndarray, " N"]
    y: Float32[np.ndarray, " N"]
    branches: Int[np.ndarray, "E 2"]
    """Pairs of positions in `bus_id`."""


def positions_of(name: str) -> Drawing | None:
    """The drawing of a grid of the catalogue whose layout comes with the package; else none.

    A stored layout holds places alone; bus numbers and branches are the case file's.
    """
    file = LAYOUTS / f"{name}.npz"
    if name not in CATALOG or not file.is_file():
        return None
    with np.load(BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        place = (stored["position"] / LATTICE).astype(np.float32)
    grid = load_grid(name)
    if len(place) != grid.n_buses:
        return None
    return Drawing(grid.bus_id, place[:, 0], place[:, 1], grid.branch_rows[grid.branch_on])
