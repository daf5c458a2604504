"""Layouts: inside the square, distinct, repeatable, and true to distances in the network."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import laplacian, shortest_path

from powerphase.errors import CaseError
from powerphase.grid import load_grid
from powerphase.report import LATTICE, layout, on_lattice, unique_pairs
from powerphase.report.drawing import _to_lattice

NOTHING = np.empty((0, 2), dtype=np.int64)


def ring(n: int, first: int = 0) -> NDArray[np.int64]:
    """The branches of a ring of `n` buses, numbered from `first`."""
    return first + np.stack([np.arange(n), np.roll(np.arange(n), -1)], axis=1)


def connections(name: str) -> tuple[int, NDArray[np.int64]]:
    grid = load_grid(name)
    return grid.n_buses, unique_pairs(grid.branch_rows[grid.branch_on])


def links(n: int, pairs: NDArray[np.int64]) -> "coo_array":
    return coo_array((np.ones(len(pairs)), pairs.T), shape=(n, n))


def stress(position: NDArray[np.floating], pairs: NDArray[np.int64]) -> float:
    """Kamada and Kawai's stress: the error of distances in branches, at the best scale."""
    expected = shortest_path(links(len(position), pairs), directed=False, unweighted=True)
    distance = np.linalg.norm(position[:, None] - position[None], axis=-1)
    upper = np.triu_indices(len(position), 1)
    ratio = distance[upper].astype(float) / expected[upper]
    return float(np.mean((ratio * ratio.mean() / (ratio**2).mean() - 1) ** 2))


@pytest.mark.parametrize("name", ["ieee14", "ieee118", "activsg500"])
def test_every_bus_has_a_distinct_point_in_the_square(name: str) -> None:
    n, pairs = connections(name)
    position = layout(n, pairs)
    assert position.shape == (n, 2)
    assert position.min() == 0.0
    assert position.max() == 1.0
    apart = np.linalg.norm(position[:, None] - position[None], axis=-1)[np.triu_indices(n, 1)]
    typical = np.median(np.linalg.norm(position[pairs[:, 0]] - position[pairs[:, 1]], axis=-1))
    assert apart.min() > 0.2 * typical  # buses at one neighbour do not overlap


def test_the_layout_is_repeatable() -> None:
    n, pairs = connections("ieee57")
    np.testing.assert_array_equal(layout(n, pairs), layout(n, pairs))


def test_parallel_branches_order_and_direction_do_not_matter() -> None:
    n, pairs = connections("ieee30")
    other = np.concatenate([pairs[::-1, ::-1], pairs[:5], [[7, 7]]])
    np.testing.assert_array_equal(layout(n, other), layout(n, pairs))


def test_stress_is_lower_than_that_of_random_and_spectral_layouts() -> None:
    n, pairs = connections("ieee118")
    matrix = np.asarray(laplacian(links(n, np.r_[pairs, pairs[:, ::-1]]).toarray()), dtype=float)
    _, vectors = np.linalg.eigh(matrix)
    value = stress(layout(n, pairs), pairs)
    assert value < 0.08
    assert value < stress(vectors[:, 1:3], pairs) / 2
    assert value < stress(np.random.default_rng(0).random((n, 2)), pairs) / 4


def test_a_ring_is_drawn_round() -> None:
    position = layout(24, ring(24))
    radius = np.linalg.norm(position - position.mean(axis=0), axis=1)
    assert radius.min() > 0.95 * radius.max()


def turns_left(a: NDArray[np.floating], b: NDArray[np.floating], c: NDArray[np.floating]) -> bool:
    return bool((b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0]))


def test_a_planar_grid_of_few_buses_is_drawn_without_crossings() -> None:
    n, pairs = connections("ieee14")
    position = layout(n, pairs).astype(float)
    for first, second in combinations(pairs, 2):
        if set(first).isdisjoint(second):
            (a, b), (c, d) = position[first], position[second]
            separated = turns_left(a, b, c) != turns_left(a, b, d)
            assert not (separated and turns_left(c, d, a) != turns_left(c, d, b))


def test_most_of_the_square_is_used() -> None:
    n, pairs = connections("activsg500")
    x, y = layout(n, pairs).T
    counts = np.histogram2d(x, y, bins=4, range=[[0, 1], [0, 1]])[0]
    assert (counts > 0).sum() >= 14


def test_islands_lie_side_by_side() -> None:
    position = layout(50, np.concatenate([ring(30), ring(20, first=30)]))
    apart = np.linalg.norm(position[:30, None] - position[None, 30:], axis=-1)
    branch = np.linalg.norm(position[0] - position[1])
    assert apart.min() > branch
    boxes = [(part.min(axis=0), part.max(axis=0)) for part in (position[:30], position[30:])]
    assert any(boxes[a][1][k] < boxes[1 - a][0][k] for a in (0, 1) for k in (0, 1))


def test_buses_without_branches_are_distinct() -> None:
    position = layout(9, NOTHING)
    assert len(np.unique(position, axis=0)) == 9


def test_one_bus_lies_in_the_middle() -> None:
    np.testing.assert_allclose(layout(1, NOTHING), [[0.5, 0.5]], atol=1 / LATTICE)
    assert layout(0, NOTHING).shape == (0, 2)


def test_two_buses_lie_at_opposite_ends() -> None:
    position = layout(2, np.array([[0, 1]]))
    assert np.abs(position[0] - position[1]).max() == 1.0


def test_a_layout_lies_on_the_lattice() -> None:
    n, pairs = connections("ieee57")
    np.testing.assert_array_equal(
        np.round(layout(n, pairs) * LATTICE).astype(np.uint16), on_lattice(n, pairs)
    )


def test_buses_at_one_point_move_to_neighbouring_points() -> None:
    points = _to_lattice(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]))
    assert len(np.unique(points, axis=0)) == 5
    assert points[:3].max() <= 1
    assert points[3:].min() >= LATTICE - 1


def test_a_branch_to_a_missing_bus_raises() -> None:
    with pytest.raises(CaseError, match=r"0 to 3.*3 buses"):
        layout(3, np.array([[0, 3]]))
