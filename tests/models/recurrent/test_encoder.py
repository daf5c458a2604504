"""The encoder against an LSTM that is given all lagged values, as the reference has it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.errors import ConfigError
from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.encoder import RecurrentEncoder
from powerphase.models.recurrent.inputs import Window, clock_features, window_scale
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, windows_of

CONFIG = RecurrentConfig(lags=LAGS, cells=6)


def encoder_of(n_channels: int = 8, **options: Any) -> RecurrentEncoder:
    torch.manual_seed(3)
    return RecurrentEncoder(CONFIG, n_channels, CONTEXT, **options).double().eval()


def given_windows() -> tuple[Window, Tensor]:
    context, target = windows_of()
    told = clock_features(context.time[:, max(LAGS) :], CONFIG.minute_period)
    return Window(context.past, target, window_scale(context.past, CONFIG, in_batch=True)), told


def lagged(window: Window, told: Tensor) -> Tensor:
    """What the reference feeds its LSTM: lags of all channels, lag fastest, then the clock."""
    values = window.scaled(slice(None))
    steps = range(max(LAGS), values.shape[1])
    lags = torch.stack([values[:, [t - lag for t in steps]] for lag in LAGS], dim=3)
    return torch.cat([lags.flatten(2), told], dim=2)


def reference_lstm(encoder: RecurrentEncoder, n_channels: int = 8) -> nn.LSTM:
    """A two-layer LSTM of all inputs, with the encoder's weights."""
    lstm = nn.LSTM(len(LAGS) * n_channels + 6, 6, 2, batch_first=True).double()
    by_lag = encoder.project.unflatten(1, (len(LAGS), -1))  # C lags gates
    weight = torch.cat([by_lag.flatten(0, 1), encoder.clock]).T
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(weight)
        for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            getattr(lstm, name).copy_(getattr(encoder.first, name))
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(lstm, f"{name}_l1").copy_(getattr(encoder.second, f"{name}_l0"))
    return lstm


@pytest.mark.parametrize("block", [None, 3, 8])
def test_shifted_sums_are_what_an_lstm_makes_of_all_lagged_values(block: int | None) -> None:
    """Values, and the gradients of every weight."""
    encoder, (window, told) = encoder_of(channel_block=block), given_windows()
    lstm = reference_lstm(encoder)
    found, expected = encoder(window, told), lstm(lagged(window, told))[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    direction = torch.randn(found.shape, dtype=found.dtype)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    by_lag = encoder.project.grad.unflatten(1, (len(LAGS), -1)).flatten(0, 1)
    wanted = lstm.weight_ih_l0.grad.T
    torch.testing.assert_close(torch.cat([by_lag, encoder.clock.grad]), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(encoder.first.bias_ih_l0.grad, lstm.bias_ih_l0.grad)
    torch.testing.assert_close(encoder.second.weight_hh_l0.grad, lstm.weight_hh_l1.grad)


def test_an_encoder_has_as_many_numbers_as_the_reference_s_lstm_and_begins_like_it() -> None:
    encoder, lstm = RecurrentEncoder(CONFIG, 400, CONTEXT), nn.LSTM(len(LAGS) * 400 + 6, 6, 2)
    trained = [one for one in encoder.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == sum(one.numel() for one in lstm.parameters())
    bound = 1 / 6**0.5
    for one in trained:
        assert one.abs().max() <= bound
    assert encoder.project.abs().max() > 0.99 * bound
    assert float(encoder.project.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02)


def test_the_first_input_matrix_stays_the_identity() -> None:
    encoder, (window, told) = encoder_of(), given_windows()
    encoder(window, told).sum().backward()
    assert encoder.first.weight_ih_l0.grad is None
    assert torch.equal(encoder.first.weight_ih_l0, torch.eye(24, dtype=torch.float64))


def test_a_condition_is_a_linear_layer_on_top() -> None:
    plain, wide, (window, told) = encoder_of(), encoder_of(condition=10), given_windows()
    wide.load_state_dict({**wide.state_dict(), **plain.state_dict()})
    expected = wide.condition(plain(window, told))
    torch.testing.assert_close(wide(window, told), expected)
    assert expected.shape == (3, CONTEXT + HORIZON - max(LAGS), 10)


def test_nothing_is_known_of_a_step_or_a_later_one_before_it() -> None:
    encoder, (window, told) = encoder_of(), given_windows()
    before = encoder(window, told)
    window.target[:, 2:] = 99.0
    first_told = CONTEXT - max(LAGS) + 3
    after = encoder(window, told)
    assert torch.equal(after[:, :first_told], before[:, :first_told])
    assert not torch.isclose(after[:, first_told], before[:, first_told]).any()


def test_dropout_is_between_the_layers_and_of_the_training_alone() -> None:
    encoder, (window, told) = encoder_of(), given_windows()
    gates = encoder.project_window(window, told)
    low = encoder.first(gates)[0]
    encoder.train()
    torch.manual_seed(5)
    found = encoder(window, told)
    torch.manual_seed(5)
    expected = encoder.second(nn.functional.dropout(low, CONFIG.dropout))[0]
    torch.testing.assert_close(found, expected)
    assert torch.equal(encoder.eval()(window, told), encoder.run(gates)[0])


def test_lags_that_leave_nothing_to_encode_are_refused() -> None:
    with pytest.raises(ConfigError, match="lags reach 5 steps back and a context has 5; give"):
        RecurrentEncoder(CONFIG, 8, 5)


def test_blocks_made_in_half_precision_are_added_up_in_full() -> None:
    encoder, (window, told) = encoder_of().float(), given_windows()
    window = Window(window.past.float(), window.target.float(), window.scale.float())
    exact = encoder.project_window(window, told.float())
    encoder.channel_block = 1
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder.project_window(window, told.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0, atol=0.05)
