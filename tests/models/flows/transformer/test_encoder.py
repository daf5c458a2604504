"""The Transformer against PyTorch's own, which is given all lagged values."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.errors import ConfigError
from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.flows.transformer.encoder import Transformer
from powerphase.models.flows.transformer.layers import Attention
from powerphase.models.recurrent.inputs import Window, clock, scales
from powerphase.models.recurrent.rollout import roll_out
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, windows_of

ENCODED = CONTEXT - max(LAGS)
WIDTH = 8


def transformer_of(block: int | None = None, **changes: Any) -> Transformer:
    torch.manual_seed(3)
    config = tiny(TransformerTempFlowConfig, **changes)
    made = Transformer(config, 8, CONTEXT, block, 7).double().eval()
    with torch.no_grad():
        for one in made.parameters():
            one.add_(0.1 * torch.randn_like(one))
    return made


def given_windows() -> tuple[Window, Tensor]:
    context, target = windows_of()
    config = tiny(TransformerTempFlowConfig)
    told = clock(context.time[:, max(LAGS) :], config.minute_period)
    return Window(context.past, target, scales(context.past, config, in_batch=True)), told


def lagged(window: Window, told: Tensor) -> Tensor:
    """Lags of all channels, lag fastest, then the clock."""
    values = window.scaled(slice(None))
    steps = range(max(LAGS), values.shape[1])
    lags = torch.stack([values[:, [t - lag for t in steps]] for lag in LAGS], dim=3)
    return torch.cat([lags.flatten(2), told], dim=2)


def theirs_of(ours: Transformer) -> tuple[nn.Transformer, nn.Linear, nn.Linear]:
    """PyTorch's Transformer and two layers of all inputs, with our weights."""
    options = {"activation": "gelu", "batch_first": True, "dropout": 0.1}
    theirs = nn.Transformer(WIDTH, 2, 2, 2, 12, **options).double().train(ours.training)
    with torch.no_grad():
        for mine, other in zip(ours.encoder, theirs.encoder.layers, strict=True):
            _copy_layer(mine, other, {"self_attn": mine.own})
        for mine, other in zip(ours.decoder, theirs.decoder.layers, strict=True):
            _copy_layer(mine, other, {"self_attn": mine.own, "multihead_attn": mine.cross})
    theirs.encoder.norm.load_state_dict(ours.encoded_norm.state_dict())
    theirs.decoder.norm.load_state_dict(ours.decoded_norm.state_dict())
    layers = []
    for lags, bias in ((ours.past, ours.past_bias), (ours.ahead, ours.ahead_bias)):
        layer = nn.Linear(len(LAGS) * 8 + 6, WIDTH).double()
        by_lag = lags.project.unflatten(1, (len(LAGS), -1)).flatten(0, 1)
        with torch.no_grad():
            layer.weight.copy_(torch.cat([by_lag, lags.clock]).T)
            layer.bias.copy_(bias)
        layers.append(layer)
    return theirs, *layers


def _copy_layer(mine: Any, other: Any, attentions: dict[str, Attention]) -> None:
    for name, attention in attentions.items():
        target = getattr(other, name)
        target.in_proj_weight.copy_(attention.into)
        target.in_proj_bias.copy_(attention.into_bias)
        target.out_proj.load_state_dict(attention.out.state_dict())
    other.linear1.load_state_dict(mine.inner[0].state_dict())
    other.linear2.load_state_dict(mine.inner[3].state_dict())
    for number, added in enumerate(mine.after, start=1):
        getattr(other, f"norm{number}").load_state_dict(added.norm.state_dict())


def known_by(ours: Transformer, theirs: Any, window: Window, told: Tensor) -> Tensor:
    transformer, past, ahead = theirs
    inputs = lagged(window, told)
    mask = nn.Transformer.generate_square_subsequent_mask(HORIZON, dtype=torch.float64)
    decoded = transformer(
        past(inputs[:, :ENCODED]), ahead(inputs[:, ENCODED:]), tgt_mask=mask, tgt_is_causal=True
    )
    return ours.condition(decoded)


@pytest.mark.parametrize("block", [None, 3])
def test_it_is_pytorch_s_transformer_of_all_lagged_values(block: int | None) -> None:
    """Values and gradients."""
    ours, (window, told) = transformer_of(block), given_windows()
    theirs = theirs_of(ours)
    found, expected = ours(window, told), known_by(ours, theirs, window, told)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(found)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for lags, layer in ((ours.past, theirs[1]), (ours.ahead, theirs[2])):
        by_lag = lags.project.grad.unflatten(1, (len(LAGS), -1)).flatten(0, 1)
        wanted = layer.weight.grad.T
        torch.testing.assert_close(torch.cat([by_lag, lags.clock.grad]), wanted, rtol=0, atol=1e-9)
    for mine, other in zip(ours.decoder, theirs[0].decoder.layers, strict=True):
        wanted = other.multihead_attn.in_proj_weight.grad
        torch.testing.assert_close(mine.cross.into.grad, wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            mine.own.into.grad, other.self_attn.in_proj_weight.grad, rtol=0, atol=1e-9
        )


