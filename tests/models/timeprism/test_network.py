"""The loss and its gradients against the straightforward form, and what the network learns."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.framework.choice import temperature
from powerphase.models.timeprism.network import TimePrismNetwork
from powerphase.scenarios import Context
from tests.models.factorforge import layout, moments
from tests.models.timeprism import HORIZON, batch, network_of, small
from tests.models.timeprism import straightforward as plain

LOSSES: list[dict[str, Any]] = [
    {},
    {"objective": "plain"},
    {"objective": "annealed"},
    {"objective": "annealed", "temperature": 10.0, "least_temperature": 11.0},
    {"least_scale": 1e-10, "zero_scale": "batch"},
    {"score_weight": 0.3, "slack": 0.2},
]


@pytest.mark.parametrize("changes", LOSSES)
@pytest.mark.parametrize("block", [None, 3])
def test_loss_and_gradients_are_those_of_the_straightforward_form(
    changes: dict[str, Any], block: int | None
) -> None:
    network = network_of(small(**changes), block)
    context, target = batch()
    context.past[0, :, 4] = 0  # zero in one window of three, so that it can borrow
    found = network(context, target).loss
    slopes = torch.autograd.grad(found, network.parameters())
    wanted = plain.loss(network, context.past, target, network.config.temperature)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(slopes, torch.autograd.grad(wanted, network.parameters()), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("objective", ["relaxed", "plain", "annealed"])
def test_in_float32_the_loss_keeps_four_digits(objective: str) -> None:
    config = small(objective=objective)
    exact, rounded = network_of(config), network_of(config, dtype=torch.float32)
    found = rounded(*batch(dtype=torch.float32))
    wanted = plain.loss(exact, batch()[0].past, batch()[1], config.temperature)
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-4)
    slopes = torch.autograd.grad(found.loss, rounded.parameters())
    wanted_slopes = torch.autograd.grad(wanted, exact.parameters())
    for one, other in zip(slopes, wanted_slopes, strict=True):
        close = 1e-4 * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=close)


def test_in_float32_a_small_distance_between_large_numbers_keeps_four_digits() -> None:
    """As of a voltage, which moves by a hundredth of what hypotheses of other channels do."""
    config = small(objective="plain", score_weight=0.0)
    exact, rounded = network_of(config), network_of(config, dtype=torch.float32)
    context, target = batch()
    with torch.no_grad():
        for network in (exact, rounded):
            network.heads.season.bias.mul_(30)
    made = plain.forecast(exact, context.past)
    right = (made.hypotheses[:, 4] * made.scale).detach()
    target = right + 0.01 * made.scale * torch.sin(target)
    given = Context(context.past.float(), context.time, context.layout)
    found = rounded(given, target.float()).loss.item()
    wanted = plain.loss(exact, context.past, target, 1.0).item()
    assert found == pytest.approx(wanted, rel=1e-4)


def test_gradients_go_with_what_the_loss_is_multiplied_by() -> None:
    network = network_of(small())
    context, target = batch()
    once, thrice = (
        torch.autograd.grad(factor * network(context, target).loss, network.heads.trend.weight)[0]
        for factor in (1, 3)
    )
    torch.testing.assert_close(thrice, 3 * once)


def test_parts_say_what_the_loss_is_made_of() -> None:
    network = network_of(small(score_weight=0.5), block=3)
    context, target = batch()
    loss, parts = network(context, target)
    torch.testing.assert_close(loss, parts["distance"] + 0.5 * parts["score"])
    made = plain.forecast(network, context.past)
    inputs = torch.cat([context.past, target], dim=1) / made.scale
    torch.testing.assert_close(parts["largest input"], inputs.abs().max())
    winners = plain.distances(made, target).argmin(1).unique()
    assert float(parts["winning share"]) == pytest.approx(len(winners) / 6)
    still = (context.past == 0).all(1)
    torch.testing.assert_close(parts["zero channels"], still.to(loss).mean())
    assert not parts["distance"].requires_grad


def test_the_loss_is_the_same_without_gradients() -> None:
    network = network_of(small(), block=3)
    context, target = batch()
    with torch.no_grad():
        found = network(context, target).loss
    assert not found.requires_grad
    assert torch.equal(found, network(context, target).loss)


def test_temperatures_fall_by_epoch_of_training_steps_and_end_in_winner_takes_all() -> None:
    config = small(objective="annealed", temperature=4.0, cooling=0.1, least_temperature=0.03)
    network, (context, target) = network_of(config), batch()
    found = []
    for _ in range(7):
        network.eval()
        network(context, target)
        found.append(float(temperature(network.steps, config)))
        network.train()
        network(context, target)
    assert found == pytest.approx([4.0] * 3 + [0.4] * 3 + [0.04])
    network.eval()
    hard = network_of(small(objective="plain"))(context, target).loss
    assert network(context, target).loss > hard + 1e-3
    network.steps.fill_(3 * 3)  # 0.004, below the limit
    torch.testing.assert_close(network(context, target).loss, hard)


@pytest.mark.parametrize("objective", ["relaxed", "plain", "annealed"])
def test_a_step_stays_on_its_device_and_never_waits_for_it(objective: str) -> None:
    """Of meta tensors there are no numbers to wait for, and they mix with no others."""
    network = network_of(small(objective=objective), block=3).to("meta")
    context, target = batch()
    loss, parts = network.losses(context.past.to("meta"), target.to("meta"))
    loss.backward()
    assert {part.device.type for part in parts.values()} == {"meta"}
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_half_precision_is_for_the_heads_alone() -> None:
    network = network_of(small(), dtype=torch.float32)
    context, target = batch(dtype=torch.float32)
    wanted = network(context, target).loss
    with torch.autocast("cpu", torch.bfloat16):
        found = network(context, target).loss
    assert found.dtype == torch.float32
    assert found.item() != wanted.item()
    assert found.item() == pytest.approx(wanted.item(), rel=0.02)


def test_scenarios_are_all_hypotheses_in_the_channel_s_own_units() -> None:
    network = network_of(small())
    context, _ = batch()
    made = plain.forecast(network, context.past)
    found = network.scenarios(context)
    torch.testing.assert_close(found.values, made.hypotheses * made.scale.unsqueeze(1))
    torch.testing.assert_close(found.weights, made.logits.softmax(1))
    part = network.scenarios(context, channels=slice(3, 6))
    torch.testing.assert_close(part.values, found.values[..., 3:6])


def test_a_window_s_scenarios_borrow_nothing_from_other_windows() -> None:
    network = network_of(small(least_scale=1e-10, zero_scale="batch"))
    context, _ = batch()
    context.past[0, :, 4] = 0
    alone = Context(context.past[:1], context.time[:1], context.layout)
    together = network.scenarios(context)
    torch.testing.assert_close(network.scenarios(alone).values, together.values[:1])


def test_hopeless_hypotheses_may_have_no_weight_at_all() -> None:
    network = network_of(small(), dtype=torch.float32)
    with torch.no_grad():
        network.heads.logit.bias[0] = 500
    weights = network.scenarios(batch(dtype=torch.float32)[0]).weights
    assert weights[:, 1:].min() == 0


def two_modes(windows: int, generator: torch.Generator) -> tuple[Context, torch.Tensor]:
    """Channels that go on, from around 2, at 3 in three of ten cases and at 1 in seven."""
    past = 2 + 0.1 * torch.randn(windows, 12, 16, generator=generator)
    up = torch.rand(windows, 1, 16, generator=generator) < 0.3
    target = torch.where(up, 3.0, 1.0) + 0.02 * torch.randn(windows, 4, 16, generator=generator)
    time = np.tile(moments(16), (windows, 1))
    return Context(past, time, layout(4)), target


@pytest.mark.parametrize("objective", ["relaxed", "annealed"])
def test_two_modes_are_found_and_weighed_by_how_often_they_come(objective: str) -> None:
    torch.manual_seed(1)
    config = small(hypotheses=4, objective=objective, cooling=0.9)
    network, generator = TimePrismNetwork(config, 12, 4), torch.Generator().manual_seed(7)
    optimiser = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(250):
        optimiser.zero_grad()
        network(*two_modes(32, generator)).loss.backward()
        optimiser.step()
    made = network.scenarios(two_modes(1, generator)[0])
    values, weights = made.values.mean((2, 3)).flatten(), made.weights.mean(2).flatten()
    for mode, share in ((3.0, 0.3), (1.0, 0.7)):
        near = (values - mode).abs() < 0.15
        assert bool(near.any())
        assert float(weights[near].sum()) == pytest.approx(share, abs=0.06)


def test_channels_of_zeros_constants_and_tiny_sizes_stay_finite() -> None:
    context, target = batch(dtype=torch.float32)
    context.past[..., 3] *= 1e-12  # an angle beside the slack bus, which then moves
    found = {}
    for name, changes in {"default": {}, "reference": {"least_scale": 1e-10}}.items():
        network = network_of(small(**changes), dtype=torch.float32)
        loss, parts = network(context, target)
        slopes = torch.autograd.grad(loss, network.parameters())
        assert bool(loss.isfinite())
        assert all(bool(slope.isfinite().all()) for slope in slopes)
        assert network.scenarios(context).values.isfinite().all()
        found[name] = float(parts["largest input"])
    size = float(target[..., 3].abs().max())
    assert found["default"] == pytest.approx(size / 1e-4, rel=1e-3)
    assert found["reference"] == pytest.approx(size / 1e-10, rel=1e-3)


def test_the_horizon_is_the_network_s() -> None:
    assert network_of(small()).scenarios(batch()[0]).values.shape == (3, 6, HORIZON, 8)
