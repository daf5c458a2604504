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
from powerphase.models.powerforge.objective import deviations
from tests.models.powerforge import TINY, network

B, N, M, H, K = 2, 3, 4, 12, 8
"""Windows, buses, scenarios, steps and features of these tests."""

SILENCE = torch.zeros(2, H, M, dtype=torch.float64)


def decoder_of(config: PowerForgeConfig = TINY) -> Decoder:
    return network(config).decoder


def random(*size: int, seed: int = 5) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def states() -> Tensor:
    return random(B, 4, N, K)


def made(decoder: Decoder, state: Tensor, noise: Tensor = SILENCE, width: int = N) -> Tensor:
    """The deviations, 4 B M H W."""
    return torch.stack(deviations(decoder.folded().views(state, noise, width), fast=False))


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
@pytest.mark.parametrize("noise", [random(2, H, M, seed=6), SILENCE], ids=["noisy", "silent"])
def test_deviations_are_those_of_the_equations(bridge: bool, noise: Tensor) -> None:
    decoder, state = decoder_of(replace(TINY, bridge=bridge)), states()
    found = made(decoder, state, noise).numpy()
    assert found.shape == (4, B, M, H, N)
    for window, bus, scenario in np.ndindex(B, N, M):
        own, shock = state[window, :, bus].numpy(), noise[:, :, scenario].numpy()
        wanted = by_hand(decoder, own, scenario, shock)
        np.testing.assert_allclose(
            found[:, window, scenario, :, bus], wanted, rtol=1e-10, atol=1e-13
        )


def test_room_for_more_buses_changes_nothing() -> None:
    decoder, state, noise = decoder_of(), states(), random(2, H, M)
    views = decoder.folded().views(state, noise, N + 5)
    assert not views.power[..., N:].any()
    assert not views.gate[..., N:].any()
    found, wanted = made(decoder, state, noise, N + 5)[..., :N], made(decoder, state, noise)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)


def test_slopes_of_what_heads_see_are_those_of_differences() -> None:
    decoder = Decoder(replace(TINY, scenarios=2, hidden=3), horizon=2).double()
    folded = decoder.folded()

    def seen(state: Tensor, power: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        views = folded._replace(power=power, gate=gate).views(state, SILENCE[:, :2, :2], 4)
        return views.power, views.gate

    given = (random(2, 4, 3, 3), folded.power.detach(), folded.gate.detach())
    assert torch.autograd.gradcheck(seen, tuple(one.requires_grad_() for one in given))


def test_half_precision_does_not_reach_the_heads() -> None:
    decoder = network().decoder.float()
    full = decoder.folded().views(states().float(), SILENCE.float(), N)
    with torch.autocast("cpu", torch.bfloat16):
        half = decoder.folded().views(states().float(), SILENCE.float(), N)
    for one, other in zip(half, full, strict=True):
        assert torch.equal(one, other)


def test_noise_is_shared_by_the_grid_and_scaled_by_each_channel() -> None:
    decoder, state, noise = decoder_of(), states(), SILENCE.clone()
    noise[0, 3, 1] = 1.0
    moved = made(decoder, state, noise) - made(decoder, state)
    assert (moved[P, :, 1, 3] > 0).all()
    assert moved[P].count_nonzero() == B * N
    assert not moved[Q].any()


def test_training_begins_near_the_reference_with_little_noise() -> None:
    torch.manual_seed(0)
    decoder = Decoder(replace(TINY, noise_start=0.02), H).double()
    silent, noisy = made(decoder, states()), made(decoder, states(), torch.ones_like(SILENCE))
    assert silent.abs().max() < 0.1
    assert silent[V].abs().max() < 0.05 * 0.1
    torch.testing.assert_close(
        noisy[P] - silent[P], torch.full_like(silent[P], 0.02), rtol=0.05, atol=0
    )
    assert decoder.bridge is not None
    assert decoder.bridge.scale.item() == 1.0


@pytest.mark.parametrize(("range_pu", "bound_pu"), [(0.03, 0.03), (1e-5, 1e-4), (-1.0, 1e-4)])
def test_voltages_stay_within_a_bound_that_has_a_floor(range_pu: float, bound_pu: float) -> None:
    decoder = decoder_of()
    decoder.voltage_range.data.fill_(range_pu)
    far = made(decoder, states() * 1e3)
    assert decoder.bounds.tolist() == pytest.approx([bound_pu, pi])
    assert far[V].abs().max().item() == pytest.approx(bound_pu)
    assert far[THETA].abs().max().item() == pytest.approx(pi)


@pytest.mark.parametrize("bridge", [True, False])
@pytest.mark.parametrize("kind", range(4))
def test_voltage_and_angle_listen_to_the_power_of_their_own_bus_and_never_the_reverse(
    bridge: bool, kind: int
) -> None:
    decoder, state, noise = decoder_of(replace(TINY, bridge=bridge)), states(), random(2, H, M)
    other = state.clone()
    other[1, kind, 2] += random(K, seed=9)
    moved = (made(decoder, other, noise) - made(decoder, state, noise)).abs().amax((2, 3))  # 4 B N
    heard = torch.zeros(4, B, N, dtype=torch.bool)
    heard[kind, 1, 2] = True
    if bridge and kind in (P, Q):
        heard[V:, 1, 2] = True
    assert torch.equal(moved > 1e-9, heard)
    assert not moved[~heard].any()


@pytest.mark.parametrize("source", [P, Q])
def test_the_bridge_carries_nothing_between_scenarios(source: int) -> None:
    decoder, state, noise = decoder_of(), states(), random(2, H, M)
    other = noise.clone()
    other[source, 4, 2] += 1.0
    moved = (made(decoder, state, other) - made(decoder, state, noise)).abs().amax(3)  # 4 B M N
    heard = torch.zeros(4, B, M, N, dtype=torch.bool)
    heard[[source, V, THETA], :, 2] = True
    assert torch.equal(moved > 1e-9, heard)
    assert not moved[~heard].any()


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
    assert noise.shape == (2, 5_000, M)
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
