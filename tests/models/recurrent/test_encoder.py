"""The encoder against an LSTM with all lagged values, as in the reference."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.errors import ConfigError
from powerphase.models.recurrent import (
    RecurrentConfig,
    RecurrentEncoder,
    Window,
    clock_features,
    window_scale,
)
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, windows_of

CONFIG = RecurrentConfig(lags=LAGS, cells=6)


def encoder_of(n_channels: int = 8, **options: Any) -> RecurrentEncoder:
    torch.manual_seed(3)
    return RecurrentEncoder(CONFIG, n_channels, CONTEXT, **options).double().eval()


def example_windows() -> tuple[Window, Tensor]:
    context, target = windows_of()
    clock = clock_features(context.time[:, max(LAGS) :], CONFIG.minute_period)
    return Window(context.past, target, window_scale(context.past, CONFIG, in_batch=True)), clock


def lagged(window: Window, clock: Tensor) -> Tensor:
    """The inputs of the reference's LSTM: lags of all channels, lag fastest, then the clock."""
    values = window.scaled(slice(None))
    steps = range(max(LAGS), values.shape[1])
    lags = torch.stack([values[:, [t - lag for t in steps]] for lag in LAGS], dim=3)
    return torch.cat([lags.flatten(2), clock], dim=2)


def reference_lstm(encoder: RecurrentEncoder, n_channels: int = 8) -> nn.LSTM:
    """A two-layer LSTM of all inputs, with the encoder's weights."""
    lstm = nn.LSTM(len(LAGS) * n_channels + 6, 6, 2, batch_first=True).double()
    by_lag = encoder.project.unflatten(1, (len(LAGS), -1))  # C lags gates
    weight = torch.cat([by_lag.flatten(0, 1), encoder.clock]).T
    with torch.no_grad():
        lstm.get_parameter("weight_ih_l0").copy_(weight)
        for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            getattr(lstm, name).copy_(getattr(encoder.first, name))
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(lstm, f"{name}_l1").copy_(getattr(encoder.second, f"{name}_l0"))
    return lstm


def gradient_of(module: nn.Module, name: str) -> Tensor:
    gradient = module.get_parameter(name).grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("block", [None, 3, 8])
def test_projected_windows_equal_an_lstm_on_all_lagged_values(block: int | None) -> None:
    """Values, and the gradients of every weight."""
    encoder, (window, clock) = encoder_of(channel_block=block), example_windows()
    lstm = reference_lstm(encoder)
    result, expected = encoder(window, clock), lstm(lagged(window, clock))[0]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    direction = torch.randn(result.shape, dtype=result.dtype)
    (result * direction).sum().backward()
    (expected * direction).sum().backward()
    by_lag = gradient_of(encoder, "project").unflatten(1, (len(LAGS), -1)).flatten(0, 1)
    gradient = torch.cat([by_lag, gradient_of(encoder, "clock")])
    torch.testing.assert_close(gradient, gradient_of(lstm, "weight_ih_l0").T, rtol=0, atol=1e-10)
    for name, reference in (
        ("first.bias_ih_l0", "bias_ih_l0"),
        ("second.weight_hh_l0", "weight_hh_l1"),
    ):
        torch.testing.assert_close(gradient_of(encoder, name), gradient_of(lstm, reference))


def test_an_encoder_has_the_size_and_initial_weights_of_the_reference_s_lstm() -> None:
    encoder, lstm = RecurrentEncoder(CONFIG, 400, CONTEXT), nn.LSTM(len(LAGS) * 400 + 6, 6, 2)
    trained = [weight for weight in encoder.parameters() if weight.requires_grad]
    n_weights = sum(weight.numel() for weight in lstm.parameters())
    assert sum(weight.numel() for weight in trained) == n_weights
    bound = 1 / 6**0.5
    for weight in trained:
        assert weight.abs().max() <= bound
    assert encoder.project.abs().max() > 0.99 * bound
    assert float(encoder.project.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02)


def test_the_first_input_matrix_stays_the_identity() -> None:
    encoder, (window, clock) = encoder_of(), example_windows()
    encoder(window, clock).sum().backward()
    assert encoder.first.weight_ih_l0.grad is None
    assert torch.equal(encoder.first.weight_ih_l0, torch.eye(24, dtype=torch.float64))


def test_a_condition_is_a_linear_layer_on_top() -> None:
    plain, wide, (window, clock) = encoder_of(), encoder_of(condition=10), example_windows()
    wide.load_state_dict({**wide.state_dict(), **plain.state_dict()})
    assert wide.condition is not None
    expected = wide.condition(plain(window, clock))
    torch.testing.assert_close(wide(window, clock), expected)
    assert expected.shape == (3, CONTEXT + HORIZON - max(LAGS), 10)


def test_the_output_before_a_step_does_not_depend_on_it_or_later_ones() -> None:
    encoder, (window, clock) = encoder_of(), example_windows()
    before = encoder(window, clock)
    assert window.target is not None
    window.target[:, 2:] = 99.0
    affected = CONTEXT - max(LAGS) + 3
    after = encoder(window, clock)
    assert torch.equal(after[:, :affected], before[:, :affected])
    assert not torch.isclose(after[:, affected], before[:, affected]).any()


def test_dropout_acts_between_the_layers_and_only_in_training() -> None:
    encoder, (window, clock) = encoder_of(), example_windows()
    gates = encoder.project_window(window, clock)
    low = encoder.first(gates)[0]
    encoder.train()
    torch.manual_seed(5)
    result = encoder(window, clock)
    torch.manual_seed(5)
    expected = encoder.second(nn.functional.dropout(low, CONFIG.dropout))[0]
    torch.testing.assert_close(result, expected)
    assert torch.equal(encoder.eval()(window, clock), encoder.run(gates)[0])


def test_lags_as_long_as_the_context_raise() -> None:
    with pytest.raises(ConfigError, match="5 steps"):
        RecurrentEncoder(CONFIG, 8, 5)


def test_half_precision_blocks_are_summed_in_full_precision() -> None:
    encoder, (window, clock) = encoder_of().float(), example_windows()
    assert window.target is not None
    window = Window(window.past.float(), window.target.float(), window.scale.float())
    exact = encoder.project_window(window, clock.float())
    encoder.channel_block = 1
    with torch.autocast("cpu", torch.bfloat16):
        result = encoder.project_window(window, clock.float())
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, exact, rtol=0, atol=0.05)
