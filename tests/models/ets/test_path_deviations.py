"""Paths against Holt-Winters step by step and against a matrix of its coefficients."""

import pytest
import torch

from powerphase.models.ets import expected_path, path_deviations
from tests.models.ets import process, random, some_gains, waves


@pytest.mark.parametrize(("season", "horizon"), [(96, 96), (24, 96), (7, 30), (3, 2)])
def test_paths_equal_holt_winters_with_the_same_errors(season: int, horizon: int) -> None:
    gains, states = some_gains(4), waves(season, 4)
    states[1] = 0.01
    errors = random(3, horizon, 4)
    paths = expected_path(states, horizon) + path_deviations(errors, gains, season)
    for path, path_errors in zip(paths, errors, strict=True):
        expected, _ = process(gains, states, path_errors)
        assert torch.allclose(path, expected, rtol=0, atol=1e-9)


def test_deviations_are_a_product_with_a_toeplitz_matrix() -> None:
    season, horizon, errors, gains = 5, 23, random(2, 23, 3), some_gains(3)
    for channel, (alpha, drift, gamma) in enumerate(gains.T):
        matrix = torch.eye(horizon, dtype=torch.float64)
        for step in range(horizon):
            for back in range(1, step + 1):
                matrix[step, step - back] = alpha + back * drift + gamma * (back % season == 0)
        expected = errors[..., channel] @ matrix.T
        assert torch.allclose(
            path_deviations(errors, gains, season)[..., channel], expected, atol=1e-12
        )
