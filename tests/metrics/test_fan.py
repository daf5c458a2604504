"""Fans: sorted scenarios with their weights, and the central interval."""

import numpy as np
import pytest
import torch

from powerphase import metrics
from powerphase.metrics import Fan, has_equal_weights
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import BACKENDS, example, of_window


def interval(scenarios: Scenarios, backend: str) -> list[np.ndarray]:
    """Both ends of the central interval at every point."""
    if backend == "torch":
        return [end.numpy() for end in Fan.of(scenarios).central_interval]
    windows = [of_window(scenarios, window) for window in range(len(scenarios.values))]
    ends = [metrics.channel_sums(window, window.values[:, 0])[3:] for window in windows]
    return list(np.stack(ends, axis=1))


@pytest.mark.parametrize("equal", [True, False])
def test_a_fan_is_sorted_and_weights_stay_with_their_values(equal: bool) -> None:
    case = example(1, equal=equal).scenarios
    fan = Fan.of(case)
    expected, order = case.values.sort(1)
    assert torch.equal(fan.values, expected)
    weights = case.normalised_weights.unsqueeze(2).expand_as(case.values).gather(1, order)
    assert torch.equal(fan.weights.expand_as(weights), weights)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_interval_leaves_out_less_than_a_tenth_of_equal_scenarios_at_each_end(
    dtype: torch.dtype, backend: str
) -> None:
    for m in [*range(1, 121), 300, 500, 625, 1000]:
        values = torch.arange(m, dtype=dtype)[None, :, None, None]
        left_out = (m - 1) // 10
        actual = interval(Scenarios.equal(values), backend)
        assert [end.item() for end in actual] == [left_out, m - 1 - left_out], m


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_interval_of_weighted_scenarios_uses_weights(backend: str) -> None:
    values = torch.tensor([5.0, 1, 4, 2, 3]).reshape(1, 5, 1, 1)
    # Sorted, 1 to 5 have weights 0.05, 0.05, 0.30, 0.52 and 0.08: a tenth is reached at 2 from
    # below and at 4 from above, since 0.08 is not enough.
    weights = torch.tensor([0.08, 0.05, 0.52, 0.05, 0.30]).reshape(1, 5, 1)
    assert [end.item() for end in interval(Scenarios(values, weights), backend)] == [2, 4]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_scenarios", [1, 2, 3, 10, 20, 31])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_the_interval_follows_its_definition(
    backend: str, n_scenarios: int, equal: bool, tied: bool
) -> None:
    case = example(1, n_scenarios=n_scenarios, equal=equal, tied=tied).scenarios
    values, weights = case.values.numpy(), case.weights.numpy()
    low, high = interval(case, backend)
    for b, h, c in np.ndindex(*low.shape):
        expected = naive.central_interval(values[b, :, h, c].tolist(), weights[b, :, c].tolist())
        assert [low[b, h, c], high[b, h, c]] == list(expected)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("channels", [slice(None), slice(1)])
def test_the_expectation_of_a_fan_is_the_weighted_mean(equal: bool, channels: slice) -> None:
    scenarios = example(2, equal=equal).scenarios.of_channels(channels)
    expected = (scenarios.values * scenarios.weights.unsqueeze(2)).sum(1)
    fan = Fan.of(scenarios)
    torch.testing.assert_close(fan.expect(fan.values), expected)


@pytest.mark.parametrize("of_values", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_weights", [torch.float32, torch.float64])
@pytest.mark.parametrize("equal", [True, False])
def test_values_and_weights_may_differ_in_precision(
    equal: bool, of_values: torch.dtype, of_weights: torch.dtype
) -> None:
    case = example(2, n_windows=1, n_scenarios=4, equal=equal)
    scenarios = Scenarios(
        case.scenarios.values.to(of_values), case.scenarios.weights.to(of_weights)
    )
    expected = (case.scenarios.values * case.scenarios.weights.unsqueeze(2)).sum(1)
    fan = Fan.of(scenarios)
    torch.testing.assert_close(fan.expect(fan.values).double(), expected, rtol=1e-5, atol=1e-6)
    bias = metrics.channel_sums(scenarios, case.target)[2]
    torch.testing.assert_close(bias.double(), (expected - case.target)[0], rtol=1e-5, atol=1e-6)


def test_weights_are_equal_only_if_all_of_them_are() -> None:
    values = torch.zeros(2, 2, 1, 3)
    assert has_equal_weights(Scenarios.equal(values))
    weights = torch.full((2, 2, 3), 0.5)
    weights[1, :, 2] = torch.tensor([0.5 + 2**-20, 0.5 - 2**-20])
    assert not has_equal_weights(Scenarios(values, weights))