def test_dropout_is_where_pytorch_has_it_and_of_the_training_alone() -> None:
    ours, (window, told) = transformer_of(), given_windows()
    theirs = theirs_of(ours)[0]
    rates = [
        [one.dropout if isinstance(one, Attention) else one.p for one in whole.modules()
         if isinstance(one, Attention | nn.Dropout)]
        for whole in (ours, theirs)
    ]  # fmt: skip
    attentions = [one.dropout for one in theirs.modules() if isinstance(one, nn.MultiheadAttention)]
    assert rates[0] == [*rates[1], *attentions]
    assert torch.equal(ours(window, told), ours(window, told))
    ours.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(ours(window, told))
    assert torch.equal(found[0], found[1])
    assert not torch.isclose(found[0], found[2]).any()


def test_it_has_as_many_numbers_as_pytorch_s_and_begins_like_it() -> None:
    torch.manual_seed(3)
    config = tiny(TransformerTempFlowConfig, width=64, feed_forward=256, heads=8)
    ours = Transformer(config, 400, CONTEXT, None, 7)
    theirs = nn.Transformer(64, 8, 2, 2, 256, activation="gelu", batch_first=True)
    count = sum(one.numel() for one in theirs.parameters()) + 65 * 7
    count += 2 * 64 * (len(LAGS) * 400 + 6 + 1)
    assert sum(one.numel() for one in ours.parameters()) == count
    pairs = (
        (ours.encoder[0].own.into, theirs.encoder.layers[0].self_attn.in_proj_weight),
        (ours.decoder[1].cross.out.weight, theirs.decoder.layers[1].multihead_attn.out_proj.weight),
        (ours.decoder[0].inner[0].weight, theirs.decoder.layers[0].linear1.weight),
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine.abs().max(), other.abs().max(), rtol=0.02, atol=0)
    assert not ours.encoder[0].own.into_bias.any()
    assert not ours.encoder[0].own.out.bias.any()
    bound = (len(LAGS) * 400 + 6) ** -0.5
    assert 0.99 * bound < ours.ahead.project.abs().max() <= bound


def drawn_known(ours: Transformer, n_paths: int) -> tuple[Tensor, Tensor]:
    """What two windows' paths know, told of other values each, and these values."""
    window, told = given_windows()
    scale = window.scale
    values = torch.randn(3, n_paths, HORIZON, 8, dtype=torch.float64)
    outputs: list[Tensor] = []

    def draw(known: Tensor) -> Tensor:
        outputs.append(known)
        return values[:, :, len(outputs) - 1]

    out = torch.empty_like(values)
    roll_out(ours, ours.see(Window(window.past, None, scale), told), draw, out)
    torch.testing.assert_close(out, values * scale[:, None, None])
    return torch.stack(outputs, dim=2), out


@torch.no_grad()
def test_a_path_knows_what_the_whole_prefix_would_tell_it() -> None:
    """Cached keys and values, and contexts that paths share, are what decoding anew would make."""
    ours, (window, told) = transformer_of(), given_windows()
    known, values = drawn_known(ours, 4)
    for path in range(4):
        expected = ours(window._replace(target=values[:, path]), told)
        torch.testing.assert_close(known[:, path], expected)


@torch.no_grad()
def test_the_reference_s_path_attends_to_no_step_but_its_own() -> None:
    ours, (window, told) = transformer_of(decoding="length-one"), given_windows()
    known, values = drawn_known(ours, 2)
    transformer, past, ahead = theirs_of(ours)
    for path in range(2):
        inputs = lagged(window._replace(target=values[:, path]), told)
        encoded = transformer.encoder(past(inputs[:, :ENCODED]))
        for step in range(HORIZON):
            one = ahead(inputs[:, ENCODED + step : ENCODED + step + 1])
            expected = ours.condition(transformer.decoder(one, encoded))
            torch.testing.assert_close(known[:, path, step], expected[:, 0])
    expected = ours(window._replace(target=values[:, 0]), told)
    torch.testing.assert_close(known[:, 0, 0], expected[:, 0])
    assert not torch.isclose(known[:, 0, 1:], expected[:, 1:]).all(2).any()


@torch.no_grad()
def test_nothing_is_known_of_a_step_or_a_later_one_before_it() -> None:
    ours, (window, told) = transformer_of(), given_windows()
    before = ours(window, told)
    window.target[:, 2:] = 99.0
    after = ours(window, told)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.isclose(after[:, 3], before[:, 3]).any()


def test_odd_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="heads must divide width; dropout must be in"):
        TransformerTempFlowConfig(width=30, dropout=1.0)
    with pytest.raises(ConfigError, match="width, heads, layers and feed_forward must be 1"):
        TransformerTempFlowConfig(layers=0, heads=0)
    with pytest.raises(ConfigError, match="lags reach 5 steps back and a context has 5; give"):
        Transformer(tiny(TransformerTempFlowConfig), 8, 5)
