"""Drawings of networks: the positions of buses, and the connections between them.

Case files have no coordinates, so the positions come from the connections alone. Distances in
branches to some far-apart buses give a start that is right on the large scale (Brandes and Pich,
2006). From there, branches pull and buses repel each other until all are at rest. A repulsion that
falls with the square of the distance keeps dense parts open without inflating the backbone to a
ring, as the usual repulsion would. It is summed over the buses of the neighbouring cells, and over
the centres of all other cells.

The layouts of all catalogued grids come with the package, since they take up to minutes to compute.
They contain positions alone. Numbers, voltages and branches belong to the case files, some of which
may not be redistributed; they are read from the installed case file or from a data set.
`make layouts` computes the stored files again.

Reference: Brandes, Pich (2006), doi:10.1007/978-3-540-70904-6_6.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from io import BytesIO
from itertools import count, product
from math import ceil, sqrt
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Float32, Float64, Int, UInt16
from numba import njit
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from powerphase.errors import CaseError
from powerphase.files import replace_file
from powerphase.grid.case import Grid
from powerphase.grid.catalog import CATALOG, load_grid
from powerphase.seeds import stream

LATTICE = 65_535
"""Points along a side of the square; stored positions are multiples of its steps."""
ROUNDS = 600
FIRST_LIMIT, LAST_LIMIT = 4.0, 0.02
"""The longest move in the first round and in the last, in branches."""
REPULSION = 0.2
PIVOTS = 100
ANGLES = 90
SMALL, TRIALS = 300, 8
"""Up to this many buses, the layout with the fewest crossings of this many trials is used."""
MARGIN = 2.0
"""The distance between two islands, in branches."""


def layout(n_buses: int, branches: Int[np.ndarray, "branches 2"]) -> Float32[np.ndarray, "N 2"]:
    """A position for each bus in the unit square, all different, the same on every call.

    Args:
        n_buses: the number of buses.
        branches: bus rows (0-based) of each branch's two ends.
    """
    return (on_lattice(n_buses, branches) / LATTICE).astype(np.float32)


def on_lattice(n_buses: int, branches: Int[np.ndarray, "branches 2"]) -> UInt16[np.ndarray, "N 2"]:
    """The layout in steps of the lattice."""
    if branches.size and not 0 <= branches.min() <= branches.max() < n_buses:
        raise CaseError(
            f"branches end at rows {branches.min()} to {branches.max()} of {n_buses} buses; "
            f"number the buses from 0 to {n_buses - 1}"
        )
    links = _links(n_buses, unique_pairs(branches))
    n_islands, island = connected_components(links, directed=False)
    islands = [np.flatnonzero(island == k) for k in range(n_islands)]
    islands.sort(key=len, reverse=True)
    layouts = [_lay_out_island(csr_array(links[rows][:, rows])) for rows in islands]
    position = np.empty((n_buses, 2))
    for rows, part in zip(islands, _side_by_side(layouts), strict=True):
        position[rows] = part
    return _to_lattice(position)


def unique_pairs(branches: Int[np.ndarray, "branches 2"]) -> Int[np.ndarray, "pairs 2"]:
    """The two ends of each connection, once and with the lower row first; no loops."""
    ends = np.sort(branches, axis=1)
    return np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0).reshape(-1, 2)


def _links(n_buses: int, pairs: Int[np.ndarray, "pairs 2"]) -> csr_array:
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    return coo_array((np.ones(len(ends)), ends.T), shape=(n_buses, n_buses)).tocsr()


def _lay_out_island(links: csr_array) -> Float64[np.ndarray, "N 2"]:
    """The positions in one island, with branches about 1 long, rotated to fit a square."""
    n_buses = links.shape[0]
    if n_buses == 1:
        return np.zeros((1, 2))
    upper = links.tocoo()
    pairs = np.stack(upper.coords, axis=1).astype(np.int64)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    trials = [
        _layout_trial(links, pairs, seed) for seed in range(TRIALS if n_buses <= SMALL else 1)
    ]
    if len(trials) > 1:
        trials.sort(key=lambda position: _crossings(position, pairs))
    return _rotate(trials[0])


def _layout_trial(
    links: csr_array, pairs: Int[np.ndarray, "pairs 2"], seed: int
) -> Float64[np.ndarray, "N 2"]:
    """The positions at rest, from a start with the seed's noise."""
    position = _start(links, seed)
    position /= np.median(np.hypot(*(position[pairs[:, 0]] - position[pairs[:, 1]]).T))
    # Last digits differ between machines; hundreds of rounds would amplify that.
    position = np.round(position, 6)
    limits = np.round(np.geomspace(FIRST_LIMIT, LAST_LIMIT, ROUNDS), 6)
    _move_to_rest(position, pairs, limits, REPULSION, max(2, ceil(2 * len(position) ** 0.25)))
    return position


