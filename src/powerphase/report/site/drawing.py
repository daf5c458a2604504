"""Where the buses of a grid stand on the page, and which branches join them."""

from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO

import numpy as np
from jaxtyping import Float32, Int


@dataclass(frozen=True, eq=False)
class Drawing:
    """A network as a picture: places in the unit square, y downwards."""

    bus_id: Int[np.ndarray, " N"]
    x: Float32[np.ndarray, " N"]
    y: Float32[np.ndarray, " N"]
    branches: Int[np.ndarray, "E 2"]
    """Pairs of positions in `bus_id`."""


def positions_of(grid: str) -> Drawing | None:
    """The drawing that comes with the package for a grid of the catalogue, if there is one."""
    file = files("powerphase.report") / "layouts" / f"{grid}.npz"
    if not file.is_file():
        return None
    with np.load(BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        place = stored["position"].astype(np.float32) / np.iinfo(np.uint16).max
        bus_id, branches = (stored[name].astype(np.int64) for name in ("bus_id", "branch"))
    return Drawing(bus_id, place[:, 0], place[:, 1], branches)
