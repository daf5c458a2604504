"""The voltage scores against the paper's formulas and against numbers worked by hand."""

import numpy as np
import pytest
import scoringrules
import torch
from torch import Tensor

from powerphase.metrics import safety
from powerphase.metrics.points import voltage_points
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import WAYS, Example, example, score_points

COUNTS = [1, 2, 3, 7, 16, 31, 70]
DTYPES = [torch.float32, torch.float64]
FORMS = [(equal, tied) for equal in (True, False) for tied in (True, False)]

both_ways = pytest.mark.parametrize("way", WAYS)


def voltages(n_scenarios: int, equal: bool, tied: bool) -> Example:
    made = example(n_scenarios, n_scenarios=n_scenarios, equal=equal, tied=tied)
    return Example(made.scenarios.of_channels(slice(2, None, 4)), made.target[..., 2::4])


def points_of(made: Example, way: str) -> dict[str, Tensor]:
    return score_points(voltage_points, made.scenarios, made.target, way)


def numbers_of(made: Example) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return made.scenarios.values.numpy(), made.scenarios.weights.numpy(), made.target.numpy()


def one_voltage(values: list[float], weights: list[float], truth: float) -> Example:
    scenarios = Scenarios(
        torch.tensor(values, dtype=torch.float64)[None, :, None, None],
        torch.tensor(weights, dtype=torch.float64)[None, :, None],
    )
    return Example(scenarios, torch.full((1, 1, 1), truth, dtype=torch.float64))


@both_ways
@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_scores_are_what_their_definitions_say(
    n_scenarios: int, equal: bool, tied: bool, way: str
) -> None:
    made = voltages(n_scenarios, equal, tied)
    found = points_of(made, way)
    for name, definition in naive.ON_VOLTAGES.items():
        wanted = naive.pointwise(definition, *numbers_of(made))
        np.testing.assert_allclose(
            found[name].numpy(), wanted, rtol=1e-11, atol=1e-14, err_msg=name
        )


# Scenarios 0.93, 1.00 and 1.08 with 0.2, 0.5 and 0.3: δ is 0.02, 0 and 0.03, and 0.2 + 0.3 = 0.5
# of the weight violates.
BY_HAND = {
    # Happened: 0.94, which violates by 0.01.
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
    # Happened: 1.02, which does not.
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


@both_ways
@pytest.mark.parametrize("truth", BY_HAND)
def test_scores_by_hand(truth: float, way: str) -> None:
    found = points_of(one_voltage([1.08, 0.93, 1.00], [0.3, 0.2, 0.5], truth), way)
    assert {name: points.item() for name, points in found.items()} == pytest.approx(BY_HAND[truth])


@both_ways
def test_cvar_averages_one_tenth_of_the_scenarios_rounded_up(way: str) -> None:
    """Of eleven scenarios the worst two, 0.04 below and 0.02 above, whatever their weights."""
    values = [0.91, *[1.0] * 8, 1.06, 1.07]
    weights = [0.0, *[0.125] * 8, 0.0, 0.0]
    found = points_of(one_voltage(values, weights, 1.0), way)["cvar_0.1"]
    assert found.item() == pytest.approx(0.03)
    # Ten scenarios: the worst alone.
    found = points_of(one_voltage(values[:-1], weights[:-1], 1.0), way)["cvar_0.1"]
    assert found.item() == pytest.approx(0.04)


@both_ways
@pytest.mark.parametrize("n_scenarios", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize(("equal", "tied"), FORMS)
def test_twcrps_is_that_of_scoringrules(
    n_scenarios: int, equal: bool, tied: bool, way: str
) -> None:
    made = voltages(n_scenarios, equal, tied)
    values, weights, target = numbers_of(made)
    wanted = scoringrules.twcrps_ensemble(
        target,
        values,
        m_axis=1,
        ens_w=None if equal else np.broadcast_to(weights[:, :, None], values.shape),
        v_func=lambda x: np.minimum(x, 0.95) + np.maximum(x, 1.05),
    )
    found = points_of(made, way)["twcrps"].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-14)


@both_ways
@pytest.mark.parametrize("n_scenarios", COUNTS)
@pytest.mark.parametrize("equal", [True, False])
def test_safety_mbrier_is_the_distance_of_probability_and_fact(
    n_scenarios: int, equal: bool, way: str
) -> None:
    """And Brier its square, so never more."""
    made = voltages(n_scenarios, equal, tied=False)
    outside = (made.scenarios.values < 0.95) | (made.scenarios.values > 1.05)
    probability = (made.scenarios.weights.unsqueeze(2) * outside).sum(1)
    happened = ((made.target < 0.95) | (made.target > 1.05)).double()
    found = points_of(made, way)
    wanted = (probability - happened).abs()
    torch.testing.assert_close(found["safety_mbrier"], wanted, rtol=1e-12, atol=1e-15)
    assert (found["brier"] <= found["safety_mbrier"]).all()
    brier = scoringrules.brier_score(happened.numpy(), probability.clamp(max=1).numpy())
    np.testing.assert_allclose(found["brier"].numpy(), brier, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_edges_belong_to_the_band_and_nothing_beyond(dtype: torch.dtype) -> None:
    edges = torch.tensor([0.95, 1.05], dtype=dtype)
    beyond = torch.nextafter(edges, torch.tensor([0.0, 2.0], dtype=dtype))
    assert safety.violates(edges).tolist() == [0, 0]
    assert safety.violates(beyond).tolist() == [1, 1]
    assert safety.signed_excursion(edges).tolist() == [0, 0]
    assert safety.signed_excursion(beyond).sign().tolist() == [-1, 1]


@both_ways
@pytest.mark.parametrize("dtype", DTYPES)
def test_scenarios_on_the_edges_are_within_the_band(dtype: torch.dtype, way: str) -> None:
    edges = torch.tensor([0.95, 1.05], dtype=dtype)
    beyond = torch.nextafter(edges, torch.tensor([0.0, 2.0], dtype=dtype))
    target = torch.ones((1, 1, 1), dtype=dtype)
    for values, probability in [(edges, 0), (beyond, 1)]:
        made = Example(Scenarios.equal(values.reshape(1, 2, 1, 1)), target)
        assert points_of(made, way)["violation_probability"].item() == probability


@both_ways
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_scenarios", [3, 7, 20, 100, 625])
def test_a_probability_is_never_more_than_one(
    n_scenarios: int, dtype: torch.dtype, way: str
) -> None:
    scenarios = Scenarios.equal(torch.full((1, n_scenarios, 1, 1), 0.9, dtype=dtype))
    made = Example(scenarios, torch.ones((1, 1, 1), dtype=dtype))
    found = points_of(made, way)["violation_probability"].item()
    assert found <= 1
    assert found == pytest.approx(1, abs=1e-5)
