"""Distortion and energy score of whole scenarios, against loops over scenarios."""

import numpy as np
import pytest
import scoringrules
import torch

from powerphase import metrics
from powerphase.metrics import N_PROJECTIONS, energy_score, projections, spreads
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import example, score

COUNTS = [1, 2, 7, 16]


def random_projections(n_scenarios: int, horizon: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(n_scenarios)
    errors = random.normal(size=(n_scenarios, horizon, N_PROJECTIONS))
    weights = random.dirichlet(np.ones(n_scenarios))
    return torch.from_numpy(errors), torch.from_numpy(weights)


@pytest.mark.parametrize("n_scenarios", COUNTS)
def test_the_energy_score_equals_the_sum_over_all_pairs(n_scenarios: int) -> None:
    errors, weights = random_projections(n_scenarios)
    nothing = np.zeros(N_PROJECTIONS)
    expected = [naive.energy(x, weights.tolist(), nothing) for x in errors.movedim(1, 0).numpy()]
    np.testing.assert_allclose(energy_score(errors, weights).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("n_scenarios", COUNTS)
def test_the_energy_score_equals_scoringrules(n_scenarios: int) -> None:
    errors, weights = random_projections(n_scenarios)
    target = np.random.default_rng(1).normal(size=(errors.shape[1], N_PROJECTIONS))
    scenarios = errors.movedim(1, 0).numpy() + target[:, None]
    spread = np.broadcast_to(weights.numpy(), scenarios.shape[:2])
    expected = scoringrules.es_ensemble(target, scenarios, ens_w=spread)
    np.testing.assert_allclose(energy_score(errors, weights).numpy(), expected, rtol=1e-11)


def test_the_energy_score_in_one_dimension_is_crps() -> None:
    random = np.random.default_rng(2)
    errors, weights = random.normal(size=(9, 3)), random.dirichlet(np.ones(9))
    actual = energy_score(torch.from_numpy(errors)[..., None], torch.from_numpy(weights))
    expected = [naive.crps_by_pairs(x.tolist(), weights.tolist(), 0.0) for x in errors.T]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("n_scenarios", [1, 2, 7, 100])
@pytest.mark.parametrize("pairs_at_once", [1, 100, 250])
def test_torch_spreads_equal_the_kernel_for_any_number_of_pairs_at_once(
    n_scenarios: int, pairs_at_once: int
) -> None:
    errors, weights = random_projections(n_scenarios)
    actual = metrics.torch_spreads(errors, weights, pairs_at_once)
    torch.testing.assert_close(actual, spreads(errors, weights), rtol=1e-12, atol=0)


def test_identical_scenarios_have_no_spread() -> None:
    errors = torch.full((5, 3, 64), 1e3, dtype=torch.float64)
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    assert (spreads(errors, weights) == 0).all()
    assert (metrics.torch_spreads(errors, weights) == 0).all()


def test_the_length_of_projected_states_estimates_their_root_mean_square() -> None:
    states = torch.from_numpy(np.random.default_rng(3).normal(size=(500, 80)))
    length = (states @ projections(80)).norm(dim=1)
    size = states.square().mean(dim=1).sqrt()
    assert (length / size).mean().item() == pytest.approx(1, abs=0.05)
    assert (length / size).std().item() < 2 / np.sqrt(2 * N_PROJECTIONS)


def test_projections_never_change() -> None:
    actual = projections(12)
    assert torch.equal(actual, projections(12))
    assert actual.shape == (12, N_PROJECTIONS)
    # Other numbers would change every energy score.
    normal = actual * np.sqrt(12 * N_PROJECTIONS)
    expected = [-1.1235844268655262, 0.46698524753759363, -0.2345889502157569]
    np.testing.assert_allclose(normal[0, :3].numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("equal", [True, False])
def test_a_card_has_the_energy_score_of_the_projected_scenarios(equal: bool) -> None:
    case = example(4, equal=equal)
    values, target = case.scenarios.values.numpy(), case.target.numpy()
    weights = case.scenarios.weights.numpy()
    n_windows, horizon, n_channels = target.shape
    directions = projections(n_channels).numpy()
    # For one type, lengths estimate the root mean square of a quarter of the channels.
    parts = {None: (slice(None), 1.0)} | {k: (slice(k, None, 4), 2.0) for k in range(4)}
    expected = {
        part: np.array(
            [
                [
                    naive.energy(
                        scale * values[b, :, h, channels] @ directions[channels],
                        weights[b][:, channels].mean(axis=1).tolist(),
                        scale * target[b, h, channels] @ directions[channels],
                    )
                    for h in range(horizon)
                ]
                for b in range(n_windows)
            ]
        )
        for part, (channels, scale) in parts.items()
    }
    card = score(case.scenarios, case.target)
    np.testing.assert_allclose(card.by_window["energy"], expected[None].mean(axis=1), rtol=1e-11)
    by_type = np.stack([expected[k] for k in range(4)], axis=-1)
    np.testing.assert_allclose(card.by_type["energy"], by_type.mean(axis=(0, 1)), rtol=1e-11)
    np.testing.assert_allclose(card.by_step["energy"], by_type.mean(axis=0), rtol=1e-11)
    assert "energy" not in card.by_bus


def test_distortion_of_two_windows_by_hand() -> None:
    """One bus, one step and two scenarios each."""
    errors = torch.tensor(
        [
            # RMSE √(4/4) = 1 and √(4·0.25/4) = 0.5: the second scenario is the best.
            [[2.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]],
            # √(36/4) = 3 and √((1 + 9 + 25 + 1)/4) = 3.
            [[6.0, 0, 0, 0], [1, 3, 5, 1]],
        ]
    ).unsqueeze(2)
    target = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]]).unsqueeze(1)
    card = score(Scenarios.equal(target.unsqueeze(1) + errors), target)
    assert card.by_window["distortion"].tolist() == [0.5, 3]


