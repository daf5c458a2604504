"""Distances of all hypotheses without any of them, and their slopes."""

import torch
from torch import Tensor

from powerphase.models.timeprism.loss import (
    Sides,
    distances,
    nearest,
    put_slopes,
)


def sides(dtype: torch.dtype, spread: float = 1.0, error: float = 0.01) -> Sides:
    """Of 50 rows, 4 × 5 hypotheses of 96 steps; one of each row is almost right."""
    generator = torch.Generator().manual_seed(3)
    rest, season = (
        spread * torch.randn(50, count, 96, generator=generator, dtype=torch.float64)
        for count in (4, 5)
    )
    rest[:, 2] = season[:, 1] + error * torch.randn(50, 96, generator=generator)
    return Sides(rest.to(dtype), season.to(dtype))


def direct(given: Sides) -> Tensor:
    rest, season = given.rest.double(), given.season.double()
    return (rest.unsqueeze(2) - season.unsqueeze(1)).square().sum(3).flatten(1)


def test_distances_are_those_of_the_hypotheses_themselves() -> None:
    given = sides(torch.float64)
    torch.testing.assert_close(distances(given), direct(given), rtol=1e-10, atol=1e-10)


def test_in_float32_distances_keep_four_digits_and_the_nearest_all() -> None:
    given = sides(torch.float32)
    found, wanted = distances(given), direct(given)
    winner, least = nearest(given, found)
    assert torch.equal(winner, wanted.argmin(1, keepdim=True))
    assert bool((winner == 2 * 5 + 1).all())
    torch.testing.assert_close(least.double(), wanted.amin(1, keepdim=True), rtol=1e-5, atol=0)
    found.scatter_(1, winner, least)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=0)


def test_no_distance_is_negative() -> None:
    given = sides(torch.float32, spread=100.0, error=0.0)
    assert distances(given).min() >= 0


def test_slopes_are_those_of_the_weighted_sum() -> None:
    given = sides(torch.float64)
    share = torch.rand(50, 20, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    trend, season = (-given.rest).requires_grad_(), given.season.clone().requires_grad_()
    error = (-trend).unsqueeze(2) - season.unsqueeze(1)
    (share * error.square().sum(3).flatten(1)).sum().backward()
    put_slopes(given, share)
    torch.testing.assert_close(given.rest, trend.grad)
    torch.testing.assert_close(given.season, season.grad)
