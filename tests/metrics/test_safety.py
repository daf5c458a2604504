"""Voltage scores against the paper's formulas, scoringrules and worked examples."""

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from powerphase import metrics
from powerphase.metrics import voltage_points
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import BACKENDS, Example, example, score_points

COUNTS = [1, 2, 3, 7, 16, 31, 70]
DTYPES = [torch.float32, torch.float64]
FORMS = [(equal, tied) for equal in (True, False) for tied in (True, False)]

both_backends = pytest.mark.parametrize("backend", BACKENDS)


def voltages(n_scenarios: int, equal: bool, tied: bool) -> Example:
    case = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied)
    return Example(case.scenarios.of_channels(slice(2, None, 4)), case.target[..., 2::4])


def points_of(case: Example, backend: str) -> dict[str, Tensor]:
    return score_points(voltage_points, case.scenarios, case.target, backend)


def numbers_of(case: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return case.scenarios.values.numpy(), case.scenarios.weights.numpy(), case.target.numpy()


def one_voltage(values: list[float], weights: list[float], truth: float) -> Example:
    scenarios = Scenarios(
        torch.tensor(values, dtype=torch.float64)[None, :, None, None],
        torch.tensor(weights, dtype=torch.float64)[None, :, None],
    )
    return Example(scenarios, torch.full((1, 1, 1), truth, dtype=torch.float64))


@both_backends
@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_voltage_scores_follow_their_definitions(
    n_scenarios: int, equal: bool, tied: bool, backend: str
) -> None:
    case = voltages(n_scenarios, equal, tied)
    actual = points_of(case, backend)
    for name, definition in naive.ON_VOLTAGES.items():
        expected = naive.pointwise(definition, *numbers_of(case))
        np.testing.assert_allclose(
            actual[name].numpy(), expected, rtol=1e-11, atol=1e-14, err_msg=name
        )


# Scenarios 0.93, 1.00 and 1.08 with 0.2, 0.5 and 0.3: δ is 0.02, 0 and 0.03, and 0.2 + 0.3 = 0.5
# of the weight violates.
BY_HAND = {
    # Target 0.94, which violates by 0.01.
    0.94: {
        "safety_mbrier": 0.5,  # 0.2·0 + 0.5·1 + 0.3·0
        "brier": 0.25,  # (0.5 - 1)²
        "necv": 0.013,  # 0.2·0.02 + 0.3·0.03
        "cvar_0.1": 0.03,  # the worst of three
        "excursion_bias": 0.003,  # 0.013 - 0.01
        "excursion_error": 0.003,
        # -0.02, 0 and 0.03 against -0.01: Σ w|x - z| = 0.2·0.01 + 0.5·0.01 + 0.3·0.04 = 0.019,
        # less Σ F(1 - F)Δ = 0.2·0.8·0.02 + 0.7·0.3·0.03 = 0.0095
        "twcrps": 0.0095,
        "violation_probability": 0.5,
        "violation": 1,
        "excursion": 0.01,
    },
    # Target 1.02, which does not.
    1.02: {
        "safety_mbrier": 0.5,  # 0.2·1 + 0.5·0 + 0.3·1
        "brier": 0.25,
        "necv": 0.013,
        "cvar_0.1": 0.03,
        "excursion_bias": 0.013,
        "excursion_error": 0.013,
        "twcrps": 0.0035,  # 0.2·0.02 + 0.3·0.03, less 0.0095
        "violation_probability": 0.5,
        "violation": 0,
        "excursion": 0,
    },
    # Happened: 1.10, which violates by 0.05.
    1.10: {
        "safety_mbrier": 0.5,
        "brier": 0.25,
        "necv": 0.013,
        "cvar_0.1": 0.03,
        "excursion_bias": -0.037,
        "excursion_error": 0.037,
        "twcrps": 0.0355,  # 0.2·0.07 + 0.5·0.05 + 0.3·0.02 = 0.045, less 0.0095
        "violation_probability": 0.5,
        "violation": 1,
        "excursion": 0.05,
    },
}


@both_backends
@pytest.mark.parametrize("truth", BY_HAND)
def test_scores_by_hand(truth: float, backend: str) -> None:
    actual = points_of(one_voltage([1.08, 0.93, 1.00], [0.3, 0.2, 0.5], truth), backend)
    assert {name: points.item() for name, points in actual.items()} == pytest.approx(BY_HAND[truth])


@both_backends
def test_cvar_averages_the_worst_tenth_of_the_scenarios_rounded_up(backend: str) -> None:
    """Of eleven scenarios the worst two, 0.04 below and 0.02 above, ignoring weights."""
    values = [0.91, *[1.0] * 8, 1.06, 1.07]
    weights = [0.0, *[0.125] * 8, 0.0, 0.0]
    actual = points_of(one_voltage(values, weights, 1.0), backend)["cvar_0.1"]
    assert actual.item() == pytest.approx(0.03)
    # Of ten scenarios only the worst.
    actual = points_of(one_voltage(values[:-1], weights[:-1], 1.0), backend)["cvar_0.1"]
    assert actual.item() == pytest.approx(0.04)


@both_backends
@pytest.mark.parametrize("n_scenarios", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_twcrps_equals_scoringrules(
    n_scenarios: int, equal: bool, tied: bool, backend: str
) -> None:
    case = voltages(n_scenarios, equal, tied)
    values, weights, target = numbers_of(case)
    expected = scoringrules.twcrps_ensemble(
        target,
        values,
        m_axis=1,
        ens_w=None if equal else np.broadcast_to(weights[:, :, None], values.shape),
        v_func=lambda x: np.minimum(x, 0.95) + np.maximum(x, 1.05),
    )
    actual = points_of(case, backend)["twcrps"].numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-14)


@both_backends
@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize("equal", [True, False])
def test_safety_mbrier_is_the_absolute_error_of_the_probability(
    n_scenarios: int, equal: bool, backend: str
) -> None:
    """The Brier score is its square, so never larger."""
    case = voltages(n_scenarios, equal, tied=False)
    outside = (case.scenarios.values < 0.95) | (case.scenarios.values > 1.05)
    probability = (case.scenarios.weights.unsqueeze(2) * outside).sum(1)
    happened = ((case.target < 0.95) | (case.target > 1.05)).double()
    actual = points_of(case, backend)
    expected = (probability - happened).abs()
    torch.testing.assert_close(actual["safety_mbrier"], expected, rtol=1e-12, atol=1e-15)
    assert (actual["brier"] <= actual["safety_mbrier"]).all()
    brier = scoringrules.brier_score(happened.numpy(), probability.clamp(max=1).numpy())
    np.testing.assert_allclose(actual["brier"].numpy(), brier, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_edges_belong_to_the_band_and_the_next_numbers_do_not(dtype: torch.dtype) -> None:
    edges = torch.tensor([0.95, 1.05], dtype=dtype)
    beyond = torch.nextafter(edges, torch.tensor([0.0, 2.0], dtype=dtype))
    assert metrics.violates(edges).tolist() == [0, 0]
    assert metrics.violates(beyond).tolist() == [1, 1]
    assert metrics.signed_excursion(edges).tolist() == [0, 0]
    assert metrics.signed_excursion(beyond).sign().tolist() == [-1, 1]


@both_backends
@pytest.mark.parametrize("dtype", DTYPES)
def test_scenarios_on_the_edges_are_inside_the_band(dtype: torch.dtype, backend: str) -> None:
    edges = torch.tensor([0.95, 1.05], dtype=dtype)
    beyond = torch.nextafter(edges, torch.tensor([0.0, 2.0], dtype=dtype))
    target = torch.ones((1, 1, 1), dtype=dtype)
    for values, probability in [(edges, 0), (beyond, 1)]:
        case = Example(Scenarios.equal(values.reshape(1, 2, 1, 1)), target)
        assert points_of(case, backend)["violation_probability"].item() == probability


@both_backends
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_scenarios", [3, 7, 20, 100, 625])
def test_a_violation_probability_is_at_most_one(
    n_scenarios: int, dtype: torch.dtype, backend: str
) -> None:
    scenarios = Scenarios.equal(torch.full((1, n_scenarios, 1, 1), 0.9, dtype=dtype))
    case = Example(scenarios, torch.ones((1, 1, 1), dtype=dtype))
    actual = points_of(case, backend)["violation_probability"].item()
    assert actual <= 1
    assert actual == pytest.approx(1, abs=1e-5)
