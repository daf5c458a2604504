"""CRPS and related scores against scoringrules, sums over all pairs, and worked examples."""

from functools import partial

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from powerphase.metrics import channel_points
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import BACKENDS, Example, example, score_points

COUNTS = [1, 2, 3, 7, 16, 100]
FORMS = [(equal, tied) for equal in (True, False) for tied in (True, False)]

assert_close = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-14)

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def points_of(case: Example, backend: str) -> dict[str, Tensor]:
    return score_points(channel_points, case.scenarios, case.target, backend)


def numbers_of(case: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return case.scenarios.values.numpy(), case.scenarios.weights.numpy(), case.target.numpy()


def by_hand(truth: float = 0.94) -> Example:
    values = torch.tensor([1.08, 0.93, 1.00], dtype=torch.float64).reshape(1, 3, 1, 1)
    weights = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64).reshape(1, 3, 1)
    target = torch.full((1, 1, 1), truth, dtype=torch.float64)
    return Example(Scenarios(values, weights), target)


@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_crps_equals_scoringrules(n_scenarios: int, equal: bool, tied: bool, backend: str) -> None:
    case = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied)
    values, weights, target = numbers_of(case)
    spread = None if equal else np.broadcast_to(weights[:, :, None], values.shape)
    actual = points_of(case, backend)["crps"]
    for estimator in ("nrg", "qd", "int"):
        expected = scoringrules.crps_ensemble(
            target, values, m_axis=1, ens_w=spread, estimator=estimator
        )
        assert_close(actual, expected)


@pytest.mark.parametrize("n_scenarios", COUNTS[:-1])
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_crps_equals_the_sum_over_all_pairs(
    n_scenarios: int, equal: bool, tied: bool, backend: str
) -> None:
    case = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied, n_buses=1)
    actual = points_of(case, backend)["crps"]
    assert_close(
        actual,
        naive.pointwise(naive.crps_by_pairs, *numbers_of(case)),
    )
    assert_close(actual, naive.pointwise(naive.crps, *numbers_of(case)))


def test_crps_in_single_precision_differs_only_by_rounding(backend: str) -> None:
    case = example(5, n_scenarios=100, horizon=20, n_buses=10)
    single = Scenarios(case.scenarios.values.float(), case.scenarios.weights.float())
    actual = points_of(Example(single, case.target.float()), backend)["crps"]
    assert actual.dtype == torch.float32
    # Relative to the scenarios, not to the score, which is a difference of such numbers.
    expected = points_of(case, backend)["crps"]
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=2e-6)


def test_crps_by_hand(backend: str) -> None:
    # Σ w|x − z| = 0.2·0.01 + 0.5·0.06 + 0.3·0.14 = 0.074
    # Σ F(1 − F)Δ = 0.2·0.8·0.07 + 0.7·0.3·0.08   = 0.028
    assert points_of(by_hand(), backend)["crps"].item() == pytest.approx(0.046, rel=1e-12)


@pytest.mark.parametrize("n_scenarios", COUNTS[1:])
@pytest.mark.parametrize("tied", [True, False])
def test_fair_crps_equals_scoringrules(n_scenarios: int, tied: bool, backend: str) -> None:
    case = example(n_scenarios, n_scenarios=n_scenarios, equal=True, tied=tied)
    values, _, target = numbers_of(case)
    expected = scoringrules.crps_ensemble(target, values, m_axis=1, estimator="fair")
    assert_close(points_of(case, backend)["fair_crps"], expected)


def test_fair_crps_equals_the_sum_over_pairs_of_different_samples(backend: str) -> None:
    case = example(6, equal=True)
    expected = naive.pointwise(naive.fair_crps, *numbers_of(case))
    assert_close(points_of(case, backend)["fair_crps"], expected)


def test_fair_crps_of_two_samples_by_hand(backend: str) -> None:
    values = torch.tensor([0.0, 4.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    case = Example(Scenarios.equal(values), torch.ones((1, 1, 1), dtype=torch.float64))
    # Distances to 1 are 1 and 3, their mean 2; CRPS subtracts 4/4, fair CRPS 4/2.
    actual = points_of(case, backend)
    assert actual["crps"].item() == 1
    assert actual["fair_crps"].item() == 0


def test_squared_error_by_hand(backend: str) -> None:
    # 0.2·0.93 + 0.5·1.00 + 0.3·1.08 = 1.01, which is 0.07 off
    assert points_of(by_hand(), backend)["mse"].item() == pytest.approx(0.0049, rel=1e-12)


def test_coverage_and_width_by_hand(backend: str) -> None:
    # Both ends have a weight of at least 0.1, so the interval is [0.93, 1.08], ends included.
    assert points_of(by_hand(), backend)["width_80"].item() == pytest.approx(0.15, rel=1e-12)
    for truth, covered in [(0.94, 1), (0.93, 1), (1.08, 1), (0.92, 0), (1.09, 0)]:
        assert points_of(by_hand(truth), backend)["coverage_80"].item() == covered


@pytest.mark.parametrize(("equal", "tied"), FORMS)
@pytest.mark.parametrize("n_scenarios", [1, 11])
def test_other_scores_follow_their_definitions(
    n_scenarios: int, equal: bool, tied: bool, backend: str
) -> None:
    case = example(7, n_scenarios=n_scenarios, equal=equal, tied=tied)
    actual = points_of(case, backend)
    for name in ("mse", "coverage_80", "width_80"):
        assert_close(
            actual[name],
            naive.pointwise(naive.ON_CHANNELS[name], *numbers_of(case)),
        )


def samples_of_the_true_distribution(n_scenarios: int) -> Example:
    """Standard normal targets, and samples of the same distribution."""
    random = np.random.default_rng(n_scenarios)
    values = torch.from_numpy(random.normal(size=(1, n_scenarios, 100, 250)))
    return Example(Scenarios.equal(values), torch.from_numpy(random.normal(size=(1, 100, 250))))


@pytest.mark.parametrize("n_scenarios", [2, 16, 100])
def test_fair_crps_does_not_depend_on_the_number_of_samples_but_crps_does(
    n_scenarios: int, backend: str
) -> None:
    """Infinitely many samples would score 1/√π."""
    actual, limit = (
        points_of(samples_of_the_true_distribution(n_scenarios), backend),
        1 / np.sqrt(np.pi),
    )
    assert actual["fair_crps"].mean() / limit == pytest.approx(1, abs=0.02)
    expected = 1 + 1 / n_scenarios  # 6 % above the limit for 16 samples, 1 % for 100
    assert actual["crps"].mean() / limit == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("n_scenarios", [7, 16, 100])
def test_coverage_of_samples_of_the_true_distribution_follows_from_ranks(
    n_scenarios: int, backend: str
) -> None:
    """The target has any of M + 1 ranks with equal probability; ⌈M/10⌉ at each end are outside."""
    actual = (
        points_of(samples_of_the_true_distribution(n_scenarios), backend)["coverage_80"]
        .mean()
        .item()
    )
    outside = 2 * -(-n_scenarios // 10)
    assert actual == pytest.approx(1 - outside / (n_scenarios + 1), abs=0.01)
