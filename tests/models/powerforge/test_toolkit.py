"""The network that sorts scenarios, without a kernel around it."""

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase.models.powerforge.kernels.toolkit import backward_partner, n_layers, partner

EXHAUSTIVE = 10
"""So many values can be tried in all orders of noughts and ones, which is enough."""


def sorted_by_the_network(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows, each of which is sorted along its M values."""
    values = values.copy()
    m = values.shape[1]
    for layer in range(n_layers(m)):
        for k in range(m):
            other = partner(m, layer, k)
            if other > k:
                pair = values[:, [k, other]]
                values[:, k], values[:, other] = pair.min(1), pair.max(1)
    return values


@pytest.mark.parametrize("m", range(2, 34))
def test_every_number_of_values_is_sorted(m: int) -> None:
    rng = np.random.default_rng(m)
    if m <= EXHAUSTIVE:
        given = np.array(list(product([0.0, 1.0], repeat=m)))
    else:
        given = np.concatenate([rng.normal(size=(300, m)), rng.integers(0, 2, (3000, m))])
    np.testing.assert_array_equal(sorted_by_the_network(given), np.sort(given, axis=1))


@pytest.mark.parametrize("m", range(2, 34))
def test_partners_are_each_other_s(m: int) -> None:
    """So that both of a pair agree, in whatever order they are looked at."""
    for layer in range(n_layers(m)):
        partners = [partner(m, layer, k) for k in range(m)]
        assert all(0 <= other < m for other in partners)
        assert [partners[other] for other in partners] == list(range(m))
        step = n_layers(m) - 1 - layer
        assert [backward_partner(m, step, k) for k in range(m)] == partners


def test_the_network_is_as_deep_as_batcher_s() -> None:
    assert [n_layers(m) for m in (2, 3, 4, 5, 8, 9, 16, 17, 32, 33)] == [
        1, 3, 3, 6, 6, 10, 10, 15, 15, 21,
    ]  # fmt: skip
