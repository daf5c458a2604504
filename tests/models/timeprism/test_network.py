"""The loss and its gradients against the straightforward form, the heads, and the scenarios."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.framework import annealing_temperature
from powerphase.models.timeprism import TimePrismNetwork, average_weights, split_outputs
from powerphase.scenarios import Context
from tests.models.factorforge import layout, moments
from tests.models.timeprism import CONTEXT, HORIZON, batch, network_of, small
from tests.models.timeprism import straightforward as plain

LOSSES: list[dict[str, Any]] = [
    {},
    {"objective": "plain"},
    {"objective": "annealed"},
    {"objective": "annealed", "temperature": 10.0, "least_temperature": 11.0},
    {"least_scale": 1e-10, "zero_scale": "batch"},
    {"score_weight": 0.3, "slack": 0.2},
]


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_averaged_weights_act_on_the_series_as_weights_on_its_average(steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    series, weight = torch.randn(2, 5, 10, generator=generator, dtype=torch.float64)
    around = torch.arange(-(steps // 2), steps // 2 + 1)
    averaged = torch.stack([series[:, (t + around).clamp(0, 9)].mean(1) for t in range(10)], dim=1)
    torch.testing.assert_close(plain.average(series, steps), averaged)
    torch.testing.assert_close(average_weights(weight, steps) @ series.T, weight @ averaged.T)


def test_the_linear_map_equals_the_three_heads_in_values_and_gradients() -> None:
    network = network_of(small())
    heads, config = network.heads, network.config
    z = torch.randn(11, CONTEXT, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight, bias = heads.linear_map()
    trend, season, logit = split_outputs(z @ weight.T + bias, config, HORIZON)
    mapped = (trend.unsqueeze(2) + season.unsqueeze(1)).flatten(1, 2), logit
    mean = plain.average(z, config.average_steps)
    trend = heads.trend(mean).unflatten(1, (2, -1))
    season = heads.season(z - mean).unflatten(1, (3, -1))
    expected = (trend.unsqueeze(2) + season.unsqueeze(1)).flatten(1, 2), heads.logit(z)
    torch.testing.assert_close(mapped, expected)
    gradients = [
        torch.autograd.grad(parts[0].cos().sum() + parts[1].cos().sum(), [*heads.parameters()])
        for parts in (mapped, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_the_linear_map_moves_the_mean_of_the_seasons_to_the_trends() -> None:
    network = network_of(small())
    weight, bias = network.heads.linear_map()
    season = torch.cat([weight, bias[:, None]], 1)[2 * HORIZON : 5 * HORIZON].unflatten(0, (3, -1))
    assert season.mean(0).abs().max() < 1e-15
    assert season.abs().max() > 0.1


@pytest.mark.parametrize("changes", LOSSES)
@pytest.mark.parametrize("block", [None, 3])
def test_loss_and_gradients_equal_the_straightforward_form(
    changes: dict[str, Any], block: int | None
) -> None:
    network = network_of(small(**changes), block)
    context, target = batch()
    context.past[0, :, 4] = 0  # zero in one window of three, so that "batch" has a scale for it
    loss, parameters = network(context, target).loss, list(network.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    expected = plain.loss(network, context.past, target, network.config.temperature)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, parameters))


@pytest.mark.parametrize("objective", ["relaxed", "plain", "annealed"])
def test_the_float32_loss_keeps_four_digits(objective: str) -> None:
    config = small(objective=objective)
    exact, rounded = network_of(config), network_of(config, dtype=torch.float32)
    loss = rounded(*batch(dtype=torch.float32)).loss
    expected = plain.loss(exact, batch()[0].past, batch()[1], config.temperature)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    gradients = torch.autograd.grad(loss, list(rounded.parameters()))
    exact_gradients = torch.autograd.grad(expected, list(exact.parameters()))
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        tolerance = 1e-4 * float(exact_gradient.abs().max())
        torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0, atol=tolerance)


def test_a_small_float32_distance_between_large_numbers_keeps_four_digits() -> None:
    """Like a voltage, whose movements are a hundredth of the hypotheses of other channels."""
    config = small(objective="plain", score_weight=0.0)
    exact, rounded = network_of(config), network_of(config, dtype=torch.float32)
    context, target = batch()
    with torch.no_grad():
        for network in (exact, rounded):
            network.heads.season.bias.mul_(30)
    prediction = plain.forecast(exact, context.past)
    hypothesis = (prediction.hypotheses[:, 4] * prediction.scale).detach()
    target = hypothesis + 0.01 * prediction.scale * torch.sin(target)
    in_float32 = Context(context.past.float(), context.time, context.layout)
    loss = rounded(in_float32, target.float()).loss.item()
    expected = plain.loss(exact, context.past, target, 1.0).item()
    assert loss == pytest.approx(expected, rel=1e-4)


def test_gradients_scale_with_the_loss() -> None:
    network = network_of(small())
    context, target = batch()
    once, thrice = (
        torch.autograd.grad(factor * network(context, target).loss, network.heads.trend.weight)[0]
        for factor in (1, 3)
    )
    torch.testing.assert_close(thrice, 3 * once)


def test_the_parts_describe_the_loss() -> None:
    network = network_of(small(score_weight=0.5), block=3)
    context, target = batch()
    loss, parts = network(context, target)
    torch.testing.assert_close(loss, parts["distance"] + 0.5 * parts["score"])
    prediction = plain.forecast(network, context.past)
    inputs = torch.cat([context.past, target], dim=1) / prediction.scale
    torch.testing.assert_close(parts["largest input"], inputs.abs().max())
    winners = plain.distances(prediction, target).argmin(1).unique()
    assert float(parts["winning share"]) == pytest.approx(len(winners) / 6)
    zero = (context.past == 0).all(1)
    torch.testing.assert_close(parts["zero channels"], zero.to(loss).mean())
    assert not parts["distance"].requires_grad


def test_the_loss_is_the_same_without_gradients() -> None:
    network = network_of(small(), block=3)
    context, target = batch()
    with torch.no_grad():
        loss = network(context, target).loss
    assert not loss.requires_grad
    assert torch.equal(loss, network(context, target).loss)


def test_the_temperature_falls_with_training_epochs_down_to_winner_takes_all() -> None:
    config = small(objective="annealed", temperature=4.0, cooling=0.1, least_temperature=0.03)
    network, (context, target) = network_of(config), batch()
    temperatures = []
    for _ in range(7):
        network.eval()
        network(context, target)
        temperatures.append(float(annealing_temperature(network.steps, config)))
        network.train()
        network(context, target)
    assert temperatures == pytest.approx([4.0] * 3 + [0.4] * 3 + [0.04])
    network.eval()
    hard = network_of(small(objective="plain"))(context, target).loss
    assert network(context, target).loss > hard + 1e-3
    network.steps.fill_(3 * 3)  # 0.004, below the limit
    torch.testing.assert_close(network(context, target).loss, hard)


@pytest.mark.parametrize("objective", ["relaxed", "plain", "annealed"])
def test_a_step_never_waits_for_its_device(objective: str) -> None:
    """Meta tensors have no values to wait for, and cannot be mixed with others."""
    network = network_of(small(objective=objective), block=3).to("meta")
    context, target = batch()
    loss, parts = network.losses(context.past.to("meta"), target.to("meta"))
    loss.backward()
    assert {part.device.type for part in parts.values()} == {"meta"}
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_half_precision_applies_to_the_heads_alone() -> None:
    network = network_of(small(), dtype=torch.float32)
    context, target = batch(dtype=torch.float32)
    expected = network(context, target).loss
    with torch.autocast("cpu", torch.bfloat16):
        rounded = network(context, target).loss
    assert rounded.dtype == torch.float32
    assert rounded.item() != expected.item()
    assert rounded.item() == pytest.approx(expected.item(), rel=0.02)


def test_scenarios_are_all_hypotheses_in_the_channels_units() -> None:
    network = network_of(small())
    context, _ = batch()
    expected = plain.forecast(network, context.past)
    scenarios = network.scenarios(context)
    torch.testing.assert_close(scenarios.values, expected.hypotheses * expected.scale.unsqueeze(1))
    torch.testing.assert_close(scenarios.weights, expected.logits.softmax(1))
    part = network.scenarios(context, channels=slice(3, 6))
    torch.testing.assert_close(part.values, scenarios.values[..., 3:6])


def test_a_windows_scenarios_do_not_depend_on_other_windows() -> None:
    network = network_of(small(least_scale=1e-10, zero_scale="batch"))
    context, _ = batch()
    context.past[0, :, 4] = 0
    alone = Context(context.past[:1], context.time[:1], context.layout)
    together = network.scenarios(context)
    torch.testing.assert_close(network.scenarios(alone).values, together.values[:1])


def test_weights_may_be_exactly_zero() -> None:
    network = network_of(small(), dtype=torch.float32)
    with torch.no_grad():
        network.heads.logit.bias[0] = 500
    weights = network.scenarios(batch(dtype=torch.float32)[0]).weights
    assert weights[:, 1:].min() == 0


def two_modes(windows: int, generator: torch.Generator) -> tuple[Context, torch.Tensor]:
    """Channels around 2 that continue at 3 in 30 % of all cases, else at 1."""
    past = 2 + 0.1 * torch.randn(windows, 12, 16, generator=generator)
    up = torch.rand(windows, 1, 16, generator=generator) < 0.3
    target = torch.where(up, 3.0, 1.0) + 0.02 * torch.randn(windows, 4, 16, generator=generator)
    time = np.tile(moments(16), (windows, 1))
    return Context(past, time, layout(4)), target


@pytest.mark.parametrize("objective", ["relaxed", "annealed"])
def test_training_finds_two_modes_and_their_probabilities(objective: str) -> None:
    torch.manual_seed(1)
    config = small(hypotheses=4, objective=objective, cooling=0.9)
    network, generator = TimePrismNetwork(config, 12, 4), torch.Generator().manual_seed(7)
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(250):
        optimiser.zero_grad()
        network(*two_modes(32, generator)).loss.backward()
        optimiser.step()
    scenarios = network.scenarios(two_modes(1, generator)[0])
    values = scenarios.values.mean((2, 3)).flatten()
    weights = scenarios.weights.mean(2).flatten()
    for mode, share in ((3.0, 0.3), (1.0, 0.7)):
        near = (values - mode).abs() < 0.15
        assert bool(near.any())
        assert float(weights[near].sum()) == pytest.approx(share, abs=0.06)


def test_channels_of_zeros_constants_and_tiny_sizes_stay_finite() -> None:
    context, target = batch(dtype=torch.float32)
    context.past[..., 3] *= 1e-12  # an angle next to the slack bus, which then moves
    largest = {}
    for name, changes in {"default": {}, "reference": {"least_scale": 1e-10}}.items():
        network = network_of(small(**changes), dtype=torch.float32)
        loss, parts = network(context, target)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        assert bool(loss.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert network.scenarios(context).values.isfinite().all()
        largest[name] = float(parts["largest input"])
    size = float(target[..., 3].abs().max())
    assert largest["default"] == pytest.approx(size / 1e-4, rel=1e-3)
    assert largest["reference"] == pytest.approx(size / 1e-10, rel=1e-3)


def test_scenarios_cover_the_networks_horizon() -> None:
    assert network_of(small()).scenarios(batch()[0]).values.shape == (3, 6, HORIZON, 8)
