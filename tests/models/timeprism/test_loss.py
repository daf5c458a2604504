"""Distances of all hypotheses, computed without any of them, and their gradients."""

import torch
from torch import Tensor

from powerphase.models.timeprism import Residuals, distances, nearest, overwrite_by_gradients


def random_residuals(dtype: torch.dtype, spread: float = 1.0, error: float = 0.01) -> Residuals:
    """50 rows of 4 × 5 hypotheses with 96 steps; one of each row is almost right."""
    generator = torch.Generator().manual_seed(3)
    rest, season = (
        spread * torch.randn(50, count, 96, generator=generator, dtype=torch.float64)
        for count in (4, 5)
    )
    rest[:, 2] = season[:, 1] + error * torch.randn(50, 96, generator=generator)
    return Residuals(rest.to(dtype), season.to(dtype))


def direct_distances(residuals: Residuals) -> Tensor:
    rest, season = residuals.rest.double(), residuals.season.double()
    return (rest.unsqueeze(2) - season.unsqueeze(1)).square().sum(3).flatten(1)


def test_distances_equal_those_of_the_hypotheses() -> None:
    residuals = random_residuals(torch.float64)
    torch.testing.assert_close(
        distances(residuals), direct_distances(residuals), rtol=1e-10, atol=1e-10
    )


def test_float32_distances_keep_four_digits_and_the_nearest_keeps_all() -> None:
    residuals = random_residuals(torch.float32)
    distance, expected = distances(residuals), direct_distances(residuals)
    winner, least = nearest(residuals, distance)
    assert torch.equal(winner, expected.argmin(1, keepdim=True))
    assert bool((winner == 2 * 5 + 1).all())
    torch.testing.assert_close(least.double(), expected.amin(1, keepdim=True), rtol=1e-5, atol=0)
    distance.scatter_(1, winner, least)
    torch.testing.assert_close(distance.double(), expected, rtol=1e-4, atol=0)


def test_no_distance_is_negative() -> None:
    residuals = random_residuals(torch.float32, spread=100.0, error=0.0)
    assert distances(residuals).min() >= 0


def test_gradients_are_those_of_the_weighted_sum() -> None:
    residuals = random_residuals(torch.float64)
    share = torch.rand(50, 20, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    trend, season = (-residuals.rest).requires_grad_(), residuals.season.clone().requires_grad_()
    error = (-trend).unsqueeze(2) - season.unsqueeze(1)
    (share * error.square().sum(3).flatten(1)).sum().backward()
    overwrite_by_gradients(residuals, share)
    torch.testing.assert_close(residuals.rest, trend.grad)
    torch.testing.assert_close(residuals.season, season.grad)
