"""Networks as drawings: where their buses lie, and what connects them.

The layouts of all catalogued grids come with the package, as they take up to minutes to make. They
hold positions alone, which are ours. Numbers, voltages and branches are the case files', some of
which may not be passed on; they are read from the installed case file or from a data set.
`make layouts` makes the stored files again.

Where to draw the buses of a network whose case file carries no coordinates.

Distances to some far-apart buses, in branches, give a start that is right at large (Brandes and
Pich, 2006). From there, branches pull and buses push each other away until all rest. A push that
fades with the square of the distance keeps dense parts open without blowing the backbone up to a
ring, as the usual one would. It is summed up over the buses of the cells around, and for all other
cells at their centres.

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
"""Places along a side of the square. A stored layout counts them, so none lies between."""
ROUNDS = 600
FURTHEST, NEAREST = 4.0, 0.02
"""The longest move in the first round and in the last, in branches."""
PUSH = 0.2
PIVOTS = 100
ANGLES = 90
SMALL, TRIALS = 300, 8
"""Up to so many buses, the layout with fewest crossings of so many is taken."""
MARGIN = 2.0
"""Between two islands, in branches."""


def layout(n_buses: int, branches: Int[np.ndarray, "branches 2"]) -> Float32[np.ndarray, "N 2"]:
    """A place for each bus in the unit square, no two alike, the same on every call.

    Args:
        n_buses: how many buses there are.
        branches: bus rows (0-based) of each branch's two ends.
    """
    return (on_lattice(n_buses, branches) / LATTICE).astype(np.float32)


def on_lattice(n_buses: int, branches: Int[np.ndarray, "branches 2"]) -> UInt16[np.ndarray, "N 2"]:
    """The layout in steps of its lattice."""
    if branches.size and not 0 <= branches.min() <= branches.max() < n_buses:
        raise CaseError(
            f"branches end at rows {branches.min()} to {branches.max()} of {n_buses} buses; "
            f"number the buses from 0 to {n_buses - 1}"
        )
    links = _links(n_buses, unique_pairs(branches))
    n_islands, island = connected_components(links, directed=False)
    islands = [np.flatnonzero(island == k) for k in range(n_islands)]
    islands.sort(key=len, reverse=True)
    placed = np.empty((n_buses, 2))
    drawn = [_settled(csr_array(links[rows][:, rows])) for rows in islands]
    for rows, place in zip(islands, _side_by_side(drawn), strict=True):
        placed[rows] = place
    return _snapped(placed)


def unique_pairs(branches: Int[np.ndarray, "branches 2"]) -> Int[np.ndarray, "pairs 2"]:
    """The two ends of each connection once, the lower row first; no loops."""
    ends = np.sort(branches, axis=1)
    return np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0).reshape(-1, 2)


def _links(n_buses: int, pairs: Int[np.ndarray, "pairs 2"]) -> csr_array:
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    return coo_array((np.ones(len(ends)), ends.T), shape=(n_buses, n_buses)).tocsr()


def _settled(links: csr_array) -> Float64[np.ndarray, "N 2"]:
    """The buses of one island at rest, a branch about 1 long, turned to fit into a square."""
    n_buses = links.shape[0]
    if n_buses == 1:
        return np.zeros((1, 2))
    upper = links.tocoo()
    pairs = np.stack(upper.coords, axis=1).astype(np.int64)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    trials = [_at_rest(links, pairs, seed) for seed in range(TRIALS if n_buses <= SMALL else 1)]
    if len(trials) > 1:
        trials.sort(key=lambda place: _crossings(place, pairs))
    return _turned(trials[0])


def _at_rest(
    links: csr_array, pairs: Int[np.ndarray, "pairs 2"], seed: int
) -> Float64[np.ndarray, "N 2"]:
    """The buses where nothing moves them any more, from the start that the seed shakes."""
    place = _start(links, seed)
    place /= np.median(np.hypot(*(place[pairs[:, 0]] - place[pairs[:, 1]]).T))
    # Last digits differ between machines, and hundreds of rounds would make pictures differ.
    place, longest = np.round(place, 6), np.round(np.geomspace(FURTHEST, NEAREST, ROUNDS), 6)
    _settle(place, pairs, longest, PUSH, max(2, ceil(2 * len(place) ** 0.25)))
    return place


def _crossings(place: Float64[np.ndarray, "N 2"], pairs: Int[np.ndarray, "pairs 2"]) -> int:
    """How many pairs of branches cross."""
    start, end = place[pairs[:, 0]], place[pairs[:, 1]]
    along = end - start
    sides = [
        np.sign(along[:, None, 0] * (other[None, :, 1] - start[:, None, 1])
                - along[:, None, 1] * (other[None, :, 0] - start[:, None, 0]))
        for other in (start, end)
    ]  # fmt: skip
    parted = sides[0] * sides[1] < 0
    meeting = (pairs[:, None, :, None] == pairs[None, :, None, :]).any(axis=(2, 3))
    return int((parted & parted.T & ~meeting).sum()) // 2


def _start(links: csr_array, seed: int) -> Float64[np.ndarray, "N 2"]:
    """Places from the distances to pivots, shaken so that no two are alike."""
    n_buses = links.shape[0]
    squared = _distances(links).T ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    _, vectors = np.linalg.eigh(centred.T @ centred)
    vectors = vectors[:, -2:] * np.sign(vectors[np.abs(vectors[:, -2:]).argmax(axis=0), [-2, -1]])
    place = centred @ vectors
    place *= n_buses / np.maximum(np.linalg.norm(place, axis=0), 1e-9)
    return place + stream(seed, "layout").normal(size=(n_buses, 2))


def _distances(links: csr_array) -> Float64[np.ndarray, "pivots N"]:
    """Distances in branches from buses each of which is as far as can be from all before it."""
    pivot, found = int(np.diff(links.indptr).argmax()), []
    for _ in range(min(PIVOTS, links.shape[0])):
        found.append(dijkstra(links, indices=[pivot], unweighted=True)[0])
        pivot = int(np.min(found, axis=0).argmax())
    return np.array(found)


def _turned(place: Float64[np.ndarray, "N 2"]) -> Float64[np.ndarray, "N 2"]:
    """The places turned so that the square around them is smallest."""
    angles = np.arange(ANGLES) * (np.pi / 2 / ANGLES)
    turns = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]])
    sides = [np.ptp(place @ turns[..., k], axis=0).max() for k in range(ANGLES)]
    turned: np.ndarray = place @ turns[..., int(np.argmin(sides))]
    return turned


def _side_by_side(parts: list[np.ndarray]) -> list[np.ndarray]:
    """The parts, largest first, moved into rows of about the width of a square for all."""
    sizes = [np.ptp(part, axis=0) + MARGIN for part in parts]
    width = max([sqrt(sum(float(size.prod()) for size in sizes)), *(size[0] for size in sizes)])
    left, bottom, height, moved = 0.0, 0.0, 0.0, []
    for part, size in zip(parts, sizes, strict=True):
        if left + size[0] > width * (1 + 1e-9):
            left, bottom, height = 0.0, bottom + height, 0.0
        moved.append(part - part.min(axis=0) + (left, bottom))
        left, height = left + size[0], max(height, size[1])
    return moved


def _snapped(place: Float64[np.ndarray, "N 2"]) -> UInt16[np.ndarray, "N 2"]:
    """The places in the middle of the square and on its lattice, each bus on a point of its own."""
    if len(place) == 0:
        return np.empty((0, 2), dtype=np.uint16)
    low, high = place.min(axis=0), place.max(axis=0)
    side = max(float((high - low).max()), 1e-9)
    points = np.round(((place - (low + high) / 2) / side + 0.5) * LATTICE).astype(int)
    taken: dict[tuple[int, int], None] = {}
    for x, y in points.tolist():
        taken[next(point for point in _around(x, y) if point not in taken)] = None
    return np.array(list(taken), dtype=np.uint16)


def _around(x: int, y: int) -> Iterator[tuple[int, int]]:
    """The points of the lattice, from the given one outwards."""
    for reach in count():
        rows, columns = (
            range(max(0, middle - reach), min(LATTICE, middle + reach) + 1) for middle in (x, y)
        )
        yield from product(rows, columns)


@njit(cache=True, nogil=True)
@no_type_check  # a checker's wrapper could not be compiled
def _settle(place: Any, pairs: Any, longest: Any, push: float, n_cells: int) -> None:
    """Move the buses by what pushes and pulls them, round by round, never further than allowed."""
    force, stiffness = np.empty_like(place), np.empty(len(place))
    for limit in longest:
        _repel(place, n_cells, push, force)
        stiffness[:] = 0.0
        for k in range(len(pairs)):
            i, j = pairs[k]
            dx, dy = place[j, 0] - place[i, 0], place[j, 1] - place[i, 1]
            length = np.sqrt(dx * dx + dy * dy)
            force[i, 0] += length * dx
            force[i, 1] += length * dy
            force[j, 0] -= length * dx
            force[j, 1] -= length * dy
            stiffness[i] += 2 * length + push
            stiffness[j] += 2 * length + push
        for i in range(len(place)):
            dx, dy = force[i, 0] / stiffness[i] / 2, force[i, 1] / stiffness[i] / 2
            share = min(1.0, limit / (np.sqrt(dx * dx + dy * dy) + 1e-12))
            place[i, 0] += share * dx
            place[i, 1] += share * dy


@njit(cache=True, nogil=True)
@no_type_check
def _repel(place: Any, n_cells: int, push: float, force: Any) -> None:
    """What all other buses push each bus with; those of cells not next to its own as one."""
    cell, start, member, centre = _cells(place, n_cells)
    filled = np.flatnonzero(start[1:] > start[:-1])
    for i in range(len(place)):
        row, column = divmod(cell[i], n_cells)
        fx, fy = 0.0, 0.0
        for c in filled:
            if abs(c // n_cells - row) <= 1 and abs(c % n_cells - column) <= 1:
                for k in range(start[c], start[c + 1]):
                    dx, dy = place[i, 0] - place[member[k], 0], place[i, 1] - place[member[k], 1]
                    squared = dx * dx + dy * dy + 1e-4  # two buses may meet on their way
                    strength = 1 / (squared * np.sqrt(squared))
                    fx += strength * dx
                    fy += strength * dy
            else:
                dx, dy = place[i, 0] - centre[c, 0], place[i, 1] - centre[c, 1]
                squared = dx * dx + dy * dy
                strength = (start[c + 1] - start[c]) / (squared * np.sqrt(squared))
                fx += strength * dx
                fy += strength * dy
        force[i, 0], force[i, 1] = push * fx, push * fy


@njit(cache=True, nogil=True)
@no_type_check
def _cells(place: Any, n_cells: int) -> Any:
    """Each bus's cell; where each cell's members begin; the members; the cells' centres."""
    low_x, low_y = place[:, 0].min(), place[:, 1].min()
    side = max(np.ptp(place[:, 0]), np.ptp(place[:, 1])) / n_cells + 1e-9
    cell = np.empty(len(place), np.int64)
    start, centre = np.zeros(n_cells**2 + 1, np.int64), np.zeros((n_cells**2, 2))
    for i in range(len(place)):
        row, column = int((place[i, 0] - low_x) / side), int((place[i, 1] - low_y) / side)
        cell[i] = row * n_cells + column
        start[cell[i] + 1] += 1
        centre[cell[i]] += place[i]
    for c in range(n_cells**2):
        centre[c] /= max(1, start[c + 1])
        start[c + 1] += start[c]
    return cell, start, np.argsort(cell, kind="mergesort"), centre


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