def _crossings(position: Float64[np.ndarray, "N 2"], pairs: Int[np.ndarray, "pairs 2"]) -> int:
    """The number of pairs of branches that cross."""
    start, end = position[pairs[:, 0]], position[pairs[:, 1]]
    along = end - start
    sides = [
        np.sign(along[:, None, 0] * (point[None, :, 1] - start[:, None, 1])
                - along[:, None, 1] * (point[None, :, 0] - start[:, None, 0]))
        for point in (start, end)
    ]  # fmt: skip
    separated = sides[0] * sides[1] < 0
    adjacent = (pairs[:, None, :, None] == pairs[None, :, None, :]).any(axis=(2, 3))
    return int((separated & separated.T & ~adjacent).sum()) // 2


def _start(links: csr_array, seed: int) -> Float64[np.ndarray, "N 2"]:
    """Positions from the distances to pivots, with noise so that no two are equal."""
    n_buses = links.shape[0]
    squared = _distances(links).T ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    _, vectors = np.linalg.eigh(centred.T @ centred)
    vectors = vectors[:, -2:] * np.sign(vectors[np.abs(vectors[:, -2:]).argmax(axis=0), [-2, -1]])
    position = centred @ vectors
    position *= n_buses / np.maximum(np.linalg.norm(position, axis=0), 1e-9)
    return position + stream(seed, "layout").normal(size=(n_buses, 2))


def _distances(links: csr_array) -> Float64[np.ndarray, "pivots N"]:
    """Distances in branches from pivots, each as far as possible from all before it."""
    pivot, distances = int(np.diff(links.indptr).argmax()), []
    for _ in range(min(PIVOTS, links.shape[0])):
        distances.append(dijkstra(links, indices=[pivot], unweighted=True)[0])
        pivot = int(np.min(distances, axis=0).argmax())
    return np.array(distances)


def _rotate(position: Float64[np.ndarray, "N 2"]) -> Float64[np.ndarray, "N 2"]:
    """The positions, rotated so that the square around them is smallest."""
    angles = np.arange(ANGLES) * (np.pi / 2 / ANGLES)
    rotations = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
    sides = [np.ptp(position @ rotations[..., k], axis=0).max() for k in range(ANGLES)]
    rotated: np.ndarray = position @ rotations[..., int(np.argmin(sides))]
    return rotated


def _side_by_side(parts: list[np.ndarray]) -> list[np.ndarray]:
    """The parts, largest first, moved into rows as wide as a square for all of them."""
    sizes = [np.ptp(part, axis=0) + MARGIN for part in parts]
    width = max([sqrt(sum(float(size.prod()) for size in sizes)), *(size[0] for size in sizes)])
    left, bottom, height, moved = 0.0, 0.0, 0.0, []
    for part, size in zip(parts, sizes, strict=True):
        if left + size[0] > width * (1 + 1e-9):
            left, bottom, height = 0.0, bottom + height, 0.0
        moved.append(part - part.min(axis=0) + (left, bottom))
        left, height = left + size[0], max(height, size[1])
    return moved


def _to_lattice(position: Float64[np.ndarray, "N 2"]) -> UInt16[np.ndarray, "N 2"]:
    """The positions scaled to the square and moved to its lattice, one bus to a point."""
    if len(position) == 0:
        return np.empty((0, 2), dtype=np.uint16)
    low, high = position.min(axis=0), position.max(axis=0)
    side = max(float((high - low).max()), 1e-9)
    points = np.round(((position - (low + high) / 2) / side + 0.5) * LATTICE).astype(int)
    used: dict[tuple[int, int], None] = {}
    for x, y in points.tolist():
        used[next(point for point in _points_around(x, y) if point not in used)] = None
    return np.array(list(used), dtype=np.uint16)


def _points_around(x: int, y: int) -> Iterator[tuple[int, int]]:
    """The points of the lattice, from (x, y) outwards."""
    for reach in count():
        rows, columns = (
            range(max(0, middle - reach), min(LATTICE, middle + reach) + 1) for middle in (x, y)
        )
        yield from product(rows, columns)


@njit(cache=True, nogil=True)
@no_type_check  # numba cannot compile a type checker's wrapper
def _move_to_rest(position: Any, pairs: Any, limits: Any, repulsion: float, n_cells: int) -> None:
    """Move the buses by the forces on them, round by round, at most `limits` at a time."""
    force, stiffness = np.empty_like(position), np.empty(len(position))
    for limit in limits:
        _repel(position, n_cells, repulsion, force)
        stiffness[:] = 0.0
        for k in range(len(pairs)):
            i, j = pairs[k]
            dx, dy = position[j, 0] - position[i, 0], position[j, 1] - position[i, 1]
            length = np.sqrt(dx * dx + dy * dy)
            force[i, 0] += length * dx
            force[i, 1] += length * dy
            force[j, 0] -= length * dx
            force[j, 1] -= length * dy
            stiffness[i] += 2 * length + repulsion
            stiffness[j] += 2 * length + repulsion
        for i in range(len(position)):
            dx, dy = force[i, 0] / stiffness[i] / 2, force[i, 1] / stiffness[i] / 2
            share = min(1.0, limit / (np.sqrt(dx * dx + dy * dy) + 1e-12))
            position[i, 0] += share * dx
            position[i, 1] += share * dy