def test_distortion_follows_its_definition() -> None:
    case = example(8, n_windows=3)
    expected = naive.distortion(case.scenarios.values.numpy(), case.target.numpy())
    actual = score(case.scenarios, case.target).by_window["distortion"]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_a_card_has_the_distortion_of_every_part() -> None:
    case = example(5, n_windows=3)
    values, target = case.scenarios.values.numpy(), case.target.numpy()
    card = score(case.scenarios, case.target)
    whole = naive.distortion(values, target)
    np.testing.assert_allclose(card.by_window["distortion"], whole, rtol=1e-12)
    for kind in range(4):
        channels = slice(kind, None, 4)
        by_type = naive.distortion(values[..., channels], target[..., channels]).mean()
        assert card.by_type["distortion"][kind] == pytest.approx(by_type, rel=1e-12)
        for h in range(target.shape[1]):
            steps = slice(h, h + 1)
            step = naive.distortion(
                values[:, :, steps, channels], target[:, steps, channels]
            ).mean()
            assert card.by_step["distortion"][h, kind] == pytest.approx(step, rel=1e-12)
        for bus in range(target.shape[2] // 4):
            channel = [4 * bus + kind]
            actual = card.by_bus["distortion"][bus, kind]
            expected = naive.distortion(values[..., channel], target[..., channel]).mean()
            assert actual == pytest.approx(expected, rel=1e-12)


def test_distortion_of_one_bus_by_hand() -> None:
    """One step; errors of two scenarios in P, Q, V and θ."""
    errors = torch.tensor([[2.0, 0, 0, 0], [0.5, 0.5, -0.5, 0.5]], dtype=torch.float64)
    target = torch.ones((1, 1, 4), dtype=torch.float64)
    card = score(Scenarios.equal(1 + errors[None, :, None]), target)
    # √(4/4) = 1 and √(4·0.25/4) = 0.5; by type, the first is better except for P.
    assert card["distortion"] == 0.5
    assert card.by_type["distortion"].tolist() == [0.5, 0, 0, 0]
    assert card.by_step["distortion"].tolist() == [[0.5, 0, 0, 0]]
    assert card.by_bus["distortion"].tolist() == [[0.5, 0, 0, 0]]
