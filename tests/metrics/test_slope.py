"""The daily slope, against regressions by NumPy and against forecasts whose slope is known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.metrics import daily_products, daily_slope


def cycles(n_windows: int = 3, horizon: int = 24, n_buses: int = 2, seed: int = 0) -> Tensor:
    """Values with a cycle and noise, around levels far above both."""
    generator = torch.Generator().manual_seed(seed)
    size = (n_windows, horizon, 4 * n_buses)
    noise = torch.randn(size, generator=generator, dtype=torch.float64)
    turn = 2 * np.pi * torch.arange(horizon, dtype=torch.float64)[:, None] / 24
    return 100 + torch.sin(turn + torch.arange(4 * n_buses)) + 0.3 * noise


def test_it_is_the_slope_of_a_regression_on_values_less_their_daily_means() -> None:
    mean, target = cycles(horizon=48), cycles(horizon=48, seed=1)
    slope = daily_slope(mean, target, day_steps=24)
    for kind in range(4):
        forecast, truth = (
            values[..., kind::4].reshape(3, 2, 24, 2).movedim(2, 0).numpy()
            for values in (mean, target)
        )
        centred = [(values - values.mean(0)).ravel() for values in (forecast, truth)]
        assert float(slope[kind]) == pytest.approx(np.polyfit(centred[1], centred[0], 1)[0])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, -0.2])
def test_a_share_of_the_cycle_on_any_level_has_that_slope(share: float) -> None:
    target = cycles()
    forecast = 7 + share * (target - target.mean(1, keepdim=True))
    torch.testing.assert_close(daily_slope(forecast, target, 24), torch.full((4,), share).double())


def test_constant_channels_do_not_count() -> None:
    mean, target = cycles(), cycles(seed=1)
    target[..., 4:] = 1.0
    alone = daily_slope(mean[..., :4], target[..., :4], 24)
    torch.testing.assert_close(daily_slope(mean, target, 24), alone)
    assert daily_slope(mean[..., 4:], target[..., 4:], 24).isnan().all()


def test_the_sums_of_blocks_add_up() -> None:
    mean, target = cycles(), cycles(seed=1)
    whole = daily_products(mean, target, 24)
    windows = sum(daily_products(mean[[k]], target[[k]], 24) for k in range(3))
    blocks = [
        daily_products(mean[..., part], target[..., part], 24) for part in (slice(4), slice(4, 8))
    ]
    torch.testing.assert_close(windows, whole)
    torch.testing.assert_close(torch.cat(blocks, dim=1), whole)
