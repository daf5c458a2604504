"""Distortion and energy score, which look at whole scenarios, against loops over scenarios."""

import numpy as np
import pytest
import scoringrules
import torch

from powerphase.metrics import proper
from powerphase.metrics.kernels import spreads
from powerphase.metrics.proper import N_PROJECTIONS, energy_score, projections
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import example, score

COUNTS = [1, 2, 7, 16]


def projected(n_scenarios: int, horizon: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(n_scenarios)
    errors = random.normal(size=(n_scenarios, horizon, N_PROJECTIONS))
    weights = random.dirichlet(np.ones(n_scenarios))
    return torch.from_numpy(errors), torch.from_numpy(weights)


@pytest.mark.parametrize("n_scenarios", COUNTS)
def test_the_energy_score_is_the_sum_over_all_pairs(n_scenarios: int) -> None:
    errors, weights = projected(n_scenarios)
    nothing = np.zeros(N_PROJECTIONS)
    wanted = [naive.energy(x, weights.tolist(), nothing) for x in errors.movedim(1, 0).numpy()]
    np.testing.assert_allclose(energy_score(errors, weights).numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("n_scenarios", COUNTS)
def test_the_energy_score_is_that_of_scoringrules(n_scenarios: int) -> None:
    errors, weights = projected(n_scenarios)
    target = np.random.default_rng(1).normal(size=(errors.shape[1], N_PROJECTIONS))
    scenarios = errors.movedim(1, 0).numpy() + target[:, None]
    spread = np.broadcast_to(weights.numpy(), scenarios.shape[:2])
    wanted = scoringrules.es_ensemble(target, scenarios, ens_w=spread)
    np.testing.assert_allclose(energy_score(errors, weights).numpy(), wanted, rtol=1e-11)


def test_the_energy_score_of_one_number_is_crps() -> None:
    random = np.random.default_rng(2)
    errors, weights = random.normal(size=(9, 3)), random.dirichlet(np.ones(9))
    found = energy_score(torch.from_numpy(errors)[..., None], torch.from_numpy(weights))
    wanted = [naive.crps_by_pairs(x.tolist(), weights.tolist(), 0.0) for x in errors.T]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("n_scenarios", [1, 2, 7, 100])
@pytest.mark.parametrize("pairs_at_once", [1, 100, 250])
def test_plain_torch_finds_the_same_spreads_however_many_pairs_are_held(
    n_scenarios: int, pairs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, weights = projected(n_scenarios)
    monkeypatch.setattr(proper, "PAIRS_AT_ONCE", pairs_at_once)
    found = proper.plain_spreads(errors, weights)
    torch.testing.assert_close(found, spreads(errors, weights), rtol=1e-12, atol=0)


def test_scenarios_that_are_copies_have_no_spread() -> None:
    errors = torch.full((5, 3, 64), 1e3, dtype=torch.float64)
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    assert (spreads(errors, weights) == 0).all()
    assert (proper.plain_spreads(errors, weights) == 0).all()


def test_projected_states_are_as_long_as_their_root_mean_square() -> None:
    states = torch.from_numpy(np.random.default_rng(3).normal(size=(500, 80)))
    length = (states @ projections(80)).norm(dim=1)
    size = states.square().mean(dim=1).sqrt()
    assert (length / size).mean().item() == pytest.approx(1, abs=0.05)
    assert (length / size).std().item() < 2 / np.sqrt(2 * N_PROJECTIONS)


def test_projections_are_the_same_for_everyone() -> None:
    found = projections(12)
    assert torch.equal(found, projections(12))
    assert found.shape == (12, N_PROJECTIONS)
    # The very first numbers: whoever draws others gets other energy scores.
    normal = found * np.sqrt(12 * N_PROJECTIONS)
    wanted = [-1.1235844268655262, 0.46698524753759363, -0.2345889502157569]
    np.testing.assert_allclose(normal[0, :3].numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("equal", [True, False])
def test_a_card_has_the_energy_score_of_the_projected_scenarios(equal: bool) -> None:
    made = example(4, equal=equal)
    values, target = made.scenarios.values.numpy(), made.target.numpy()
    weights = made.scenarios.weights.numpy()
    n_windows, horizon, n_channels = target.shape
    directions = projections(n_channels).numpy()
    # Of one type alone, lengths estimate the root mean square of its quarter of the channels.
    parts = {None: (slice(None), 1.0)} | {k: (slice(k, None, 4), 2.0) for k in range(4)}
    wanted = {
        part: np.array(
            [
                [
                    naive.energy(
                        scale * values[b, :, h, some] @ directions[some],
                        weights[b][:, some].mean(axis=1).tolist(),
                        scale * target[b, h, some] @ directions[some],
                    )
                    for h in range(horizon)
                ]
                for b in range(n_windows)
            ]
        )
        for part, (some, scale) in parts.items()
    }
    card = score(made.scenarios, made.target)
    np.testing.assert_allclose(card.by_window["energy"], wanted[None].mean(axis=1), rtol=1e-11)
    by_type = np.stack([wanted[k] for k in range(4)], axis=-1)
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


def test_distortion_is_what_its_definition_says() -> None:
    made = example(8, n_windows=3)
    wanted = naive.distortion(made.scenarios.values.numpy(), made.target.numpy())
    found = score(made.scenarios, made.target).by_window["distortion"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_card_has_the_distortion_of_every_part() -> None:
    made = example(5, n_windows=3)
    values, target = made.scenarios.values.numpy(), made.target.numpy()
    card = score(made.scenarios, made.target)
    whole = naive.distortion(values, target)
    np.testing.assert_allclose(card.by_window["distortion"], whole, rtol=1e-12)
    for kind in range(4):
        some = slice(kind, None, 4)
        by_type = naive.distortion(values[..., some], target[..., some]).mean()
        assert card.by_type["distortion"][kind] == pytest.approx(by_type, rel=1e-12)
        for h in range(target.shape[1]):
            here = slice(h, h + 1)
            step = naive.distortion(values[:, :, here, some], target[:, here, some]).mean()
            assert card.by_step["distortion"][h, kind] == pytest.approx(step, rel=1e-12)
        for bus in range(target.shape[2] // 4):
            one = [4 * bus + kind]
            found = card.by_bus["distortion"][bus, kind]
            wanted = naive.distortion(values[..., one], target[..., one]).mean()
            assert found == pytest.approx(wanted, rel=1e-12)


def test_distortion_of_one_bus_by_hand() -> None:
    """One step; errors of two scenarios in P, Q, V and θ."""
    errors = torch.tensor([[2.0, 0, 0, 0], [0.5, 0.5, -0.5, 0.5]], dtype=torch.float64)
    target = torch.ones((1, 1, 4), dtype=torch.float64)
    card = score(Scenarios.equal(1 + errors[None, :, None]), target)
    # √(4/4) = 1 and √(4·0.25/4) = 0.5; by type, the first is the better one but for P.
    assert card["distortion"] == 0.5
    assert card.by_type["distortion"].tolist() == [0.5, 0, 0, 0]
    assert card.by_step["distortion"].tolist() == [[0.5, 0, 0, 0]]
    assert card.by_bus["distortion"].tolist() == [[0.5, 0, 0, 0]]
