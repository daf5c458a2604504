"""CRPS and its kin against scoringrules, all pairs of scenarios, and numbers worked by hand."""

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from powerphase.metrics.points import channel_points
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import WAYS, Example, example, score_points

COUNTS = [1, 2, 3, 7, 16, 100]
FORMS = [(equal, tied) for equal in (True, False) for tied in (True, False)]

TIGHT = {"rtol": 1e-11, "atol": 1e-14}

pytestmark = pytest.mark.parametrize("way", WAYS)


def points_of(made: Example, way: str) -> dict[str, Tensor]:
    return score_points(channel_points, made.scenarios, made.target, way)


def numbers_of(made: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return made.scenarios.values.numpy(), made.scenarios.weights.numpy(), made.target.numpy()


def by_hand(truth: float = 0.94) -> Example:
    values = torch.tensor([1.08, 0.93, 1.00], dtype=torch.float64).reshape(1, 3, 1, 1)
    weights = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64).reshape(1, 3, 1)
    target = torch.full((1, 1, 1), truth, dtype=torch.float64)
    return Example(Scenarios(values, weights), target)


@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_crps_is_that_of_scoringrules(n_scenarios: int, equal: bool, tied: bool, way: str) -> None:
    made = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied)
    values, weights, target = numbers_of(made)
    spread = None if equal else np.broadcast_to(weights[:, :, None], values.shape)
    found = points_of(made, way)["crps"]
    for estimator in ("nrg", "qd", "int"):
        wanted = scoringrules.crps_ensemble(
            target, values, m_axis=1, ens_w=spread, estimator=estimator
        )
        np.testing.assert_allclose(found, wanted, **TIGHT)


@pytest.mark.parametrize("n_scenarios", COUNTS[:-1])
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_crps_is_the_sum_over_all_pairs(
    n_scenarios: int, equal: bool, tied: bool, way: str
) -> None:
    made = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied, n_buses=1)
    found = points_of(made, way)["crps"]
    np.testing.assert_allclose(
        found, naive.pointwise(naive.crps_by_pairs, *numbers_of(made)), **TIGHT
    )
    np.testing.assert_allclose(found, naive.pointwise(naive.crps, *numbers_of(made)), **TIGHT)


def test_crps_in_single_precision_is_off_by_rounding_alone(way: str) -> None:
    made = example(5, n_scenarios=100, horizon=20, n_buses=10)
    single = Scenarios(made.scenarios.values.float(), made.scenarios.weights.float())
    found = points_of(Example(single, made.target.float()), way)["crps"]
    assert found.dtype == torch.float32
    # Relative to the scenarios and not to the score, which is a difference of such numbers.
    wanted = points_of(made, way)["crps"]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6)


def test_crps_by_hand(way: str) -> None:
    # Σ w|x − z| = 0.2·0.01 + 0.5·0.06 + 0.3·0.14 = 0.074
    # Σ F(1 − F)Δ = 0.2·0.8·0.07 + 0.7·0.3·0.08   = 0.028
    assert points_of(by_hand(), way)["crps"].item() == pytest.approx(0.046, rel=1e-12)


@pytest.mark.parametrize("n_scenarios", COUNTS[1:])
@pytest.mark.parametrize("tied", [True, False])
def test_fair_crps_is_that_of_scoringrules(n_scenarios: int, tied: bool, way: str) -> None:
    made = example(n_scenarios, n_scenarios=n_scenarios, equal=True, tied=tied)
    values, _, target = numbers_of(made)
    wanted = scoringrules.crps_ensemble(target, values, m_axis=1, estimator="fair")
    np.testing.assert_allclose(points_of(made, way)["fair_crps"], wanted, **TIGHT)


def test_fair_crps_is_the_sum_over_pairs_of_different_samples(way: str) -> None:
    made = example(6, equal=True)
    wanted = naive.pointwise(naive.fair_crps, *numbers_of(made))
    np.testing.assert_allclose(points_of(made, way)["fair_crps"], wanted, **TIGHT)


def test_fair_crps_of_two_samples_by_hand(way: str) -> None:
    values = torch.tensor([0.0, 4.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    made = Example(Scenarios.equal(values), torch.ones((1, 1, 1), dtype=torch.float64))
    # Distances to 1 are 1 and 3, their mean 2; all that CRPS takes off is 4/4, the fair one 4/2.
    found = points_of(made, way)
    assert found["crps"].item() == 1
    assert found["fair_crps"].item() == 0


def test_squared_error_by_hand(way: str) -> None:
    # 0.2·0.93 + 0.5·1.00 + 0.3·1.08 = 1.01, which is 0.07 off
    assert points_of(by_hand(), way)["mse"].item() == pytest.approx(0.0049, rel=1e-12)


def test_coverage_and_width_by_hand(way: str) -> None:
    # Both ends weigh a tenth or more, so the interval is [0.93, 1.08]; its ends belong to it.
    assert points_of(by_hand(), way)["width_80"].item() == pytest.approx(0.15, rel=1e-12)
    for truth, covered in [(0.94, 1), (0.93, 1), (1.08, 1), (0.92, 0), (1.09, 0)]:
        assert points_of(by_hand(truth), way)["coverage_80"].item() == covered


@pytest.mark.parametrize(("equal", "tied"), FORMS)
@pytest.mark.parametrize("n_scenarios", [1, 11])
def test_other_scores_are_what_their_definitions_say(
    n_scenarios: int, equal: bool, tied: bool, way: str
) -> None:
    made = example(7, n_scenarios=n_scenarios, equal=equal, tied=tied)
    found = points_of(made, way)
    for name in ("mse", "coverage_80", "width_80"):
        np.testing.assert_allclose(
            found[name], naive.pointwise(naive.ON_CHANNELS[name], *numbers_of(made)), **TIGHT
        )


def samples_of_the_truth(n_scenarios: int) -> Example:
    """Standard normal truths, and as many samples as asked for of the same distribution."""
    random = np.random.default_rng(n_scenarios)
    values = torch.from_numpy(random.normal(size=(1, n_scenarios, 100, 250)))
    return Example(Scenarios.equal(values), torch.from_numpy(random.normal(size=(1, 100, 250))))


@pytest.mark.parametrize("n_scenarios", [2, 16, 100])
def test_fair_crps_does_not_depend_on_the_number_of_samples_but_crps_does(
    n_scenarios: int, way: str
) -> None:
    """Infinitely many samples would score 1/√π."""
    found, limit = points_of(samples_of_the_truth(n_scenarios), way), 1 / np.sqrt(np.pi)
    assert found["fair_crps"].mean() / limit == pytest.approx(1, abs=0.02)
    wanted = 1 + 1 / n_scenarios  # 6 % too much for 16 samples, 1 % for 100
    assert found["crps"].mean() / limit == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("n_scenarios", [7, 16, 100])
def test_the_truth_as_one_sample_more_is_covered_by_rank(n_scenarios: int, way: str) -> None:
    """It is as likely to have any of M + 1 ranks, and ⌈M/10⌉ at each end are outside."""
    found = points_of(samples_of_the_truth(n_scenarios), way)["coverage_80"].mean().item()
    outside = 2 * -(-n_scenarios // 10)
    assert found == pytest.approx(1 - outside / (n_scenarios + 1), abs=0.01)
