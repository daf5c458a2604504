"""The Transformer against PyTorch's on explicit lagged values."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.errors import ConfigError
from powerphase.models.flows import Attention, Transformer, TransformerTempFlowConfig
from powerphase.models.recurrent import Window, clock_features, roll_out, window_scale
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, windows_of

ENCODED = CONTEXT - max(LAGS)
WIDTH = 8


def transformer_of(block: int | None = None, **changes: Any) -> Any:
    """A Transformer in which no parameter has its initial value."""
    torch.manual_seed(3)
    config = tiny(TransformerTempFlowConfig, **changes)
    transformer = Transformer(config, 8, CONTEXT, block, 7).double().eval()
    with torch.no_grad():
        for weight in transformer.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return transformer


def window_and_clock() -> tuple[Window, Tensor]:
    context, target = windows_of()
    config = tiny(TransformerTempFlowConfig)
    features = clock_features(context.time[:, max(LAGS) :], config.minute_period)
    return Window(context.past, target, window_scale(context.past, config, in_batch=True)), features


def lagged(window: Window, features: Tensor) -> Tensor:
    """Lags of all channels, lag fastest, then the clock."""
    values = window.scaled(slice(None))
    steps = range(max(LAGS), values.shape[1])
    lags = torch.stack([values[:, [t - lag for t in steps]] for lag in LAGS], dim=3)
    return torch.cat([lags.flatten(2), features], dim=2)


class Plain(nn.Module):
    """PyTorch's Transformer behind linear layers of all inputs, with the weights of ours."""

    transformer: Any

    def __init__(self, ours: Any) -> None:
        super().__init__()
        options: Any = {"activation": "gelu", "batch_first": True, "dropout": 0.1}
        self.transformer = nn.Transformer(WIDTH, 2, 2, 2, 12, **options).double()
        self.train(ours.training)
        encoder, decoder = self.transformer.encoder, self.transformer.decoder
        with torch.no_grad():
            for mine, layer in zip(ours.encoder, encoder.layers, strict=True):
                _copy_layer(mine, layer, {"self_attn": mine.own})
            for mine, layer in zip(ours.decoder, decoder.layers, strict=True):
                _copy_layer(mine, layer, {"self_attn": mine.own, "multihead_attn": mine.cross})
        encoder.norm.load_state_dict(ours.encoded_norm.state_dict())
        decoder.norm.load_state_dict(ours.decoded_norm.state_dict())
        self.past = _input_layer(ours.past, ours.past_bias)
        self.ahead = _input_layer(ours.ahead, ours.ahead_bias)
        self.condition = ours.condition

    def forward(self, window: Window, features: Tensor) -> Tensor:
        """The condition of each step of the target."""
        inputs = lagged(window, features)
        mask = nn.Transformer.generate_square_subsequent_mask(HORIZON, dtype=torch.float64)
        past, ahead = self.past(inputs[:, :ENCODED]), self.ahead(inputs[:, ENCODED:])
        decoded = self.transformer(past, ahead, tgt_mask=mask, tgt_is_causal=True)
        condition: Tensor = self.condition(decoded)
        return condition