@njit(cache=True, nogil=True)
@no_type_check
def _repel(position: Any, n_cells: int, repulsion: float, force: Any) -> None:
    """Set the force of all other buses on each bus; buses of distant cells act from the centre."""
    cell, start, member, centre = _cells(position, n_cells)
    filled = np.flatnonzero(start[1:] > start[:-1])
    for i in range(len(position)):
        row, column = divmod(cell[i], n_cells)
        fx, fy = 0.0, 0.0
        for c in filled:
            if abs(c // n_cells - row) <= 1 and abs(c % n_cells - column) <= 1:
                for k in range(start[c], start[c + 1]):
                    dx, dy = (
                        position[i, 0] - position[member[k], 0],
                        position[i, 1] - position[member[k], 1],
                    )
                    squared = dx * dx + dy * dy + 1e-4  # two buses may meet while they move
                    strength = 1 / (squared * np.sqrt(squared))
                    fx += strength * dx
                    fy += strength * dy
            else:
                dx, dy = position[i, 0] - centre[c, 0], position[i, 1] - centre[c, 1]
                squared = dx * dx + dy * dy
                strength = (start[c + 1] - start[c]) / (squared * np.sqrt(squared))
                fx += strength * dx
                fy += strength * dy
        force[i, 0], force[i, 1] = repulsion * fx, repulsion * fy


@njit(cache=True, nogil=True)
@no_type_check
def _cells(position: Any, n_cells: int) -> Any:
    """The cell of each bus; where the members of each cell start; the members; the cell centres."""
    (low_x, high_x), (low_y, high_y) = _extent(position[:, 0]), _extent(position[:, 1])
    side = max(high_x - low_x, high_y - low_y) / n_cells + 1e-9
    cell, member = np.empty(len(position), np.int64), np.empty(len(position), np.int64)
    start, centre = np.zeros(n_cells**2 + 1, np.int64), np.zeros((n_cells**2, 2))
    for i in range(len(position)):
        row, column = int((position[i, 0] - low_x) / side), int((position[i, 1] - low_y) / side)
        cell[i] = row * n_cells + column
        start[cell[i] + 1] += 1
        centre[cell[i], 0] += position[i, 0]
        centre[cell[i], 1] += position[i, 1]
    for c in range(n_cells**2):
        centre[c, 0] /= max(1, start[c + 1])
        centre[c, 1] /= max(1, start[c + 1])
        start[c + 1] += start[c]
    free = start.copy()
    for i in range(len(position)):
        member[free[cell[i]]] = i
        free[cell[i]] += 1
    return cell, start, member, centre


@njit(cache=True, nogil=True)
@no_type_check
def _extent(values: Any) -> Any:
    """The least and the largest value. NumPy's functions take seconds to compile in a kernel."""
    low = high = values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    return low, high


@dataclass(frozen=True, eq=False)
class Drawing:
    """A network in the unit square, with buses in the order of the case file."""

    grid: str
    bus_id: Int[np.ndarray, " N"]
    x: Float32[np.ndarray, " N"]
    y: Float32[np.ndarray, " N"]
    branches: Int[np.ndarray, "pairs 2"]
    """Bus rows (0-based) of each connection in service; parallel branches are one connection."""


def drawing_of(name: str) -> Drawing | None:
    """The drawing of a grid of the catalogue; None for other names."""
    return draw(load_grid(name)) if name in CATALOG else None


def draw(grid: Grid) -> Drawing:
    """The drawing of any grid: stored, or computed in seconds to minutes."""
    pairs = unique_pairs(grid.branch_rows[grid.branch_on])
    position = stored_position(grid.name, grid.n_buses, pairs)
    if position is None:
        position = on_lattice(grid.n_buses, pairs)
    x, y = (position.T / LATTICE).astype(np.float32)
    return Drawing(grid.name, grid.bus_id, x, y, pairs)


def stored_position(
    name: str, n_buses: int, pairs: Int[np.ndarray, "pairs 2"]
) -> UInt16[np.ndarray, "N 2"] | None:
    """The stored layout of the grid `name`, if it was computed for these connections."""
    source = files("powerphase.report") / "layouts" / f"{name}.npz"
    if not source.is_file():
        return None
    with as_file(source) as path, np.load(path) as stored:
        fits = str(stored["topology"]) == _topology(n_buses, pairs)
        return stored["position"] if fits else None


def store_layouts(folder: Path, names: Iterable[str] = tuple(CATALOG)) -> None:
    """Compute the layouts of catalogued grids, one file each."""
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
    """A hash of everything that a layout depends on."""
    digest = hashlib.sha256(np.array(n_buses, dtype="<i8").tobytes())
    digest.update(np.ascontiguousarray(pairs, dtype="<i8").tobytes())
    return digest.hexdigest()
