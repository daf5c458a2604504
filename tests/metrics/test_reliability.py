"""Reliability: how often voltages left the band, by forecast probability."""

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import V
from powerphase.metrics import RELIABILITY_BINS
from powerphase.scenarios import Scenarios
from tests.metrics.examples import example, score


def voltages(*truths: float, violating: list[int], n_scenarios: int) -> tuple[Tensor, Tensor]:
    """Scenarios of one bus, with a given number outside the band at each step, and the target."""
    values = torch.ones((1, n_scenarios, len(truths), 4), dtype=torch.float64)
    for step, count in enumerate(violating):
        values[0, :count, step, V] = 0.9
    target = torch.ones((1, len(truths), 4), dtype=torch.float64)
    target[0, :, V] = torch.tensor(truths)
    return values, target


def test_reliability_by_hand() -> None:
    values, target = voltages(1.0, 0.9, 1.1, 1.0, 0.9, violating=[0, 0, 1, 1, 4], n_scenarios=4)
    actual = score(Scenarios.equal(values), target).reliability
    assert actual.shape == (RELIABILITY_BINS + 1, 3)
    # Probability 0: two points, one violation. Probability 1/4, the upper edge of bin 5: two
    # points, one violation. Probability 1: one point, one violation.
    expected: dict[int, list[float]] = {
        0: [2, 0, 0.5],
        5: [2, 0.25, 0.5],
        RELIABILITY_BINS: [1, 1, 1],
    }
    for number, row in enumerate(actual.tolist()):
        nothing = [0, np.nan, np.nan]
        np.testing.assert_allclose(row, expected.get(number, nothing), err_msg=str(number))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_scenarios", [20, 100, 180])
def test_a_probability_at_the_edge_of_a_bin_belongs_to_the_lower_one(
    n_scenarios: int, dtype: torch.dtype
) -> None:
    """However the weights are rounded: 7 of 20 scenarios are exactly 35 %."""
    counts = [n_scenarios * k // RELIABILITY_BINS for k in range(RELIABILITY_BINS + 1)]
    values, target = voltages(*[1.0] * len(counts), violating=counts, n_scenarios=n_scenarios)
    weights = torch.full((1, n_scenarios, 4), 1 / n_scenarios, dtype=dtype)
    actual = score(Scenarios(values.to(dtype), weights), target.to(dtype)).reliability
    assert actual[:, 0].tolist() == [1] * (RELIABILITY_BINS + 1)


@pytest.mark.parametrize("equal", [True, False])
def test_reliability_counts_every_voltage_once(equal: bool) -> None:
    case = example(7, n_scenarios=30, horizon=20, equal=equal)
    card = score(case.scenarios, case.target)
    points, probability, violated = np.nan_to_num(card.reliability).T
    n_voltages = case.target[..., V::4].numel()
    assert points.sum() == n_voltages
    assert (points * probability).sum() / n_voltages == pytest.approx(card["violation_probability"])
    assert (points * violated).sum() / n_voltages == pytest.approx(card["violation"])
    edges = np.arange(RELIABILITY_BINS + 1) / RELIABILITY_BINS
    filled = points > 0
    assert (probability[filled] <= edges[filled] + 1e-9).all()
    assert (probability[1:][filled[1:]] > edges[:-1][filled[1:]]).all()
