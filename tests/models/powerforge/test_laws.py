"""Laws that hold for every forecast of PowerForge, with any weights."""

from dataclasses import replace
from math import pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import THETA, P, V
from powerphase.models.powerforge import (
    PowerForgeConfig,
    PowerForgeNetwork,
    subtract_anchor,
    tile_day,
    wrap,
)
from tests.models.powerforge import ABLATED, TINY, context_of, grid_states, network, windows

CONFIGS = {"the defaults": TINY, **{f"no {name}": config for name, config in ABLATED.items()}}
NO_MIXER, WINNER = ABLATED["mixer"], ABLATED["ordered quantiles"]

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def forecast(net: PowerForgeNetwork, past: Tensor) -> Tensor:
    return net.scenarios(context_of(past, net.horizon)).values


@every_config
@pytest.mark.parametrize("seed", range(3))
def test_values_and_weights_are_within_their_bounds(config: PowerForgeConfig, seed: int) -> None:
    net = network(config, horizon=17, seed=seed)
    context, _ = windows(horizon=17, seed=seed)
    scenarios = net.scenarios(context)
    if net.objective.is_ordered:
        assert (scenarios.values.diff(dim=1) >= 0).all()
    assert (scenarios.weights > 0).all()
    torch.testing.assert_close(scenarios.weights.sum(1), torch.ones(2, 20).double())
    day = tile_day(subtract_anchor(context.past, config)[1], 17)
    largest = (scenarios.values - day.unsqueeze(1))[..., V::4].abs().max()
    assert largest <= net.decoder.bounds[0] * (1 + 1e-12)
    assert scenarios.values[..., THETA::4].abs().max() <= pi + 1e-12


def reorder(values: Tensor, order: list[int]) -> Tensor:
    return values.unflatten(-1, (-1, 4))[..., order, :].flatten(-2)


@every_config
def test_the_order_of_the_buses_does_not_matter(config: PowerForgeConfig) -> None:
    order = [3, 0, 4, 2, 1]
    net, changed = network(config), network(config)
    changed.encoder.node.data = net.encoder.node.data[order]
    context, target = windows()
    moved = replace(context, past=reorder(context.past, order))
    torch.testing.assert_close(
        changed.scenarios(moved).values, reorder(net.scenarios(context).values, order)
    )
    torch.testing.assert_close(changed.scenarios(moved).weights, net.scenarios(context).weights)
    losses = []
    for net_, batch in ((net, (context, target)), (changed, (moved, reorder(target, order)))):
        torch.manual_seed(7)
        losses.append(net_(*batch).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-12, atol=0)


@every_config
def test_windows_are_independent(config: PowerForgeConfig) -> None:
    net = network(config)
    context, _ = windows(n_windows=3)
    together = net.scenarios(context)
    for k in range(3):
        alone = replace(context, past=context.past[k : k + 1], time=context.time[k : k + 1])
        torch.testing.assert_close(net.scenarios(alone).values[0], together.values[k])
        torch.testing.assert_close(net.scenarios(alone).weights[0], together.weights[k])


@pytest.mark.parametrize("mixer", [True, False])
def test_buses_interact_only_through_the_mixer(mixer: bool) -> None:
    net, past = network(replace(NO_MIXER, mixer=mixer)), grid_states(36)
    changed = past.clone()
    changed[..., 8:12] = grid_states(36, seed=1)[..., 8:12]
    moved = (
        (forecast(net, changed) - forecast(net, past)).abs().amax((0, 1, 2)).unflatten(0, (5, 4))
    )
    assert (moved[2] > 1e-6).all()
    assert ((moved > 1e-12) == mixer)[[0, 1, 3, 4]].all()


@pytest.mark.parametrize("channel_block", [4, 8, 12, 20, 1_000])
def test_blocks_change_no_forecast(channel_block: int) -> None:
    past = grid_states(36)
    torch.testing.assert_close(
        forecast(network(channel_block=channel_block), past), forecast(network(), past)
    )


def test_a_shift_of_power_shifts_its_forecast() -> None:
    net, past = network(), grid_states(36)
    raised = past.clone()
    raised[..., 8] += 2.5  # P of the third bus
    moved = forecast(net, raised) - forecast(net, past)
    expected = torch.zeros_like(moved)
    expected[..., 8] = 2.5
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("turn", [0.3, 2.0, pi, -1.7])
def test_the_reference_of_angles_does_not_matter(turn: float) -> None:
    net, past = network(WINNER), grid_states(36)  # unsorted, since sorting depends on the reference
    past[..., THETA::4] = 0.2 * past[..., P::4]
    rotated = past.clone()
    rotated[..., THETA::4] = wrap(past[..., THETA::4] + turn)
    moved = forecast(net, rotated) - forecast(net, past)
    assert wrap(moved[..., THETA::4] - turn).abs().max() < 1e-9
    others = [c for c in range(20) if c % 4 != THETA]
    assert moved[..., others].abs().max() < 1e-9


def test_forecasts_are_deterministic() -> None:
    net = network(replace(TINY, dropout=0.5)).eval()
    first = forecast(net, grid_states(36))
    torch.rand(5)
    assert torch.equal(forecast(net, grid_states(36)), first)


@pytest.mark.parametrize("noise", ["gaussian", "student-t"])
def test_the_generator_determines_noisy_forecasts(noise: str) -> None:
    changes: dict[str, Any] = {"noise": noise, "noise_at_prediction": True}
    net = network(replace(TINY, **changes))
    context, _ = windows()
    first, again, other = (
        net.scenarios(context, generator=torch.Generator().manual_seed(seed)).values
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first.diff(dim=1) >= 0).all()


def extremes() -> dict[str, Tensor]:
    """Valid contexts unlike any grid."""
    half, size = float(np.float32(pi)), (1, 36, 20)
    flip = half * (-1.0) ** torch.arange(36).reshape(1, 36, 1)
    contexts = {
        "zeros": torch.zeros(size),
        "constant": torch.full(size, 0.7),
        "pi": torch.full(size, half),
        "minus pi": torch.full(size, -half),
        "alternating pi and minus pi": flip.expand(size).clone(),
        "huge": torch.full(size, 1e6),
        "rough": 1e4 * torch.randn(size, generator=torch.Generator().manual_seed(0)),
        "a last peak": torch.zeros(size).index_fill(1, torch.tensor([35]), 1e3),
    }
    for past in contexts.values():
        past[..., THETA::4] = past[..., THETA::4].clamp(-half, half)
    return contexts


@pytest.mark.parametrize("config", [TINY, ABLATED["anchor"], WINNER])
@pytest.mark.parametrize("past", extremes().values(), ids=extremes())
def test_float32_handles_every_valid_context(config: PowerForgeConfig, past: Tensor) -> None:
    net, context = network(config).float(), context_of(past)
    values = net.scenarios(context).values  # finite, or Scenarios would raise
    assert values.dtype == torch.float32
    assert values[..., THETA::4].abs().max() <= pi + 1e-6
    loss, _ = net(context, past[:, :12])
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
