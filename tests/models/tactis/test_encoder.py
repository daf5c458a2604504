"""Tokens and encoder: PyTorch's own layers are the oracle for attention."""

from itertools import combinations
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.models.tactis import (
    AttentionLayer,
    Encoder,
    TactisConfig,
    Tokens,
    attend,
    attend_over_series,
    attend_over_time,
    context_scale,
    draw_bags,
)
from powerphase.models.tactis import encoder as encoder_module
from tests.models.tactis.toys import tiny

CPU = torch.device("cpu")


def test_a_normalised_context_has_mean_zero_and_unbiased_deviation_one() -> None:
    past = 3 + 5 * torch.randn(4, 50, 6, dtype=torch.float64)
    normalised = context_scale(past, 1e-4).normalise(past)
    torch.testing.assert_close(normalised.mean(2), torch.zeros(4, 6).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(normalised.std(2), torch.ones(4, 6).double())


def test_a_constant_channel_is_divided_by_the_floor() -> None:
    past = torch.full((1, 50, 2), 1.05)
    past[..., 1] += 1e-6 * torch.randn(50)
    scale = context_scale(past, 1e-4)
    assert (scale.deviation == 1e-4).all()
    assert scale.normalise(past + 0.3).abs().max() < 3.1e3


def test_all_sets_of_channels_are_equally_likely() -> None:
    torch.manual_seed(0)
    bags = draw_bags(30_000, 6, 3, CPU).sort(1).values
    assert (bags.diff(dim=1) > 0).all()
    sets = torch.tensor(list(combinations(range(6), 3)))
    shares = (bags[:, None] == sets).all(2).float().mean(0)
    assert (shares - 1 / 20).abs().max() < 5 * sqrt(0.05 * 0.95 / 30_000)


def test_a_bag_holds_all_channels_of_a_grid_that_has_fewer() -> None:
    assert draw_bags(5, 3, 8, CPU).sort(1).values.tolist() == 5 * [[0, 1, 2]]


def test_a_token_encodes_value_series_observedness_and_time() -> None:
    torch.manual_seed(0)
    tokens, past = Tokens(TactisConfig(), 9, 4, 2), torch.randn(1, 3, 4)
    series = torch.tensor([[7, 0, 2]])
    embedded, (first, second) = tokens(past, series), (tokens.first, tokens.second)
    for channel, step in ((0, 0), (1, 3), (2, 4), (2, 5)):
        known = step < 4
        value = past[0, channel, step : step + 1] if known else torch.zeros(1)
        embedding = tokens.series.weight[series[0, channel]]
        features = torch.cat([value, embedding, torch.tensor([float(known)])])
        speed = [10_000 ** (-k / 16) for k in range(0, 16, 2)]
        wave = torch.tensor([w for s in speed for w in (torch.tensor(step * s).sin(),
                                                        torch.tensor(step * s).cos())])  # fmt: skip
        expected = 4 * second(first(features).relu()).relu() + wave
        torch.testing.assert_close(embedded[0, channel, step], expected, atol=1e-5, rtol=1e-5)


def oracle(layer: AttentionLayer, hidden: int) -> nn.TransformerEncoderLayer:
    """PyTorch's layer with the same weights."""
    theirs = nn.TransformerEncoderLayer(layer.width, 1, hidden, dropout=0.0, batch_first=True)
    theirs.double()
    pairs: list[tuple[Any, Any]] = [
        (theirs.self_attn.in_proj_weight, layer.project.weight),
        (theirs.self_attn.in_proj_bias, layer.project.bias),
        (theirs.self_attn.out_proj.weight, layer.attended.weight),
        (theirs.self_attn.out_proj.bias, layer.attended.bias),
    ]
    ours = (layer.first, layer.second, *layer.norms)
    modules = (theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2)
    for copy, source in zip(modules, ours, strict=True):
        pairs += [(copy.weight, source.weight), (copy.bias, source.bias)]
    with torch.no_grad():
        for copied, original in pairs:
            copied.copy_(original)
    return theirs


def gradients(output: Tensor, layer: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    values = torch.autograd.grad(output.sin().sum(), [tokens, *layer.parameters()])
    names = ["tokens", *(name for name, _ in layer.named_parameters())]
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("length", [5, 40])
def test_a_layer_equals_pytorchs_in_values_and_gradients(length: int) -> None:
    torch.manual_seed(0)
    layer = AttentionLayer(16, 12).double()
    tokens = torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
    theirs = oracle(layer, 12)
    output, expected = layer(tokens, length), theirs(tokens)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-10)
    ours, oracles = gradients(output, layer, tokens), gradients(expected, theirs, tokens)
    for name, in_pytorch in (
        ("tokens", "tokens"),
        ("project.weight", "self_attn.in_proj_weight"),
        ("first.bias", "linear1.bias"),
        ("norms.1.weight", "norm2.weight"),
    ):
        torch.testing.assert_close(ours[name], oracles[in_pytorch], atol=1e-12, rtol=1e-9)


def test_attention_to_few_keys_equals_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 4, 7, 16, dtype=torch.float64)
    few = attend(query, key, value)
    monkeypatch.setattr(encoder_module, "FEW_KEYS", 0)
    torch.testing.assert_close(attend(query, key, value), few)


@pytest.mark.parametrize("at_once", [1, 4, 7])
def test_computing_in_parts_changes_neither_values_nor_gradients(at_once: int) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([AttentionLayer(16, 16), AttentionLayer(16, 16)]).double()
    tokens = torch.randn(2, 3, 40, 16, dtype=torch.float64, requires_grad=True)
    results = []
    for size in (None, at_once):
        in_time = attend_over_time(layers[0], tokens, 9, size)
        output = attend_over_series(layers[1], in_time, size)
        results.append([output, *gradients(output, layers, tokens).values()])
    for whole, in_parts in zip(*results, strict=True):
        torch.testing.assert_close(in_parts, whole, atol=1e-12, rtol=1e-9)


def plain(encoder: Encoder, past: Tensor, series: Tensor) -> Tensor:
    """All layers for all steps, by PyTorch."""
    tokens: Tensor = encoder.tokens(past, series)
    for pair in zip(encoder.in_time, encoder.in_series, strict=True):
        in_time, in_series = (oracle(layer, 16) for layer in pair)  # type: ignore[arg-type]
        tokens = torch.stack([in_time(window) for window in tokens])
        by_step = [in_series(window.transpose(0, 1)).transpose(0, 1) for window in tokens]
        tokens = torch.stack(by_step)
    return tokens


@pytest.mark.parametrize("n_steps", [1, 6, 46])
def test_encoding_the_last_steps_equals_the_end_of_encoding_all(n_steps: int) -> None:
    torch.manual_seed(0)
    encoder = Encoder(TactisConfig(), 9, 40, 6).double()
    past, series = torch.randn(2, 3, 40).double(), torch.tensor([[7, 0, 2], [1, 2, 3]])
    expected = plain(encoder, past, series)[:, :, -n_steps:]
    for at_once in (None, 2):
        encoded = encoder(past, series, n_steps, at_once)
        torch.testing.assert_close(encoded, expected, atol=1e-10, rtol=1e-9)


def test_the_order_of_a_bag_does_not_matter() -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny(), 9, 10, 4).double()
    past, series = torch.randn(1, 3, 10).double(), torch.tensor([[7, 0, 2]])
    order = [2, 0, 1]
    reordered = encoder(past[:, order], series[:, order], 4)
    torch.testing.assert_close(reordered, encoder(past, series, 4)[:, order])
