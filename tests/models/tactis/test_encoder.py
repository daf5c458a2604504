"""The encoder: PyTorch's own layers are the oracle; parts and unasked steps change nothing."""

import pytest
import torch
from torch import Tensor, nn

from powerphase.models.tactis import encoder as attention
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import AttentionLayer, Encoder, attend, over_series, over_time
from tests.models.tactis.toys import tiny


def oracle(layer: AttentionLayer, hidden: int) -> nn.TransformerEncoderLayer:
    """The layer of PyTorch with the same weights."""
    made = nn.TransformerEncoderLayer(layer.width, 1, hidden, dropout=0.0, batch_first=True)
    made.double()
    pairs = [
        (made.self_attn.in_proj_weight, layer.project.weight),
        (made.self_attn.in_proj_bias, layer.project.bias),
        (made.self_attn.out_proj.weight, layer.attended.weight),
        (made.self_attn.out_proj.bias, layer.attended.bias),
    ]
    mine = (layer.first, layer.second, *layer.norms)
    for one, other in zip((made.linear1, made.linear2, made.norm1, made.norm2), mine, strict=True):
        pairs += [(one.weight, other.weight), (one.bias, other.bias)]
    with torch.no_grad():
        for theirs, own in pairs:
            theirs.copy_(own)
    return made


def gradients(found: Tensor, layer: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    made = torch.autograd.grad(found.sin().sum(), [tokens, *layer.parameters()])
    return dict(zip(["tokens", *(name for name, _ in layer.named_parameters())], made, strict=True))


@pytest.mark.parametrize("length", [5, 40])
def test_a_layer_is_that_of_pytorch_values_and_gradients(length: int) -> None:
    torch.manual_seed(0)
    layer = AttentionLayer(16, 12).double()
    tokens = torch.randn(3, length, 16, dtype=torch.float64, requires_grad=True)
    theirs = oracle(layer, 12)
    found, expected = layer(tokens, length), theirs(tokens)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    mine, other = gradients(found, layer, tokens), gradients(expected, theirs, tokens)
    for name, same in (
        ("tokens", "tokens"),
        ("project.weight", "self_attn.in_proj_weight"),
        ("first.bias", "linear1.bias"),
        ("norms.1.weight", "norm2.weight"),
    ):
        torch.testing.assert_close(mine[name], other[same], atol=1e-12, rtol=1e-9)


def test_few_keys_are_attended_to_as_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 4, 7, 16, dtype=torch.float64)
    few = attend(query, key, value)
    monkeypatch.setattr(attention, "FEW", 0)
    torch.testing.assert_close(attend(query, key, value), few)


@pytest.mark.parametrize("at_once", [1, 4, 7])
def test_parts_change_neither_values_nor_gradients(at_once: int) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList([AttentionLayer(16, 16), AttentionLayer(16, 16)]).double()
    tokens = torch.randn(2, 3, 40, 16, dtype=torch.float64, requires_grad=True)
    found = []
    for size in (None, at_once):
        made = over_series(layers[1], over_time(layers[0], tokens, 9, size), size)
        found.append([made, *gradients(made, layers, tokens).values()])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, atol=1e-12, rtol=1e-9)


def plain(encoder: Encoder, past: Tensor, series: Tensor) -> Tensor:
    """All layers for all steps, by PyTorch's."""
    found: Tensor = encoder.tokens(past, series)
    for pair in zip(encoder.in_time, encoder.in_series, strict=True):
        over, across = (oracle(layer, 16) for layer in pair)  # type: ignore[arg-type]
        found = torch.stack([over(one) for one in found])
        found = torch.stack([across(one.transpose(0, 1)).transpose(0, 1) for one in found])
    return found


@pytest.mark.parametrize("asked", [1, 6, 46])
def test_what_is_asked_is_the_end_of_the_whole(asked: int) -> None:
    torch.manual_seed(0)
    encoder = Encoder(TactisConfig(), 9, 40, 6).double()
    past, series = torch.randn(2, 3, 40).double(), torch.tensor([[7, 0, 2], [1, 2, 3]])
    expected = plain(encoder, past, series)[:, :, -asked:]
    for at_once in (None, 2):
        found = encoder(past, series, asked, at_once)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)


def test_the_order_of_a_bag_does_not_matter() -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny(), 9, 10, 4).double()
    past, series = torch.randn(1, 3, 10).double(), torch.tensor([[7, 0, 2]])
    order = [2, 0, 1]
    found = encoder(past[:, order], series[:, order], 4)
    torch.testing.assert_close(found, encoder(past, series, 4)[:, order])
