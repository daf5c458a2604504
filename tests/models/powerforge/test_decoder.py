"""Heads and bridge against their equations, scenario by scenario, and their causality."""

from dataclasses import replace
from math import log, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge import Decoder, PowerForgeConfig, residuals
from tests.models.powerforge import TINY, network

B, N, M, H, K = 2, 3, 4, 12, 8
"""Windows, buses, scenarios, steps and features of these tests."""

NO_NOISE = torch.zeros(2, H, M, dtype=torch.float64)


def decoder_of(config: PowerForgeConfig = TINY) -> Decoder:
    return network(config).decoder


def random(*size: int, seed: int = 5) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def states() -> Tensor:
    return random(B, 4, N, K)


def decode(decoder: Decoder, state: Tensor, noise: Tensor = NO_NOISE, width: int = N) -> Tensor:
    """The residuals, 4 B M H W."""
    return torch.stack(
        residuals(decoder.linear_maps().head_outputs(state, noise, width), fast=False)
    )


def arrays(module: torch.nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    return module.weight.detach().numpy(), module.bias.detach().numpy()


def residuals_by_hand(
    decoder: Decoder, state: np.ndarray, scenario: int, noise: np.ndarray
) -> list[np.ndarray]:
    """The four residuals of one bus (4 K) in one scenario (noise 2 H)."""
    fused = state + decoder.scenario[scenario].detach().numpy()
    powers = []
    for kind in (P, Q):
        (mean, mean_bias), (spread, spread_bias) = (
            arrays(decoder.mean[kind]),
            arrays(decoder.spread[kind]),
        )
        sigma = np.log1p(np.exp(spread @ fused[kind] + spread_bias))
        powers.append(mean @ fused[kind] + mean_bias + sigma * noise[kind])
    gates = []
    for head, kind in zip(decoder.gate, (V, THETA), strict=True):
        response = fused[kind]
        if decoder.bridge is not None:
            response = response + bridge_output(decoder.bridge, response, powers)
        weight, bias = arrays(head)
        gates.append(np.tanh(weight @ response + bias))
    return [*powers, decoder.bounds[0].item() * gates[0], pi * gates[1]]


def bridge_output(bridge: Any, response: np.ndarray, powers: list[np.ndarray]) -> np.ndarray:
    query, key, value = (
        layer.weight.detach().numpy() for layer in (bridge.query, bridge.key, bridge.value)
    )
    tokens = []
    for layer, power in zip(bridge.token, powers, strict=True):
        weight, bias = arrays(layer)
        tokens.append(weight @ power + bias)
    logit = np.array([(query @ response) @ (key @ token) / sqrt(K) for token in tokens])
    share = np.exp(logit) / np.exp(logit).sum()
    values = [s * (value @ token) for s, token in zip(share, tokens, strict=True)]
    return bridge.scale.item() * np.sum(values, axis=0)


@pytest.mark.parametrize("bridge", [True, False])
@pytest.mark.parametrize("noise", [random(2, H, M, seed=6), NO_NOISE], ids=["noise", "no noise"])
def test_residuals_equal_the_equations(bridge: bool, noise: Tensor) -> None:
    decoder, state = decoder_of(replace(TINY, bridge=bridge)), states()
    values = decode(decoder, state, noise).numpy()
    assert values.shape == (4, B, M, H, N)
    for window, bus, scenario in np.ndindex(B, N, M):
        channels, channel_noise = state[window, :, bus].numpy(), noise[:, :, scenario].numpy()
        expected = residuals_by_hand(decoder, channels, scenario, channel_noise)
        np.testing.assert_allclose(
            values[:, window, scenario, :, bus], expected, rtol=1e-10, atol=1e-13
        )


def test_padding_changes_nothing() -> None:
    decoder, state, noise = decoder_of(), states(), random(2, H, M)
    heads = decoder.linear_maps().head_outputs(state, noise, N + 5)
    assert not heads.power[..., N:].any()
    assert not heads.gate[..., N:].any()
    values, expected = decode(decoder, state, noise, N + 5)[..., :N], decode(decoder, state, noise)
    torch.testing.assert_close(values, expected, rtol=1e-13, atol=1e-15)


def test_gradients_of_head_outputs_equal_differences() -> None:
    decoder = Decoder(replace(TINY, scenarios=2, hidden=3), horizon=2).double()
    linear_maps = decoder.linear_maps()

    def outputs(state: Tensor, power: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        heads = linear_maps._replace(power=power, gate=gate).head_outputs(
            state, NO_NOISE[:, :2, :2], 4
        )
        return heads.power, heads.gate

    inputs = (random(2, 4, 3, 3), linear_maps.power.detach(), linear_maps.gate.detach())
    assert torch.autograd.gradcheck(outputs, tuple(tensor.requires_grad_() for tensor in inputs))


def test_half_precision_does_not_affect_the_heads() -> None:
    decoder = network().decoder.float()
    full = decoder.linear_maps().head_outputs(states().float(), NO_NOISE.float(), N)
    with torch.autocast("cpu", torch.bfloat16):
        half = decoder.linear_maps().head_outputs(states().float(), NO_NOISE.float(), N)
    torch.testing.assert_close(half, full, rtol=0, atol=0)


def test_noise_is_shared_by_the_grid_and_scaled_by_each_channel() -> None:
    decoder, state, noise = decoder_of(), states(), NO_NOISE.clone()
    noise[0, 3, 1] = 1.0
    moved = decode(decoder, state, noise) - decode(decoder, state)
    assert (moved[P, :, 1, 3] > 0).all()
    assert moved[P].count_nonzero() == B * N
    assert not moved[Q].any()


def test_training_starts_near_the_reference_with_little_noise() -> None:
    torch.manual_seed(0)
    decoder = Decoder(replace(TINY, noise_start=0.02), H).double()
    silent, noisy = decode(decoder, states()), decode(decoder, states(), torch.ones_like(NO_NOISE))
    assert silent.abs().max() < 0.1
    assert silent[V].abs().max() < 0.05 * 0.1
    torch.testing.assert_close(
        noisy[P] - silent[P], torch.full_like(silent[P], 0.02), rtol=0.05, atol=0
    )
    assert decoder.bridge is not None
    assert decoder.bridge.scale.item() == 1.0


GATES = [
    *(("clamp", 0.03, 0.03), ("clamp", 1e-5, 1e-4), ("clamp", -1.0, 1e-4)),
    *(("softplus", 0.0, 1e-4 + log(2)), ("softplus", -60.0, 1e-4), ("softplus", 30.0, 30 + 1e-4)),
]


@pytest.mark.parametrize(("gate", "parameter", "bound_pu"), GATES)
def test_the_bound_of_voltages_has_a_floor(gate: Any, parameter: float, bound_pu: float) -> None:
    decoder = decoder_of(replace(TINY, voltage_gate=gate))
    decoder.voltage_range.data.fill_(parameter)
    far = decode(decoder, states() * 1e3)
    assert decoder.bounds.tolist() == pytest.approx([bound_pu, pi])
    assert far[V].abs().max().item() == pytest.approx(bound_pu)
    assert far[THETA].abs().max().item() == pytest.approx(pi)


@pytest.mark.parametrize("gate", ["softplus", "clamp"])
def test_the_bound_of_voltages_starts_at_its_range(gate: Any) -> None:
    assert Decoder(replace(TINY, voltage_gate=gate), H).bounds[0].item() == pytest.approx(0.05)


@pytest.mark.parametrize("parameter", [-60.0, -10.0, -3.0, 0.0, 3.0])
def test_the_bound_of_voltages_always_has_a_gradient(parameter: float) -> None:
    decoder = Decoder(TINY, H)
    decoder.voltage_range.data.fill_(parameter)
    decoder.bounds.sum().backward()
    gradient = decoder.voltage_range.grad
    assert gradient is not None
    assert gradient > 0


@pytest.mark.parametrize(("gate", "recovers"), [("softplus", True), ("clamp", False)])
def test_a_bound_that_data_pushed_down_recovers_when_they_push_up(
    gate: Any, recovers: bool
) -> None:
    """By the clamp it cannot: below the floor there is no gradient, whatever the data say."""
    decoder, bounds = Decoder(replace(TINY, voltage_gate=gate), H), []
    optimiser = torch.optim.Adam([decoder.voltage_range], 1e-2)
    for step in range(900):
        optimiser.zero_grad()
        (decoder.bounds[0] if step < 300 else -decoder.bounds[0]).backward()
        optimiser.step()
        bounds.append(decoder.bounds[0].item())
    assert bounds[299] < 0.01
    assert (bounds[-1] > 0.05) == recovers


@pytest.mark.parametrize("bridge", [True, False])
@pytest.mark.parametrize("kind", range(4))
def test_power_affects_voltage_and_angle_of_its_bus_and_never_the_reverse(
    bridge: bool, kind: int
) -> None:
    decoder, state, noise = decoder_of(replace(TINY, bridge=bridge)), states(), random(2, H, M)
    changed = state.clone()
    changed[1, kind, 2] += random(K, seed=9)
    moved = (
        (decode(decoder, changed, noise) - decode(decoder, state, noise)).abs().amax((2, 3))
    )  # 4 B N
    expected = torch.zeros(4, B, N, dtype=torch.bool)
    expected[kind, 1, 2] = True
    if bridge and kind in (P, Q):
        expected[V:, 1, 2] = True
    assert torch.equal(moved > 1e-9, expected)
    assert not moved[~expected].any()


@pytest.mark.parametrize("source", [P, Q])
def test_the_bridge_does_not_connect_scenarios(source: int) -> None:
    decoder, state, noise = decoder_of(), states(), random(2, H, M)
    changed = noise.clone()
    changed[source, 4, 2] += 1.0
    moved = (
        (decode(decoder, state, changed) - decode(decoder, state, noise)).abs().amax(3)
    )  # 4 B M N
    expected = torch.zeros(4, B, M, N, dtype=torch.bool)
    expected[[source, V, THETA], :, 2] = True
    assert torch.equal(moved > 1e-9, expected)
    assert not moved[~expected].any()


@pytest.mark.parametrize(
    ("config", "law"),
    [
        (TINY, stats.norm()),
        (replace(TINY, noise="student-t"), stats.t(3)),
        (replace(TINY, noise="student-t", student_degrees=1.5), stats.t(1.5)),
    ],
)
def test_noise_follows_its_distribution(config: PowerForgeConfig, law: Any) -> None:
    decoder = Decoder(config, horizon=5_000)
    noise = decoder.draw_noise(torch.Generator().manual_seed(1))
    assert noise.shape == (2, 5_000, M)
    assert stats.kstest(noise.flatten().numpy(), law.cdf).pvalue > 0.01


def config_with(noise: str) -> PowerForgeConfig:
    changes: dict[str, Any] = {"noise": noise}
    return replace(TINY, **changes)


@pytest.mark.parametrize("noise", ["gaussian", "student-t"])
def test_the_generator_determines_the_noise(noise: str) -> None:
    decoder = Decoder(config_with(noise), H)
    first, again, other = (
        decoder.draw_noise(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
