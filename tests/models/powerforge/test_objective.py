"""Weights, calibration, loss terms and winners of the objective, against loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS, STEP_S, THETA, P, Q, V
from powerphase.metrics import Fan, crps
from powerphase.models.powerforge import (
    PARTS,
    Counts,
    Objective,
    PowerForgeNetwork,
    Truth,
    by_kind,
    residuals,
    wrap,
)
from powerphase.scenarios import Batches, Record
from tests.models.powerforge import TINY, grid_states, layout, network, random_heads, windows

WINNER = replace(TINY, objective="winner-takes-all")
B, N, M, H = 2, 3, 4, 5
COUNTS = Counts(windows=B, buses=N, scenarios=M, steps=H)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def encode(net: PowerForgeNetwork) -> tuple[Tensor, Tensor]:
    """The states and the reference days of the usual windows."""
    past, calendar, _ = net.inputs(*windows())
    return net._encode(past, calendar)


def test_a_scenarios_distance_is_its_weighted_mean_error() -> None:
    objective = Objective(WINNER).double()
    objective.type_weight.data = torch.tensor([0.1, 1.0, 2.0, 9.0]).double()  # counts as 0.3 … 3
    scenarios, target = random(4, B, M, H, N), random(4, B, H, N, seed=1)
    distances = objective.distances(list(scenarios), target, COUNTS)
    for window, scenario in np.ndindex(B, M):
        expected = 0.0
        for kind, weight in enumerate((0.3, 1.0, 2.0, 3.0)):
            error = target[kind, window] - scenarios[kind, window, scenario]
            expected += weight * error.abs().sum().item()
        assert distances[window, scenario].item() == pytest.approx(expected / (KINDS * N * H))


def test_only_the_winner_is_trained() -> None:
    net = network(replace(WINNER, physics=False))
    loss, parts = net(*windows(n_windows=1))
    loss.backward()
    # Other scenarios' P and Q have no gradient through V and θ either.
    assert net.decoder.scenario.grad is not None
    assert (net.decoder.scenario.grad.abs().sum(1) > 0).sum() == 1
    assert parts["winner"] > 0


def test_the_score_is_trained_to_predict_the_winner() -> None:
    net = network(WINNER)
    context, target = windows()
    noise = random(2, 12, 4)
    decoder: Any = net.decoder
    decoder.draw_noise = lambda generator=None: noise
    state, day = encode(net)
    values = torch.stack(net._decode(net.decoder.linear_maps(), noise, state, day))
    error = (by_kind(target).unsqueeze(2) - values).abs().mean((3, 4))  # 4 B M
    winner = torch.einsum("k,kbm->bm", net.objective.bounded_type_weight, error).argmin(1)
    logits = state.mean((1, 2)) @ net.score.weight.T + net.score.bias
    expected = -torch.log_softmax(logits, dim=1)[torch.arange(2), winner].mean()
    distances = net(context, target).parts["score"]
    torch.testing.assert_close(distances, expected.detach(), rtol=1e-12, atol=0)


def test_scores_give_the_weights_of_a_winner_takes_all_forecast() -> None:
    net = network(WINNER)
    forecast = net.scenarios(windows()[0])
    expected = torch.softmax(net.score(encode(net)[0].mean((1, 2))), dim=1)
    torch.testing.assert_close(forecast.weights, expected[:, :, None].expand(-1, -1, 20))


def test_weights_outside_their_range_move_only_by_their_penalty() -> None:
    net = network()  # the first and the last are out of range
    loss, parts = net(*windows())
    loss.backward()
    weight, gradient = net.objective.type_weight.detach(), net.objective.type_weight.grad
    penalty = 2 * TINY.type_weight_penalty * (weight - 1)
    outside = torch.tensor([True, False, False, True])
    assert gradient is not None
    torch.testing.assert_close(gradient[outside], penalty[outside], rtol=1e-12, atol=0)
    assert (gradient[~outside] > penalty[~outside]).all()  # the pinball loss is positive
    expected = TINY.type_weight_penalty * ((weight - 1) ** 2).sum()
    torch.testing.assert_close(parts["types"], expected)


@pytest.mark.parametrize(
    ("volatility", "weight"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]),
        ([1.0, 2.0, 2.0, 1.0], [4 / 3, 2 / 3, 2 / 3, 4 / 3]),
        ([1.0, 1.0, 0.01, 1.0], [0.3, 0.3, 3.0, 0.3]),
        ([0.0, 1.0, 1.0, 1.0], [3.0, 0.3, 0.3, 0.3]),
    ],
)
def test_kinds_of_low_volatility_have_large_weights(
    volatility: list[float], weight: list[float]
) -> None:
    objective = Objective(TINY)
    objective.calibrate(torch.tensor(volatility))
    assert objective.type_weight.tolist() == pytest.approx(weight)


def test_calibration_uses_the_targets_of_the_first_batches() -> None:
    states = grid_states(200, n_buses=3, n_windows=1)[0].float()
    time = np.datetime64("2016-01-01", "s") + np.arange(200) * np.timedelta64(STEP_S, "s")
    record = Record(layout(3), time, lambda steps, channels: states[steps, channels].numpy())
    batches = Batches(record, context=36, horizon=12, size=2, seed=4)
    net = network(replace(TINY, calibration_batches=5), n_buses=3)
    net.prepare(batches)
    deviations = np.mean(
        [
            [batches[k][1][..., kind::4].numpy().std(axis=1).mean() for kind in range(4)]
            for k in range(5)
        ],
        axis=0,
    )
    expected = (1 / deviations) / (1 / deviations).mean()
    np.testing.assert_allclose(net.objective.type_weight.detach(), expected.clip(0.3, 3), rtol=1e-5)


@pytest.mark.parametrize("bound", [0.05, 1e-4])
def test_the_voltage_penalty_is_relative_to_the_bound(bound: float) -> None:
    heads = random_heads(B, N, M, H)
    heads.bound[0] = bound
    zero = torch.zeros(4, B, H, N).double()
    _, parts = (
        Objective(TINY).double().block_loss(heads, Truth(zero, zero), COUNTS, None, fast=False)
    )
    v = residuals(heads, fast=False)[V]
    expected = TINY.voltage_weight * F.smooth_l1_loss(v / bound, torch.zeros_like(v))
    torch.testing.assert_close(parts[PARTS.index("voltage")], expected)
    assert not parts.requires_grad


@pytest.mark.parametrize(
    ("reference", "position"), [(0.1, 0), (0.31, 1), (0.375, 1), (0.5, 1), (0.51, 2), (0.9, 3)]
)
def test_the_nearest_level_is_the_first_of_equals(reference: float, position: int) -> None:
    objective = Objective(replace(TINY, width_levels=(reference, 0.99)))
    level, target = torch.tensor([0.125, 0.375, 0.625, 0.875]), torch.zeros(4, B, H, N)
    distances = objective._terms(target, level, torch.ones(4), COUNTS, None).nearest
    assert distances.tolist() == [position, 3, 1]


def test_width_and_jitter_are_relative_to_the_targets_deviation() -> None:
    target = 1e-3 * random(4, B, H, N)
    target[P, 0, :, 1] = 0.7
    terms = Objective(TINY)._terms(target, random(M), torch.ones(4).double(), COUNTS, None)
    expected = target.numpy().std(axis=2)
    assert terms.scale[P, 0, 1] == TINY.deviation_floor
    np.testing.assert_allclose(terms.scale, expected.clip(TINY.deviation_floor), rtol=1e-12)


@pytest.mark.parametrize(("still", "counts"), [("floor", True), ("skip", False)])
def test_skipped_channels_have_neither_width_nor_jitter(still: Any, counts: bool) -> None:
    objective = Objective(replace(TINY, still_channels=still)).double()
    heads, flat = random_heads(B, N, M, H), torch.zeros(4, B, H, N).double()
    _, parts = objective.block_loss(heads, Truth(flat, flat), COUNTS, None, fast=False)
    width, jitter = (float(parts[PARTS.index(name)]) for name in ("width", "jitter"))
    assert (width > 0, jitter > 0) == (counts, counts)


@pytest.mark.parametrize("kind", range(KINDS))
def test_values_are_separated_by_kind(kind: int) -> None:
    values = random(2, 5, 12)
    assert torch.equal(by_kind(values)[kind], values[..., kind::4])


def test_the_reference_is_added_and_angles_are_wrapped() -> None:
    net = network()
    state, day = random(2, 4, 5, 8), 3 * random(4, 2, 12, 5, seed=2)
    linear_maps, noise = net.decoder.linear_maps(), random(2, 12, 4)
    scenarios = net._decode(linear_maps, noise, state, day)
    error = residuals(linear_maps.head_outputs(state, noise, 5), fast=False)
    for kind in (P, Q, V):
        torch.testing.assert_close(scenarios[kind], error[kind] + day[kind].unsqueeze(1))
    torch.testing.assert_close(scenarios[THETA], wrap(error[THETA] + day[THETA].unsqueeze(1)))


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
def test_half_precision_does_not_affect_the_objective(objective: str) -> None:
    """Matrix products may be rounded, but not what is computed from their results."""
    heads = random_heads(B, N, M, H)
    heads = type(heads)(*(tensor.float() for tensor in heads))
    truth = Truth(*(random(4, B, H, N, seed=seed).float() for seed in (1, 2)))
    changes: dict[str, Any] = {"objective": objective}
    objective_ = Objective(replace(TINY, **changes))
    winner = None if objective_.is_ordered else F.one_hot(torch.tensor([2, 0]), M).float()
    full, full_parts = objective_.block_loss(heads, truth, COUNTS, winner, fast=False)
    with torch.autocast("cpu", torch.bfloat16):
        half, half_parts = objective_.block_loss(heads, truth, COUNTS, winner, fast=False)
    assert half.dtype == half_parts.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=1e-3, atol=0)
    torch.testing.assert_close(half_parts, full_parts, rtol=1e-3, atol=0)


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
@pytest.mark.parametrize("channel_block", [None, 8])
def test_the_crps_is_that_of_the_scenarios(objective: str, channel_block: int | None) -> None:
    changes: dict[str, Any] = {"objective": objective}
    net = network(replace(TINY, **changes), channel_block=channel_block)
    context, target = windows()
    expected = crps(Fan.of(net.scenarios(context)), target).mean()
    torch.testing.assert_close(net.crps(context, target), expected, rtol=1e-12, atol=0)
