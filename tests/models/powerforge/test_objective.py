"""What is weighed, clamped, calibrated and won, against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS, STEP_S, THETA, P, Q, V
from powerphase.metrics import Fan, crps
from powerphase.models.powerforge.anchor import wrap
from powerphase.models.powerforge.network import PowerForgeNetwork, by_kind
from powerphase.models.powerforge.objective import PARTS, Counts, Objective, Truth, deviations
from powerphase.scenarios import Batches, Record
from tests.models.powerforge import TINY, grid_states, layout, network, random_views, windows

WINNER = replace(TINY, objective="winner-takes-all")
B, N, M, H = 2, 3, 4, 5
COUNTS = Counts(windows=B, buses=N, scenarios=M, steps=H)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def encoded(net: PowerForgeNetwork) -> tuple[Tensor, Tensor]:
    """The states and the reference days of the usual windows."""
    past, calendar, _ = net.inputs(*windows())
    return net._encoded(past, calendar)


def test_the_distance_of_a_scenario_is_its_mean_error_with_kinds_weighed() -> None:
    objective = Objective(WINNER).double()
    objective.type_weight.data = torch.tensor([0.1, 1.0, 2.0, 9.0]).double()  # counts as 0.3 … 3
    made, target = random(4, B, M, H, N), random(4, B, H, N, seed=1)
    found = objective.distances(list(made), target, COUNTS)
    for window, scenario in np.ndindex(B, M):
        wanted = 0.0
        for kind, weight in enumerate((0.3, 1.0, 2.0, 3.0)):
            off = target[kind, window] - made[kind, window, scenario]
            wanted += weight * off.abs().sum().item()
        assert found[window, scenario].item() == pytest.approx(wanted / (KINDS * N * H))


def test_the_winner_takes_all() -> None:
    net = network(replace(WINNER, physics=False))
    loss, parts = net(*windows(n_windows=1))
    loss.backward()
    # P and Q of other scenarios are not pulled by way of V and θ either.
    assert (net.decoder.scenario.grad.abs().sum(1) > 0).sum() == 1
    assert parts["winner"] > 0


def test_scores_learn_which_scenario_wins() -> None:
    net = network(WINNER)
    context, target = windows()
    noise = random(2, 12, 4)
    net.decoder.draw_noise = lambda generator=None: noise
    state, day = encoded(net)
    values = torch.stack(net._made(net.decoder.folded(), noise, state, day))
    error = (by_kind(target).unsqueeze(2) - values).abs().mean((3, 4))  # 4 B M
    winner = torch.einsum("k,kbm->bm", net.objective.bounded_type_weight, error).argmin(1)
    logits = state.mean((1, 2)) @ net.score.weight.T + net.score.bias
    wanted = -torch.log_softmax(logits, dim=1)[torch.arange(2), winner].mean()
    found = net(context, target).parts["score"]
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-12, atol=0)


def test_weights_of_the_winners_forecast_are_its_scores() -> None:
    net = network(WINNER)
    forecast = net.scenarios(windows()[0])
    wanted = torch.softmax(net.score(encoded(net)[0].mean((1, 2))), dim=1)
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
    views = random_views(B, N, M, H)
    views.bound[0] = bound
    zero = torch.zeros(4, B, H, N).double()
    _, parts = Objective(TINY).double().of_block(views, Truth(zero, zero), COUNTS, None, fast=False)
    v = deviations(views, fast=False)[V]
    wanted = TINY.voltage_weight * F.smooth_l1_loss(v / bound, torch.zeros_like(v))
    torch.testing.assert_close(parts[PARTS.index("voltage")], wanted)
    assert not parts.requires_grad


@pytest.mark.parametrize(
    ("wanted", "position"), [(0.1, 0), (0.31, 1), (0.375, 1), (0.5, 1), (0.51, 2), (0.9, 3)]
)
def test_the_nearest_level_is_the_first_of_equals(wanted: float, position: int) -> None:
    objective = Objective(replace(TINY, width_levels=(wanted, 0.99)))
    level, target = torch.tensor([0.125, 0.375, 0.625, 0.875]), torch.zeros(4, B, H, N)
    found = objective._terms(target, level, torch.ones(4), COUNTS, None).nearest
    assert found.tolist() == [position, 3, 1]


def test_width_and_jitter_are_measured_by_how_much_the_target_moves() -> None:
    target = 1e-3 * random(4, B, H, N)
    target[P, 0, :, 1] = 0.7
    about = Objective(TINY)._terms(target, random(M), torch.ones(4).double(), COUNTS, None)
    wanted = target.numpy().std(axis=2)
    assert about.scale[P, 0, 1] == TINY.deviation_floor
    np.testing.assert_allclose(about.scale, wanted.clip(TINY.deviation_floor), rtol=1e-12)


@pytest.mark.parametrize("kind", range(KINDS))
def test_values_are_sorted_out_by_kind(kind: int) -> None:
    values = random(2, 5, 12)
    assert torch.equal(by_kind(values)[kind], values[..., kind::4])


def test_the_reference_is_added_and_angles_are_wrapped() -> None:
    net = network()
    state, day = random(2, 4, 5, 8), 3 * random(4, 2, 12, 5, seed=2)
    folded, noise = net.decoder.folded(), random(2, 12, 4)
    made = net._made(folded, noise, state, day)
    off = deviations(folded.views(state, noise, 5), fast=False)
    for kind in (P, Q, V):
        torch.testing.assert_close(made[kind], off[kind] + day[kind].unsqueeze(1))
    torch.testing.assert_close(made[THETA], wrap(off[THETA] + day[THETA].unsqueeze(1)))


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
def test_half_precision_does_not_reach_the_objective(objective: str) -> None:
    """Products of matrices may be rounded; what is made of their results may not."""
    views = random_views(B, N, M, H)
    views = type(views)(*(part.float() for part in views))
    truth = Truth(*(random(4, B, H, N, seed=seed).float() for seed in (1, 2)))
    part = Objective(replace(TINY, objective=objective))
    chosen = None if part.is_ordered else F.one_hot(torch.tensor([2, 0]), M).float()
    full, of_full = part.of_block(views, truth, COUNTS, chosen, fast=False)
    with torch.autocast("cpu", torch.bfloat16):
        half, of_half = part.of_block(views, truth, COUNTS, chosen, fast=False)
    assert half.dtype == of_half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=1e-3, atol=0)
    torch.testing.assert_close(of_half, of_full, rtol=1e-3, atol=0)


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
@pytest.mark.parametrize("channel_block", [None, 8])
def test_the_crps_is_that_of_the_scenarios(objective, channel_block: int | None) -> None:
    net = network(replace(TINY, objective=objective), channel_block=channel_block)
    context, target = windows()
    wanted = crps(Fan.of(net.scenarios(context)), target).mean()
    torch.testing.assert_close(net.crps(context, target), wanted, rtol=1e-12, atol=0)
