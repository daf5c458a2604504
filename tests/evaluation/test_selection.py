"""Which scenarios are kept: against all choices of small sets, known sets, and what must hold."""

from itertools import combinations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from powerphase.evaluation import (
    METHODS,
    energy_distance,
    energy_selection,
    energy_weights,
    forward_selection,
    k_medoids,
    kantorovich,
    nearest_weights,
)

Array = NDArray[np.float64]
SIZE = 8


def problem(seed: int, n: int = SIZE, equal: bool = False) -> tuple[Array, Array, Array]:
    """Random points, their distances and their weights."""
    random = np.random.default_rng(seed)
    points, weights = random.standard_normal((n, 3)), random.random(n) + 0.05
    weights = np.full(n, 1 / n) if equal else weights / weights.sum()
    return points, cdist(points, points), weights


seeds = st.integers(0, 10_000)
counts = st.integers(1, SIZE)


@hypothesis.given(seeds, counts)
def test_k_medoids_are_between_forward_selection_and_the_best_choice(seed: int, k: int) -> None:
    _, distance, weights = problem(seed)
    best = min(
        kantorovich(distance, weights, np.array(kept)) for kept in combinations(range(SIZE), k)
    )
    forward, medoids = (
        kantorovich(distance, weights, choose(distance, weights, k))
        for choose in (forward_selection, k_medoids)
    )
    assert best - 1e-12 <= medoids <= forward + 1e-12
    if k in (1, SIZE):
        assert forward == pytest.approx(best)


@hypothesis.given(seeds, st.integers(1, SIZE - 1))
def test_no_swap_lowers_the_cost_of_k_medoids(seed: int, k: int) -> None:
    _, distance, weights = problem(seed)
    kept = k_medoids(distance, weights, k)
    cost = kantorovich(distance, weights, kept)
    for out in kept:
        for new in set(range(SIZE)) - set(kept):
            swapped = np.array([new, *kept[kept != out]])
            assert kantorovich(distance, weights, swapped) >= cost * (1 - 1e-9)


@hypothesis.given(seeds, st.integers(1, SIZE - 1))
def test_no_swap_lowers_the_energy_distance_of_equally_likely_scenarios(seed: int, k: int) -> None:
    _, distance, weights = problem(seed)

    def cost(kept: NDArray[np.int64]) -> float:
        return energy_distance(distance, weights, kept, np.full(k, 1 / k))

    kept = energy_selection(distance, weights, k)
    for out in kept:
        for new in set(range(SIZE)) - set(kept):
            assert cost(np.array([new, *kept[kept != out]])) >= cost(kept) - 1e-9


