"""The rules by which answers become distributions and scenarios."""

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.adapters import Marginals, read_answer, recent_days
from powerphase.errors import ForecastError

HORIZON = 4
SERIES = 3


def values(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_samples_become_scenarios_of_equal_weight() -> None:
    samples = values(SERIES, 5, HORIZON)
    scenarios = read_answer(samples, SERIES, HORIZON).scenarios()
    assert torch.equal(scenarios.values[0], torch.from_numpy(samples).permute(1, 2, 0))
    assert torch.allclose(scenarios.weights, torch.tensor(1 / 5))


def test_a_mean_is_a_single_scenario() -> None:
    mean = values(SERIES, HORIZON)
    scenarios = read_answer(mean, SERIES, HORIZON).scenarios()
    assert torch.equal(scenarios.values[0, 0], torch.from_numpy(mean.T))
    assert scenarios.weights.unique().tolist() == [1.0]


def test_quantiles_have_the_weight_of_their_bins_and_nothing_lies_beyond_them() -> None:
    ascending = np.sort(values(3, SERIES, HORIZON), axis=0)
    answer = dict(zip((0.9, 0.1, 0.4), ascending[[2, 0, 1]], strict=True))  # in any order
    marginals = read_answer(answer, SERIES, HORIZON)
    scenarios = marginals.scenarios()
    assert marginals.levels == (0.1, 0.4, 0.9)
    assert scenarios.weights[0, :, 0].tolist() == pytest.approx([0.25, 0.4, 0.35])
    assert torch.equal(scenarios.values[0], torch.from_numpy(ascending).permute(0, 2, 1))


def test_quantiles_of_a_normal_distribution_are_continued_with_normal_tails() -> None:
    normal = NormalDist(2.0, 3.0)
    answer = {level: np.full((1, 1), normal.inv_cdf(level)) for level in (0.1, 0.3, 0.9)}
    count = 50
    filled = read_answer(answer, 1, 1).quantiles(count)[:, 0, 0]
    expected = [normal.inv_cdf((m + 0.5) / count) for m in range(count)]
    assert filled.tolist() == pytest.approx(expected, abs=1e-5)


def test_as_many_quantiles_as_samples_are_the_sorted_samples() -> None:
    samples = values(SERIES, 6, HORIZON)
    quantiles = read_answer(samples, SERIES, HORIZON).quantiles(6)
    expected = torch.from_numpy(np.sort(samples, axis=1)).permute(1, 2, 0)
    assert torch.allclose(quantiles, expected)


def test_quantiles_ascend_however_many_there_are() -> None:
    marginals = read_answer(values(SERIES, 6, HORIZON), SERIES, HORIZON)
    for count in (2, 5, 40):
        assert (marginals.quantiles(count).diff(dim=0) >= 0).all()


@pytest.mark.parametrize(
    "answer",
    [
        values(SERIES, HORIZON + 1),
        values(SERIES + 1, 5, HORIZON),
        values(HORIZON),
        {0.1: values(SERIES, HORIZON), 0.9: values(SERIES, HORIZON - 1)},
        {0.0: values(SERIES, HORIZON)},
        {"mean": values(SERIES, HORIZON)},
        {},
        "samples",
        np.empty((SERIES, 0, HORIZON)),
    ],
)
def test_an_answer_of_the_wrong_form_raises(answer: Any) -> None:
    with pytest.raises(ForecastError, match="it answered"):
        read_answer(answer, SERIES, HORIZON)


def test_faults_name_the_series_that_has_them() -> None:
    samples = np.zeros((SERIES, 2, HORIZON), np.float32)
    samples[1, 0, 2] = np.nan
    assert [fault is None for fault in Marginals(samples, None).faults()] == [True, False, True]
    crossing = np.zeros((SERIES, 2, HORIZON), np.float32)
    crossing[2, 0, 1] = 1.0
    marginals = Marginals(crossing, (0.2, 0.8))
    assert [fault is None for fault in marginals.faults()] == [True, True, False]
    assert not any(marginals.rearranged().faults())
    assert Marginals(crossing, None).faults() == [None] * SERIES  # samples have no order


def test_recent_days_are_those_at_the_same_time_of_day() -> None:
    past = np.arange(3 * 96, dtype=np.float32)[None] + np.array([[0.0], [1000.0]], np.float32)
    like = Marginals(np.zeros((1, 3, 1), np.float32), None)
    filled = recent_days(past, 100, 96, like)
    assert filled.values.shape == (2, 3, 100)
    assert filled.values[:, 1, 5].tolist() == [96 + 5, 1096 + 5]  # the median of three days
    assert (filled.values[:, :, 96:] == filled.values[:, :, :4]).all()
    last = recent_days(past[:, :50], 4, 96, like)
    assert (last.values[0] == 49).all()
