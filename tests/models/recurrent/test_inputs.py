"""The inputs of encoders: scales, scaled values and clock features."""

import numpy as np
import pytest
import torch

from powerphase.models.recurrent import RecurrentConfig, Window, clock_features, window_scale
from tests.models.recurrent.toys import windows_of

PLAIN = RecurrentConfig(lags=(1, 4))
REFERENCE = RecurrentConfig(lags=(1, 4), least_scale=1e-10, zero_scale="batch")


def test_a_scale_is_the_mean_absolute_value_of_the_encoded_steps() -> None:
    past = torch.tensor([[100.0, -100, 100, 100, -3, 1]])[..., None]
    assert window_scale(past, PLAIN, in_batch=True).tolist() == [[2.0]]


def test_small_and_zero_channels_are_divided_by_the_floor() -> None:
    past = torch.tensor([0.0, 1e-9, -1e-3])[None, None].expand(2, 6, 3)
    torch.testing.assert_close(
        window_scale(past, PLAIN, in_batch=True)[0], torch.tensor([1e-4, 1e-4, 1e-3])
    )


def test_the_reference_divides_a_zero_channel_by_its_average_in_the_batch() -> None:
    past = torch.zeros(4, 6, 2)
    past[0, :, 0] = 2.0
    result = window_scale(past, REFERENCE, in_batch=True)
    torch.testing.assert_close(result[:, 0], torch.tensor([2.0, 0.5, 0.5, 0.5]))
    torch.testing.assert_close(result[:, 1], torch.full((4,), 1e-10))


def test_scales_of_forecast_windows_are_independent() -> None:
    past = torch.zeros(4, 6, 2)
    past[0] = 2.0
    alone = window_scale(past[1:2], REFERENCE, in_batch=True)
    assert torch.equal(window_scale(past, REFERENCE, in_batch=False)[1:2], alone)


def test_max_abs_is_the_largest_of_all_scaled_values() -> None:
    context, target = windows_of()
    target[1, 2, 3] = -77.0
    window = Window(context.past, target, window_scale(context.past, PLAIN, in_batch=True))
    result = window.max_abs() / window.scale
    torch.testing.assert_close(result.amax(), window.scaled(slice(None)).abs().max())
    assert torch.equal(window.max_abs()[0], context.past.abs().amax(1))


@pytest.mark.parametrize("channels", [slice(None), slice(1, 7, 2), slice(3, 4)])
@pytest.mark.parametrize("since", [0, 5])
def test_scaled_values_are_context_and_target_divided_by_the_scale(
    channels: slice, since: int
) -> None:
    context, target = windows_of()
    scale = window_scale(context.past, PLAIN, in_batch=True)
    whole = torch.cat([context.past, target], dim=1) / scale[:, None]
    result = Window(context.past, target, scale).scaled(channels, since)
    assert torch.equal(result, whole[:, since:, channels])
    result = Window(context.past, None, scale).scaled(channels, since)
    assert torch.equal(result, whole[:, since : context.past.shape[1], channels])


@pytest.mark.parametrize("since", [0, 5])
def test_added_noise_has_the_deviation(since: int) -> None:
    context, target = windows_of(200)
    scale = window_scale(context.past, PLAIN, in_batch=True)
    values = Window(context.past, target, scale).values(since)
    result = values.add_noise(0.2)
    added = result.compute() - values.compute()
    assert result.size == values.size
    assert added.std(dim=(0, 1)).tolist() == pytest.approx([0.2] * 8, rel=0.06)
    assert added.mean(dim=(0, 1)).abs().max() < 0.02
    again = values._replace(scale=None).add_noise(1e-9)
    torch.testing.assert_close(again.compute(), values._replace(scale=None).compute())


def test_clock_features_are_in_utc() -> None:
    monday_six = np.array([["2015-06-01T06:00", "2015-06-07T12:15"]], dtype="datetime64[s]")
    result = clock_features(monday_six, 60)[0].numpy()
    last_day = 2 * np.pi * 6 / 7
    expected = [[1, 0, 0, 1, 1, 0], [0, 1, -1, 0, np.cos(last_day), np.sin(last_day)]]
    np.testing.assert_allclose(result, expected, atol=1e-12)


@pytest.mark.parametrize(("period", "distance"), [(60, np.sqrt(2)), (46, 2 * np.sin(np.pi / 46))])
def test_the_period_of_the_minute_is_sixty_and_46_in_the_reference(
    period: int, distance: float
) -> None:
    time = np.array([["2015-06-01T06:00", "2015-06-01T06:45"]], dtype="datetime64[s]")
    full, quarter_to = clock_features(time, period)[0, :, :2]
    assert float((full - quarter_to).norm()) == pytest.approx(distance)
