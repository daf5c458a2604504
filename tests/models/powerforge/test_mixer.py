"""The mixer against attention in loops over single channels."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from powerphase.models.powerforge import Attention, TokenMixer
from tests.models.powerforge import TINY

Vectors = NDArray[np.float64]


def mixer_and_state() -> tuple[TokenMixer, torch.Tensor]:
    torch.manual_seed(0)
    return TokenMixer(TINY).double(), torch.randn(2, 6, 8, dtype=torch.float64)


def attention(weights: Attention, queries: Vectors, sources: Vectors) -> Vectors:
    """The attention of each query to the sources, one by one."""
    query, key, value = (
        layer.weight.detach().numpy() for layer in (weights.query, weights.key, weights.value)
    )
    outputs = []
    for channel in queries:
        logit = [(query @ channel) @ (key @ source) / np.sqrt(len(channel)) for source in sources]
        share = np.exp(logit) / np.exp(logit).sum()
        terms = [s * (value @ source) for s, source in zip(share, sources, strict=True)]
        outputs.append(np.sum(terms, axis=0))
    return np.array(outputs)


def test_channels_read_tokens_write_channels_read() -> None:
    mixer, state = mixer_and_state()
    outputs = mixer(state).detach().numpy()
    for window in range(2):
        channels, tokens = state[window].numpy(), mixer.tokens.detach().numpy()
        channels = channels + attention(mixer.read, channels, tokens)
        tokens = tokens + attention(mixer.write, tokens, channels)
        channels = channels + attention(mixer.read, channels, tokens)
        np.testing.assert_allclose(outputs[window], channels, rtol=1e-11, atol=1e-13)


def test_a_single_token_gives_all_channels_the_same() -> None:
    mixer, state = mixer_and_state()
    mixer.tokens.data = mixer.tokens.data[:1]
    assert torch.allclose((mixer(state) - state).std(1), torch.zeros(()).double(), atol=1e-14)


def test_zero_values_change_nothing() -> None:
    mixer, state = mixer_and_state()
    torch.nn.init.zeros_(mixer.read.value.weight)
    assert torch.equal(mixer(state), state)


def test_both_reads_share_their_weights() -> None:
    mixer = TokenMixer(replace(TINY, tokens=5))
    assert mixer.tokens.shape == (5, 8)
    assert sum(p.numel() for p in mixer.parameters()) == 5 * 8 + 6 * 8 * 8
