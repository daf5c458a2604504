"""Reliability: how often the band was left, by the probability that was forecast for it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import V
from powerphase.metrics.streaming import RELIABILITY_BINS
from powerphase.scenarios import Scenarios
from tests.metrics.examples import example, score


def voltages(*truths: float, violating: list[int], n_scenarios: int) -> tuple[Tensor, Tensor]:
    """Scenarios of one bus, of which so many are outside the band at each step, and the truth."""
    values = torch.ones((1, n_scenarios, len(truths), 4), dtype=torch.float64)
    for step, count in enumerate(violating):
        values[0, :count, step, V] = 0.9
    target = torch.ones((1, len(truths), 4), dtype=torch.float64)
    target[0, :, V] = torch.tensor(truths)
    return values, target


def test_reliability_by_hand() -> None:
    values, target = voltages(1.0, 0.9, 1.1, 1.0, 0.9, violating=[0, 0, 1, 1, 4], n_scenarios=4)
    found = score(Scenarios.equal(values), target).reliability
    assert found.shape == (RELIABILITY_BINS + 1, 3)
    # Never forecast: two points, of which one violated. A probability of 1/4 is the upper end of
    # bin 5: two points, of which one violated. Certain: one point, and so it was.
    wanted = {0: [2, 0, 0.5], 5: [2, 0.25, 0.5], RELIABILITY_BINS: [1, 1, 1]}
    for number, row in enumerate(found.tolist()):
        nothing = [0, np.nan, np.nan]
        np.testing.assert_allclose(row, wanted.get(number, nothing), err_msg=str(number))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_scenarios", [20, 100, 180])
def test_a_probability_at_the_edge_of_a_bin_belongs_to_the_lower_one(
    n_scenarios: int, dtype: torch.dtype
) -> None:
    """Whatever the rounding of the weights: 7 of 20 scenarios are 35 % and no more."""
    counts = [n_scenarios * k // RELIABILITY_BINS for k in range(RELIABILITY_BINS + 1)]
    values, target = voltages(*[1.0] * len(counts), violating=counts, n_scenarios=n_scenarios)
    weights = torch.full((1, n_scenarios, 4), 1 / n_scenarios, dtype=dtype)
    found = score(Scenarios(values.to(dtype), weights), target.to(dtype)).reliability
    assert found[:, 0].tolist() == [1] * (RELIABILITY_BINS + 1)


@pytest.mark.parametrize("equal", [True, False])
def test_reliability_counts_every_voltage_once(equal: bool) -> None:
    made = example(7, n_scenarios=30, horizon=20, equal=equal)
    card = score(made.scenarios, made.target)
    points, probability, violated = np.nan_to_num(card.reliability).T
    n_voltages = made.target[..., V::4].numel()
    assert points.sum() == n_voltages
    assert (points * probability).sum() / n_voltages == pytest.approx(card["violation_probability"])
    assert (points * violated).sum() / n_voltages == pytest.approx(card["violation"])
    edges = np.arange(RELIABILITY_BINS + 1) / RELIABILITY_BINS
    there = points > 0
    assert (probability[there] <= edges[there] + 1e-9).all()
    assert (probability[1:][there[1:]] > edges[:-1][there[1:]]).all()
