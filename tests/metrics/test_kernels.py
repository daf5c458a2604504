"""CPU kernels: the sorting network sorts, and torch computes the same sums."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from powerphase import metrics
from powerphase.metrics import LANES, sorting_network
from powerphase.scenarios import Scenarios
from tests.metrics.examples import PretendGpuTensor

PointSums = Callable[[Scenarios, torch.Tensor], torch.Tensor]

COUNTS = [*range(1, 41), 100, 625]
WIDTHS = (1, 2, LANES - 1, LANES, LANES + 1, 2 * LANES + 5)


def columns(
    n_scenarios: int, dtype: torch.dtype, equal: bool, tied: bool
) -> tuple[Scenarios, torch.Tensor]:
    """Voltages in columns that fill zero, one or two rows of lanes, with a remainder."""
    random = np.random.default_rng(n_scenarios)
    n_channels = WIDTHS[n_scenarios % len(WIDTHS)]
    states = random.normal(1, 0.05, size=(1, n_scenarios + 1, 3, n_channels))
    weights = random.dirichlet(np.ones(n_scenarios), size=n_channels).T
    if equal:
        weights[:] = 1 / n_scenarios
    values = torch.from_numpy(states.round(2) if tied else states).to(dtype)
    return Scenarios(values[:, 1:], torch.from_numpy(weights)[None].to(dtype)), values[:, 0]


@pytest.mark.parametrize("n", range(1, 13))
def test_the_sorting_network_sorts_all_sequences_of_zeros_and_ones(n: int) -> None:
    """By the 0-1 principle, it then sorts every sequence of numbers."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    ones = bits.sum(axis=1)
    for i, j in sorting_network(n).tolist():
        assert i < j < n
        bits[:, i], bits[:, j] = bits[:, [i, j]].min(axis=1), bits[:, [i, j]].max(axis=1)
    assert all((bits[:, i] <= bits[:, j]).all() for i, j in pairwise(range(n)))
    assert np.array_equal(bits.sum(axis=1), ones)


@pytest.mark.parametrize("n", [13, 40, 100, 625])
def test_the_sorting_network_sorts_random_numbers(n: int) -> None:
    numbers = np.random.default_rng(n).integers(0, n, size=(200, n))
    expected = np.sort(numbers, axis=1)
    for i, j in sorting_network(n).tolist():
        numbers[:, i], numbers[:, j] = (
            numbers[:, [i, j]].min(axis=1),
            numbers[:, [i, j]].max(axis=1),
        )
    assert np.array_equal(numbers, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("equal", "tied"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("sums", [metrics.channel_sums, metrics.voltage_sums])
def test_kernel_sums_equal_torch_sums(
    sums: PointSums, dtype: torch.dtype, equal: bool, tied: bool
) -> None:
    """For every number of scenarios, also where columns do not fill all lanes."""
    # For numbers near 1, with 625 roundings in single precision.
    atol = 1e-5 if dtype == torch.float32 else 1e-13
    for n_scenarios in COUNTS:
        scenarios, target = columns(n_scenarios, dtype, equal, tied)
        actual = sums(scenarios, target)
        expected = sums(scenarios, target.as_subclass(PretendGpuTensor)).as_subclass(torch.Tensor)
        assert actual.dtype == expected.dtype == dtype
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol, msg=str(n_scenarios))


@pytest.mark.parametrize("equal", [True, False])
def test_the_ends_of_the_central_interval_are_scenarios(equal: bool) -> None:
    """Exactly: sorting does not change a value."""
    for n_scenarios in COUNTS:
        scenarios, target = columns(n_scenarios, torch.float32, equal, tied=False)
        for end in metrics.channel_sums(scenarios, target)[3:]:
            assert (scenarios.values[0] == end).any(0).all()


def test_views_give_the_same_sums_as_copies_and_are_not_modified() -> None:
    scenarios, target = columns(16, torch.float64, equal=False, tied=False)
    view = Scenarios(
        scenarios.values.movedim(1, 3).contiguous().movedim(3, 1),
        scenarios.weights.movedim(1, 2).contiguous().movedim(2, 1),
    )
    assert not view.values.is_contiguous()
    before = view.values.clone(), view.weights.clone(), target.clone()
    for sums in (metrics.channel_sums, metrics.voltage_sums):
        assert torch.equal(sums(view, target), sums(scenarios, target))
        assert torch.equal(
            sums(view.of_channels(slice(1, 9)), target[..., 1:9]), sums(scenarios, target)[..., 1:9]
        )
    for now, then in zip((view.values, view.weights, target), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sums", [metrics.channel_sums, metrics.voltage_sums])
def test_gpu_sums_equal_cpu_sums(sums: PointSums) -> None:
    for n_scenarios in COUNTS:
        scenarios, target = columns(n_scenarios, torch.float64, equal=False, tied=False)
        on_gpu = sums(scenarios.like(target.to("cuda")), target.to("cuda")).cpu()
        torch.testing.assert_close(on_gpu, sums(scenarios, target), rtol=0, atol=1e-13)
