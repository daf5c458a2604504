"""Heads and bridge against their equations, scenario by scenario, and who may listen to whom."""

from dataclasses import replace
from math import pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import Decoder
from tests.models.powerforge import TINY, network

B, N, M, H, K = 2, 3, 4, 12, 8
"""Windows, buses, scenarios, steps and features of these tests."""


def decoder_of(config: PowerForgeConfig = TINY) -> Decoder:
    return network(config).decoder


def states() -> Tensor:
    return torch.randn(B, N, 4, K, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def arrays(module: torch.nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    return module.weight.detach().numpy(), module.bias.detach().numpy()


def by_hand(decoder: Decoder, state: np.ndarray, scenario: int, noise: np.ndarray) -> list:
    """The four deviations of one bus (4 K) in one scenario (noise 2 H)."""
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
        seer = fused[kind]
        if decoder.bridge is not None:
            seer = seer + bridged(decoder.bridge, seer, powers)
        weight, bias = arrays(head)
        gates.append(np.tanh(weight @ seer + bias))
    return [*powers, decoder.voltage_range.item() * gates[0], pi * gates[1]]


def bridged(bridge, seer: np.ndarray, powers: list[np.ndarray]) -> np.ndarray:
    query, key, value = (
        layer.weight.detach().numpy() for layer in (bridge.query, bridge.key, bridge.value)
    )
    tokens = []
    for layer, power in zip(bridge.token, powers, strict=True):
        weight, bias = arrays(layer)
        tokens.append(weight @ power + bias)
    logit = np.array([(query @ seer) @ (key @ token) / sqrt(K) for token in tokens])
    share = np.exp(logit) / np.exp(logit).sum()
    return bridge.scale.item() * sum(s * (value @ t) for s, t in zip(share, tokens, strict=True))


@pytest.mark.parametrize("bridge", [True, False])
def test_deviations_are_those_of_the_equations(bridge: bool) -> None:
    decoder, state = decoder_of(replace(TINY, bridge=bridge)), states()
    noise = torch.randn(2, M, H, dtype=torch.float64)
    found = torch.stack(decoder(state, noise)).detach().numpy()
    assert found.shape == (4, B, N, M, H)
    for window, bus, scenario in np.ndindex(B, N, M):
        wanted = by_hand(decoder, state[window, bus].numpy(), scenario, noise[:, scenario].numpy())
        np.testing.assert_allclose(found[:, window, bus, scenario], wanted, rtol=1e-10, atol=1e-13)


def test_without_noise_power_is_its_mean() -> None:
    decoder, state = decoder_of(), states()
    silent, still = decoder(state, None), decoder(state, torch.zeros(2, M, H).double())
    for one, other in zip(silent, still, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)


def test_noise_is_shared_by_the_grid_and_scaled_by_each_channel() -> None:
    decoder, state = decoder_of(), states()
    noise = torch.zeros(2, M, H).double()
    noise[0, 1, 3] = 1.0
    moved = decoder(state, noise).p - decoder(state, None).p
    assert (moved[:, :, 1, 3] > 0).all()
    assert moved.count_nonzero() == B * N
    assert torch.equal(decoder(state, noise).q, decoder(state, None).q)


def test_training_begins_near_the_reference_with_little_noise() -> None:
    torch.manual_seed(0)
    decoder = Decoder(replace(TINY, noise_start=0.02), H).double()
    silent, noisy = decoder(states(), None), decoder(states(), torch.ones(2, M, H).double())
    assert max(part.abs().max() for part in silent) < 0.1
    assert silent.v.abs().max() < 0.05 * 0.1
    torch.testing.assert_close(
        noisy.p - silent.p, torch.full_like(silent.p, 0.02), rtol=0.05, atol=0
    )
    assert decoder.bridge is not None
    assert decoder.bridge.scale.item() == 1.0


@pytest.mark.parametrize(("range_pu", "bound_pu"), [(0.03, 0.03), (1e-5, 1e-4), (-1.0, 1e-4)])
def test_voltages_stay_within_a_bound_that_has_a_floor(range_pu: float, bound_pu: float) -> None:
    decoder = decoder_of()
    decoder.voltage_range.data.fill_(range_pu)
    far = decoder(states() * 1e3, None)
    assert decoder.voltage_bound.item() == pytest.approx(bound_pu)
    assert far.v.abs().max().item() == pytest.approx(bound_pu)
    assert far.theta.abs().max().item() == pytest.approx(pi)


def gradient(of: Tensor, state: Tensor) -> Tensor:
    """Which of the states (B N 4 K) a number depends on, as B N 4."""
    return torch.autograd.grad(of, state, retain_graph=True)[0].abs().sum(3) > 0


def test_power_never_listens_to_voltage_and_angle() -> None:
    state = states().requires_grad_()
    found = decoder_of()(state, torch.ones(2, M, H).double())
    for kind in (P, Q):
        wanted = torch.zeros(B, N, 4, dtype=torch.bool)
        wanted[1, 2, kind] = True
        assert torch.equal(gradient(found[kind][1, 2, 3].sum(), state), wanted)


@pytest.mark.parametrize("bridge", [True, False])
def test_voltage_and_angle_listen_to_the_power_of_their_own_bus(bridge: bool) -> None:
    state = states().requires_grad_()
    found = decoder_of(replace(TINY, bridge=bridge))(state, None)
    for kind in (V, THETA):
        wanted = torch.zeros(B, N, 4, dtype=torch.bool)
        wanted[0, 1, kind] = True
        wanted[0, 1, :V] = bridge
        assert torch.equal(gradient(found[kind][0, 1, 2].sum(), state), wanted)


def test_the_bridge_carries_nothing_between_buses_windows_and_scenarios() -> None:
    decoder, state = decoder_of(), states()
    assert decoder.bridge is not None
    p, q = (torch.randn(B, N, M, H, dtype=torch.float64, requires_grad=True) for _ in "pq")
    seen = decoder.bridge(state[:, :, V:], decoder.scenario, p, q, list(decoder.gate))
    for part in seen:
        for moved in torch.autograd.grad(part[1, 0, 2].sum(), (p, q), retain_graph=True):
            wanted = torch.zeros(B, N, M, dtype=torch.bool)
            wanted[1, 0, 2] = True
            assert torch.equal(moved.abs().sum(3) > 0, wanted)


@pytest.mark.parametrize(
    ("config", "law"),
    [
        (TINY, stats.norm()),
        (replace(TINY, noise="student-t"), stats.t(3)),
        (replace(TINY, noise="student-t", student_degrees=1.5), stats.t(1.5)),
    ],
)
def test_noise_follows_its_law(config: PowerForgeConfig, law) -> None:
    decoder = Decoder(config, horizon=5_000)
    noise = decoder.draw_noise(torch.Generator().manual_seed(1))
    assert noise.shape == (2, M, 5_000)
    assert stats.kstest(noise.flatten().numpy(), law.cdf).pvalue > 0.01


@pytest.mark.parametrize("noise", ["gaussian", "student-t"])
def test_noise_is_fixed_by_its_generator(noise) -> None:
    decoder = Decoder(replace(TINY, noise=noise), H)
    first, again, other = (
        decoder.draw_noise(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
