"""The mixer against attention written out for single channels."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from powerphase.models.powerforge.encoder import Attention, TokenMixer
from tests.models.powerforge import TINY

Vectors = NDArray[np.float64]


def made() -> tuple[TokenMixer, torch.Tensor]:
    torch.manual_seed(0)
    return TokenMixer(TINY).double(), torch.randn(2, 6, 8, dtype=torch.float64)


def attended(weights: Attention, seekers: Vectors, sources: Vectors) -> Vectors:
    """What each seeker takes from the sources, one by one."""
    query, key, value = (
        layer.weight.detach().numpy() for layer in (weights.query, weights.key, weights.value)
    )
    found = []
    for seeker in seekers:
        logit = [(query @ seeker) @ (key @ source) / np.sqrt(len(seeker)) for source in sources]
        share = np.exp(logit) / np.exp(logit).sum()
        found.append(sum(s * (value @ source) for s, source in zip(share, sources, strict=True)))
    return np.array(found)


def test_channels_read_tokens_read_channels_read() -> None:
    mixer, state = made()
    found = mixer(state).detach().numpy()
    for window in range(2):
        channels, tokens = state[window].numpy(), mixer.tokens.detach().numpy()
        channels = channels + attended(mixer.read, channels, tokens)
        tokens = tokens + attended(mixer.write, tokens, channels)
        channels = channels + attended(mixer.read, channels, tokens)
        np.testing.assert_allclose(found[window], channels, rtol=1e-11, atol=1e-13)


def test_one_token_says_the_same_to_all() -> None:
    mixer, state = made()
    mixer.tokens.data = mixer.tokens.data[:1]
    assert torch.allclose((mixer(state) - state).std(1), torch.zeros(()).double(), atol=1e-14)


def test_values_of_nought_leave_all_as_it_was() -> None:
    mixer, state = made()
    torch.nn.init.zeros_(mixer.read.value.weight)
    assert torch.equal(mixer(state), state)


def test_the_tokens_are_few_and_the_reads_share_their_weights() -> None:
    mixer = TokenMixer(replace(TINY, tokens=5))
    assert mixer.tokens.shape == (5, 8)
    assert sum(p.numel() for p in mixer.parameters()) == 5 * 8 + 6 * 8 * 8
