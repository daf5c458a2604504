"""Layouts: inside the square, apart, repeatable, and truer to the network than others."""

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
    """The branches of a ring of `n` buses, of which the given one is the first."""
    return first + np.stack([np.arange(n), np.roll(np.arange(n), -1)], axis=1)


def connections(name: str) -> tuple[int, NDArray[np.int64]]:
    grid = load_grid(name)
    return grid.n_buses, unique_pairs(grid.branch_rows[grid.branch_on])


def links(n: int, pairs: NDArray[np.int64]) -> "coo_array":
    return coo_array((np.ones(len(pairs)), pairs.T), shape=(n, n))


def stress(place: NDArray[np.floating], pairs: NDArray[np.int64]) -> float:
    """Kamada and Kawai's: how far distances are from those in branches, at the best scale."""
    wanted = shortest_path(links(len(place), pairs), directed=False, unweighted=True)
    found = np.linalg.norm(place[:, None] - place[None], axis=-1)
    upper = np.triu_indices(len(place), 1)
    ratio = found[upper].astype(float) / wanted[upper]
    return float(np.mean((ratio * ratio.mean() / (ratio**2).mean() - 1) ** 2))


@pytest.mark.parametrize("name", ["ieee14", "ieee118", "activsg500"])
def test_every_bus_of_a_grid_has_a_point_of_its_own_in_the_square(name: str) -> None:
    n, pairs = connections(name)
    place = layout(n, pairs)
    assert place.shape == (n, 2)
    assert place.min() == 0.0
    assert place.max() == 1.0
    apart = np.linalg.norm(place[:, None] - place[None], axis=-1)[np.triu_indices(n, 1)]
    typical = np.median(np.linalg.norm(place[pairs[:, 0]] - place[pairs[:, 1]], axis=-1))
    assert apart.min() > 0.2 * typical  # leaves of one bus are not piled up


def test_a_network_is_laid_out_the_same_way_every_time() -> None:
    n, pairs = connections("ieee57")
    np.testing.assert_array_equal(layout(n, pairs), layout(n, pairs))


def test_parallel_branches_their_order_and_their_direction_do_not_count() -> None:
    n, pairs = connections("ieee30")
    other = np.concatenate([pairs[::-1, ::-1], pairs[:5], [[7, 7]]])
    np.testing.assert_array_equal(layout(n, other), layout(n, pairs))


def test_distances_are_truer_than_those_of_random_and_of_spectral_layouts() -> None:
    n, pairs = connections("ieee118")
    adjacency = links(n, np.r_[pairs, pairs[:, ::-1]]).toarray()
    _, vectors = np.linalg.eigh(np.asarray(laplacian(adjacency)))
    found = stress(layout(n, pairs), pairs)
    assert found < 0.08
    assert found < stress(vectors[:, 1:3], pairs) / 2
    assert found < stress(np.random.default_rng(0).random((n, 2)), pairs) / 4


def test_a_ring_is_drawn_round() -> None:
    place = layout(24, ring(24))
    radius = np.linalg.norm(place - place.mean(axis=0), axis=1)
    assert radius.min() > 0.95 * radius.max()


def turns_left(a: NDArray[np.floating], b: NDArray[np.floating], c: NDArray[np.floating]) -> bool:
    return bool((b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0]))


def test_a_planar_grid_of_few_buses_is_drawn_without_crossings() -> None:
    n, pairs = connections("ieee14")
    place = layout(n, pairs).astype(float)
    for one, other in combinations(pairs, 2):
        if set(one).isdisjoint(other):
            (a, b), (c, d) = place[one], place[other]
            parted = turns_left(a, b, c) != turns_left(a, b, d)
            assert not (parted and turns_left(c, d, a) != turns_left(c, d, b))


def test_most_of_the_square_is_used() -> None:
    x, y = layout(*connections("activsg500")).T
    quarters = np.histogram2d(x, y, bins=4, range=[[0, 1], [0, 1]])[0]
    assert (quarters > 0).sum() >= 14


def test_islands_lie_side_by_side() -> None:
    place = layout(50, np.concatenate([ring(30), ring(20, first=30)]))
    apart = np.linalg.norm(place[:30, None] - place[None, 30:], axis=-1)
    branch = np.linalg.norm(place[0] - place[1])
    assert apart.min() > branch
    boxes = [(part.min(axis=0), part.max(axis=0)) for part in (place[:30], place[30:])]
    assert any(boxes[a][1][k] < boxes[1 - a][0][k] for a in (0, 1) for k in (0, 1))


def test_buses_without_any_branch_are_all_apart() -> None:
    place = layout(9, NOTHING)
    assert len(np.unique(place, axis=0)) == 9


def test_one_bus_lies_in_the_middle_and_none_nowhere() -> None:
    np.testing.assert_allclose(layout(1, NOTHING), [[0.5, 0.5]], atol=1 / LATTICE)
    assert layout(0, NOTHING).shape == (0, 2)


def test_two_buses_lie_at_opposite_ends() -> None:
    place = layout(2, np.array([[0, 1]]))
    assert np.abs(place[0] - place[1]).max() == 1.0


def test_a_layout_lies_on_its_lattice() -> None:
    n, pairs = connections("ieee57")
    np.testing.assert_array_equal(
        np.round(layout(n, pairs) * LATTICE).astype(np.uint16), on_lattice(n, pairs)
    )


def test_buses_that_fall_on_one_point_get_neighbouring_ones() -> None:
    points = _to_lattice(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]))
    assert len(np.unique(points, axis=0)) == 5
    assert points[:3].max() <= 1
    assert points[3:].min() >= LATTICE - 1


def test_a_branch_that_ends_nowhere_is_refused() -> None:
    with pytest.raises(CaseError, match="rows 0 to 3 of 3 buses; number the buses from 0 to 2"):
        layout(3, np.array([[0, 3]]))
