"""What is weighed, clamped, calibrated and won, against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS, STEP_S, V
from powerphase.models.powerforge.decoder import Deviations
from powerphase.models.powerforge.network import by_kind
from powerphase.models.powerforge.objective import Counts, Objective, _nearest
from powerphase.scenarios import Batches, Record
from tests.models.powerforge import TINY, grid_states, layout, network, windows

WINNER = replace(TINY, objective="winner-takes-all")
B, N, M, H = 2, 3, 4, 5
COUNTS = Counts(windows=B, buses=N, scenarios=M, steps=H)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_distance_of_a_scenario_is_its_mean_error_with_kinds_weighed() -> None:
    objective = Objective(WINNER).double()
    objective.type_weight.data = torch.tensor([0.1, 1.0, 2.0, 9.0]).double()  # counts as 0.3 … 3
    deviations, day, truth = random(4, B, N, M, H), random(4, B, N, H, seed=1), random(4, B, N, H)
    day[3] = 0  # so that no angle passes π
    deviations[3] = deviations[3].clamp(-3, 3)
    sums = objective.of_block(
        Deviations(*deviations), torch.tensor(0.05).double(), day, truth, COUNTS
    )
    for window, scenario in np.ndindex(B, M):
        wanted = 0.0
        for kind, weight in enumerate((0.3, 1.0, 2.0, 3.0)):
            x = deviations[kind, window, :, scenario] + day[kind, window]
            wanted += weight * (truth[kind, window] - x).abs().sum().item()
        wanted /= KINDS * N * H
        assert sums["distance"][window, scenario].item() == pytest.approx(wanted)


def test_the_winner_takes_all() -> None:
    net = network(replace(WINNER, physics=False))
    context, target = windows()
    found = {}

    def spy(deviations: Deviations, *rest):
        found["made"] = deviations
        for part in deviations:
            part.retain_grad()
        return inner(deviations, *rest)

    inner, net.objective.of_block = net.objective.of_block, spy
    loss, parts = net(context, target)
    loss.backward()
    pulled = torch.stack([part.grad.abs().sum((1, 3)) > 0 for part in found["made"]])  # 4 B M
    # P and Q of other scenarios are not pulled by way of V and θ either.
    assert (pulled.sum(2) == 1).all()
    assert (pulled == pulled[:1]).all()
    assert parts["winner"] > 0


def test_scores_learn_which_scenario_wins() -> None:
    net = network(WINNER)
    context, target = windows()
    noise = random(2, 4, 12)
    net.decoder.draw_noise = lambda generator=None: noise
    state, day = net._encoded(context)
    values = torch.stack(net.objective.trajectories(net.decoder(state, noise), day))
    error = (by_kind(target).unsqueeze(3) - values).abs().mean((2, 4))  # 4 B M
    winner = torch.einsum("k,kbm->bm", net.objective.bounded_type_weight, error).argmin(1)
    logits = state.mean((1, 2)) @ net.score.weight.T + net.score.bias
    wanted = -torch.log_softmax(logits, dim=1)[torch.arange(2), winner].mean()
    found = net(context, target).parts["score"]
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-12, atol=0)


def test_weights_of_the_winners_forecast_are_its_scores() -> None:
    net = network(WINNER)
    context, _ = windows()
    forecast = net.scenarios(context)
    state, _ = net._encoded(context)
    wanted = torch.softmax(net.score(state.flatten(1, 2).mean(1)), dim=1)
    torch.testing.assert_close(forecast.weights, wanted[:, :, None].expand(-1, -1, 20))


def test_weights_beyond_their_range_move_by_their_penalty_alone() -> None:
    net = network()  # the first and the last are out of range
    loss, parts = net(*windows())
    loss.backward()
    weight, slope = net.objective.type_weight.detach(), net.objective.type_weight.grad
    penalty = 2 * TINY.type_weight_penalty * (weight - 1)
    out = torch.tensor([True, False, False, True])
    assert slope is not None
    torch.testing.assert_close(slope[out], penalty[out], rtol=1e-12, atol=0)
    assert (slope[~out] > penalty[~out]).all()  # a pinball is positive
    wanted = TINY.type_weight_penalty * ((weight - 1) ** 2).sum()
    torch.testing.assert_close(parts["types"], wanted)


@pytest.mark.parametrize(
    ("volatility", "weight"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 2.0, 2.0, 1.0], [4 / 3, 2 / 3, 2 / 3, 4 / 3]),
        ([1.0, 1.0, 0.01, 1.0], [0.3, 0.3, 3.0, 0.3]),
        ([0.0, 1.0, 1.0, 1.0], [3.0, 0.3, 0.3, 0.3]),
    ],
)
def test_kinds_that_move_little_weigh_much(volatility, weight) -> None:
    objective = Objective(TINY)
    objective.calibrate(torch.tensor(volatility))
    assert objective.type_weight.tolist() == pytest.approx(weight)


def test_calibration_looks_at_the_targets_of_the_first_batches() -> None:
    states = grid_states(200, n_buses=3, n_windows=1)[0].float()
    time = np.datetime64("2016-01-01", "s") + np.arange(200) * np.timedelta64(STEP_S, "s")
    record = Record(layout(3), time, lambda steps, channels: states[steps, channels].numpy())
    batches = Batches(record, context=36, horizon=12, size=2, seed=4)
    net = network(replace(TINY, calibration_batches=5), n_buses=3)
    net.prepare(batches)
    moves = np.mean(
        [
            [batches[k][1][..., kind::4].numpy().std(axis=1).mean() for kind in range(4)]
            for k in range(5)
        ],
        axis=0,
    )
    wanted = (1 / moves) / (1 / moves).mean()
    np.testing.assert_allclose(net.objective.type_weight.detach(), wanted.clip(0.3, 3), rtol=1e-5)


@pytest.mark.parametrize("bound", [0.05, 1e-4])
def test_voltages_pay_by_their_share_of_the_bound(bound: float) -> None:
    objective = Objective(TINY).double()
    gates = 3 * random(B, N, M, H)
    v = (bound * gates.tanh()).requires_grad_()
    zero = torch.zeros_like(v.detach())
    day = torch.zeros(4, B, N, H).double()
    found = objective.of_block(
        Deviations(zero, zero, v, zero), torch.tensor(bound).double(), day, day, COUNTS
    )
    wanted = TINY.voltage_weight * F.smooth_l1_loss(v / bound, zero)
    torch.testing.assert_close(found["voltage"], wanted.detach())
    assert not found["voltage"].requires_grad


@pytest.mark.parametrize(
    ("wanted", "position"), [(0.1, 0), (0.31, 1), (0.375, 1), (0.5, 1), (0.51, 2), (0.9, 3)]
)
def test_the_nearest_level_is_the_first_of_equals(wanted: float, position: int) -> None:
    assert _nearest(torch.tensor([0.125, 0.375, 0.625, 0.875]), wanted).item() == position


@pytest.mark.parametrize("kind", range(KINDS))
def test_values_are_sorted_out_by_kind(kind: int) -> None:
    values = random(2, 5, 12)
    assert torch.equal(by_kind(values)[kind], values[..., kind::4].mT)


def test_the_reference_is_added_and_angles_are_wrapped() -> None:
    deviations, day = Deviations(*random(4, B, N, M, H)), 3 * random(4, B, N, H, seed=2)
    made = Objective(TINY).double().trajectories(deviations, day)
    torch.testing.assert_close(made[V], deviations.v + day[V].unsqueeze(2))
    angle = deviations.theta + day[3].unsqueeze(2)
    torch.testing.assert_close(made[3], torch.atan2(angle.sin(), angle.cos()))


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
def test_half_precision_does_not_reach_the_objective(objective: str) -> None:
    """Products of matrices may be rounded; what is made of their results may not."""
    config = replace(TINY, objective=objective)
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn((2, 3, config.scenarios, 6), generator=generator) for _ in range(4)]
    day, truth = (torch.randn((4, 2, 3, 6), generator=generator) for _ in range(2))
    part = Objective(config)
    counts = Counts(2, 3, config.scenarios, 6)
    full = part.of_block(Deviations(*made), torch.tensor(0.05), day, truth, counts)
    with torch.autocast("cpu", torch.bfloat16):
        half = part.of_block(Deviations(*made), torch.tensor(0.05), day, truth, counts)
    for name, value in full.items():
        assert torch.equal(half[name], value), name