def _input_layer(projection: Any, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(len(LAGS) * 8 + 6, WIDTH).double()
    by_lag = projection.project.unflatten(1, (len(LAGS), -1)).flatten(0, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([by_lag, projection.clock]).T)
        layer.bias.copy_(bias)
    return layer


def _copy_layer(mine: Any, layer: Any, attentions: dict[str, Attention]) -> None:
    for name, attention in attentions.items():
        target = getattr(layer, name)
        target.in_proj_weight.copy_(attention.into)
        target.in_proj_bias.copy_(attention.into_bias)
        target.out_proj.load_state_dict(attention.out.state_dict())
    layer.linear1.load_state_dict(mine.inner[0].state_dict())
    layer.linear2.load_state_dict(mine.inner[3].state_dict())
    for number, residual in enumerate(mine.after, start=1):
        getattr(layer, f"norm{number}").load_state_dict(residual.norm.state_dict())


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("block", [None, 3])
def test_values_and_gradients_match_pytorch(block: int | None) -> None:
    ours, (window, features) = transformer_of(block), window_and_clock()
    plain: Any = Plain(ours)
    actual, expected = ours(window, features), plain(window, features)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(actual)
    (actual * direction).sum().backward()
    (expected * direction).sum().backward()
    for projection, layer in ((ours.past, plain.past), (ours.ahead, plain.ahead)):
        by_lag = projection.project.grad.unflatten(1, (len(LAGS), -1)).flatten(0, 1)
        assert_close(torch.cat([by_lag, projection.clock.grad]), layer.weight.grad.T)
    for mine, layer in zip(ours.decoder, plain.transformer.decoder.layers, strict=True):
        assert_close(mine.cross.into.grad, layer.multihead_attn.in_proj_weight.grad)
        assert_close(mine.own.into.grad, layer.self_attn.in_proj_weight.grad)


def test_dropout_is_where_pytorch_has_it_and_only_in_training() -> None:
    ours, (window, features) = transformer_of(), window_and_clock()
    plain = Plain(ours).transformer
    rates = [
        [part.dropout if isinstance(part, Attention) else part.p for part in module.modules()
         if isinstance(part, Attention | nn.Dropout)]
        for module in (ours, plain)
    ]  # fmt: skip
    attentions = [part for part in plain.modules() if isinstance(part, nn.MultiheadAttention)]
    assert rates[0] == [*rates[1], *(attention.dropout for attention in attentions)]
    assert torch.equal(ours(window, features), ours(window, features))
    ours.train()
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(ours(window, features))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.isclose(outputs[0], outputs[2]).any()


def test_parameter_count_and_initialisation_match_pytorch() -> None:
    torch.manual_seed(3)
    config = tiny(TransformerTempFlowConfig, width=64, feed_forward=256, heads=8)
    ours: Any = Transformer(config, 400, CONTEXT, None, 7)
    plain: Any = nn.Transformer(64, 8, 2, 2, 256, activation="gelu", batch_first=True)
    count = sum(weight.numel() for weight in plain.parameters()) + 65 * 7
    count += 2 * 64 * (len(LAGS) * 400 + 6 + 1)
    assert sum(weight.numel() for weight in ours.parameters()) == count
    pairs = (
        (ours.encoder[0].own.into, plain.encoder.layers[0].self_attn.in_proj_weight),
        (ours.decoder[1].cross.out.weight, plain.decoder.layers[1].multihead_attn.out_proj.weight),
        (ours.decoder[0].inner[0].weight, plain.decoder.layers[0].linear1.weight),
    )
    for weight, expected in pairs:
        torch.testing.assert_close(weight.abs().max(), expected.abs().max(), rtol=0.02, atol=0)
    assert not ours.encoder[0].own.into_bias.any()
    assert not ours.encoder[0].own.out.bias.any()
    bound = (len(LAGS) * 400 + 6) ** -0.5
    assert 0.99 * bound < ours.ahead.project.abs().max() <= bound


def roll_out_random_paths(ours: Any, n_paths: int) -> tuple[Tensor, Tensor]:
    """Conditions of the steps of paths with random values, and these values."""
    window, features = window_and_clock()
    scale = window.scale
    values = torch.randn(3, n_paths, HORIZON, 8, dtype=torch.float64)
    conditions: list[Tensor] = []

    def draw(condition: Tensor) -> Tensor:
        conditions.append(condition)
        return values[:, :, len(conditions) - 1]

    out = torch.empty_like(values)
    roll_out(ours, ours.encode(Window(window.past, None, scale), features), draw, out)
    torch.testing.assert_close(out, values * scale[:, None, None])
    return torch.stack(conditions, dim=2), out


@torch.no_grad()
def test_cached_decoding_matches_decoding_the_whole_prefix() -> None:
    ours, (window, features) = transformer_of(), window_and_clock()
    conditions, values = roll_out_random_paths(ours, 4)
    for path in range(4):
        expected = ours(window._replace(target=values[:, path]), features)
        torch.testing.assert_close(conditions[:, path], expected)


@torch.no_grad()
def test_length_one_decoding_attends_only_to_the_current_step() -> None:
    ours, (window, features) = transformer_of(decoding="length-one"), window_and_clock()
    conditions, values = roll_out_random_paths(ours, 2)
    plain = Plain(ours)
    for path in range(2):
        inputs = lagged(window._replace(target=values[:, path]), features)
        encoded = plain.transformer.encoder(plain.past(inputs[:, :ENCODED]))
        for step in range(HORIZON):
            query = plain.ahead(inputs[:, ENCODED + step : ENCODED + step + 1])
            expected = ours.condition(plain.transformer.decoder(query, encoded))
            torch.testing.assert_close(conditions[:, path, step], expected[:, 0])
    expected = ours(window._replace(target=values[:, 0]), features)
    torch.testing.assert_close(conditions[:, 0, 0], expected[:, 0])
    assert not torch.isclose(conditions[:, 0, 1:], expected[:, 1:]).all(2).any()


@torch.no_grad()
def test_a_step_does_not_depend_on_its_own_or_later_values() -> None:
    ours, (window, features) = transformer_of(), window_and_clock()
    before = ours(window, features)
    assert window.target is not None
    window.target[:, 2:] = 99.0
    after = ours(window, features)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.isclose(after[:, 3], before[:, 3]).any()


def test_invalid_configurations_raise() -> None:
    with pytest.raises(ConfigError, match=r"heads .*dropout"):
        TransformerTempFlowConfig(width=30, dropout=1.0)
    with pytest.raises(ConfigError, match="layers"):
        TransformerTempFlowConfig(layers=0, heads=0)
    with pytest.raises(ConfigError, match="lags"):
        Transformer(tiny(TransformerTempFlowConfig), 8, 5)
