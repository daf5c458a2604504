"""The sorting network of kernels, without a kernel."""

import pytest

from powerphase.metrics import sorting_network
from powerphase.models.framework import backward_partner, n_layers, partner


@pytest.mark.parametrize("m", range(2, 34))
def test_the_sorting_network_is_that_of_the_metrics(m: int) -> None:
    pairs = [(k, partner(m, layer, k)) for layer in range(n_layers(m)) for k in range(m)]
    assert [pair for pair in pairs if pair[0] < pair[1]] == [
        tuple(pair) for pair in sorting_network(m)
    ]


@pytest.mark.parametrize("m", range(2, 34))
def test_partners_are_mutual(m: int) -> None:
    """So that both of a pair agree, in whatever order they are visited."""
    for layer in range(n_layers(m)):
        partners = [partner(m, layer, k) for k in range(m)]
        assert all(0 <= other < m for other in partners)
        assert [partners[other] for other in partners] == list(range(m))
        step = n_layers(m) - 1 - layer
        assert [backward_partner(m, step, k) for k in range(m)] == partners