def test_forward_selection_needs_no_swap_where_groups_are_far_apart() -> None:
    random = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 70.0]])
    points = (centres[:, None] + random.standard_normal((3, 10, 2))).reshape(30, 2)
    distance, weights = cdist(points, points), np.full(30, 1 / 30)
    for method in METHODS.values():
        kept = method.choose(distance, weights, 3)
        assert sorted(kept // 10) == [0, 1, 2]
        np.testing.assert_allclose(method.weigh(distance, weights, kept), 1 / 3, atol=0.02)


def test_swaps_leave_a_bad_start() -> None:
    # The middle is kept first, and no third scenario repairs that.
    points = np.array([[-10.0], [-9.0], [0.0], [9.0], [10.0]])
    distance, weights = cdist(points, points), np.full(5, 1 / 5)
    assert 2 in forward_selection(distance, weights, 2)
    kept = k_medoids(distance, weights, 2)
    assert 2 not in kept
    assert kantorovich(distance, weights, kept) < 0.75 * kantorovich(
        distance, weights, forward_selection(distance, weights, 2)
    )


@hypothesis.given(seeds, counts)
def test_the_best_weights_attain_the_kantorovich_distance(seed: int, k: int) -> None:
    # On a line, the Kantorovich distance of two weighted sets is known in closed form.
    points, _, weights = problem(seed)
    line = points[:, :1]
    distance = cdist(line, line)
    kept = k_medoids(distance, weights, k)
    new = nearest_weights(distance, weights, kept)
    expected = wasserstein_distance(line[:, 0], line[kept, 0], weights, new)
    assert kantorovich(distance, weights, kept) == pytest.approx(expected, abs=1e-12)


@hypothesis.given(seeds, st.integers(2, SIZE), seeds)
def test_no_other_weights_have_a_lower_energy_distance(seed: int, k: int, other: int) -> None:
    _, distance, weights = problem(seed)
    kept = energy_selection(distance, weights, k)
    fitted = energy_weights(distance, weights, kept)
    lowest = energy_distance(distance, weights, kept, fitted)
    for size in (0.01, 0.1, 1.0):
        changed = np.abs(fitted + size * np.random.default_rng(other).standard_normal(k))
        changed /= changed.sum()
        assert energy_distance(distance, weights, kept, changed) >= lowest - 1e-8


@pytest.mark.parametrize("name", METHODS)
@hypothesis.given(seeds, counts)
def test_weights_sum_to_1_and_scenarios_are_kept_once(name: str, seed: int, k: int) -> None:
    _, distance, weights = problem(seed)
    kept = METHODS[name].choose(distance, weights, k)
    new = METHODS[name].weigh(distance, weights, kept)
    assert len(set(kept)) == k
    assert (np.diff(kept) > 0).all()
    assert new.sum() == pytest.approx(1)
    assert (new >= 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_keeping_all_costs_nothing_and_keeps_the_weights(name: str) -> None:
    _, distance, weights = problem(1)
    kept = METHODS[name].choose(distance, weights, SIZE)
    new = METHODS[name].weigh(distance, weights, kept)
    np.testing.assert_array_equal(kept, np.arange(SIZE))
    np.testing.assert_allclose(new, weights, atol=1e-5)
    assert kantorovich(distance, weights, kept) == 0
    assert energy_distance(distance, weights, kept, new) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("name", METHODS)
def test_the_more_are_kept_the_less_it_costs(name: str) -> None:
    method, (_, distance, weights) = METHODS[name], problem(2, n=40, equal=True)
    costs = []
    for k in (1, 2, 5, 10, 20, 40):
        kept = method.choose(distance, weights, k)
        if name == "energy":
            new = method.weigh(distance, weights, kept)
            costs.append(energy_distance(distance, weights, kept, new))
        else:
            costs.append(kantorovich(distance, weights, kept))
    assert (np.diff(costs) < 0).all()


@pytest.mark.parametrize("name", ["kmedoids", "forward"])
def test_copies_are_never_both_kept(name: str) -> None:
    points, _, weights = problem(3)
    points, weights = np.concatenate([points, points]), np.tile(weights / 2, 2)
    kept = METHODS[name].choose(cdist(points, points), weights, SIZE)
    assert sorted(kept % SIZE) == list(range(SIZE))


def test_the_weights_of_copies_of_least_energy_distance_are_those_of_one() -> None:
    points, distance, weights = problem(4)
    kept = np.array([0, 2, 5])
    expected = energy_weights(distance, weights, kept)
    points = np.concatenate([points, points[kept]])
    twice = np.array([0, 2, 5, 8, 9, 10])
    fitted = energy_weights(cdist(points, points), np.append(weights, np.zeros(3)), twice)
    np.testing.assert_allclose(fitted[:3] + fitted[3:], expected, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_scenarios_without_weight_change_no_choice(name: str) -> None:
    points, distance, weights = problem(3)
    expected = METHODS[name].choose(distance, weights, 3)
    far = np.concatenate([points, 100 + points])
    kept = METHODS[name].choose(cdist(far, far), np.append(weights, np.zeros(SIZE)), 3)
    np.testing.assert_array_equal(kept, expected)
