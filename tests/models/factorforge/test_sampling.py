"""Stratified draws, quantiles in their rank order, and the total power that they keep."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import Tensor

from powerphase.axes import KINDS, P
from powerphase.models.factorforge import (
    fill_ranks,
    independent_normals,
    keep_total_power,
    normal_scores,
    stratified_normals,
)
from powerphase.seeds import stream

M, H, N = 9, 5, 4
BUS_TYPE = np.array([1, 3, 2, 1])
CONSTANT = 3 * KINDS
"""P of the last bus."""


@pytest.fixture
def draws() -> Tensor:
    """Independent draws of all channels, with some equal values."""
    return independent_normals(stream(1, "test"), (M, H, N * KINDS)).round(decimals=1)


@pytest.fixture
def deviation() -> Tensor:
    width = torch.linspace(0.1, 2.0, N * KINDS).repeat(H, 1)
    width[:, CONSTANT] = 0
    return width


def test_stratified_draws_take_each_quantile_once_in_every_column() -> None:
    drawn = stratified_normals(stream(1, "test"), (M, H, 3))
    quantiles = [NormalDist().inv_cdf((m + 0.5) / M) for m in range(M)]
    ascending = drawn.sort(dim=0).values
    np.testing.assert_allclose(ascending, np.tile(quantiles, (3, H, 1)).T, atol=1e-6)
    orders = {tuple(column) for column in drawn.argsort(dim=0).flatten(1).T.tolist()}
    assert len(orders) == 3 * H


@pytest.mark.parametrize("count", [1, 2, 9, 300])
def test_normal_scores_are_the_quantiles_of_ranks_in_the_order_of_scenarios(count: int) -> None:
    values = independent_normals(stream(2, "test"), (count, H, 1001)).round(decimals=1)
    values[:, 0, :2] = torch.tensor([0.0, -0.0])  # equal
    ranks = rankdata(values, "ordinal", axis=0) - 1
    quantiles = np.array([NormalDist().inv_cdf((m + 0.5) / count) for m in range(count)])
    np.testing.assert_allclose(normal_scores(values), quantiles[ranks], atol=1e-6)


def test_filled_ranks_have_the_order_of_the_draws_and_the_quantiles_of_the_channels(
    draws: Tensor, deviation: Tensor
) -> None:
    mean = torch.arange(N * KINDS).float().repeat(H, 1)
    filled = fill_ranks(draws, mean, deviation)
    moving = deviation[0] > 0
    scores = normal_scores(draws)[..., moving]
    assert torch.equal(normal_scores(filled)[..., moving], scores)
    for m, values in enumerate(filled.sort(dim=0).values):
        z = NormalDist().inv_cdf((m + 0.5) / M)
        torch.testing.assert_close(values, mean + z * deviation, rtol=0, atol=1e-5)
    assert torch.equal(filled[..., ~moving], mean[:, ~moving].expand(M, -1, -1))


def test_the_total_power_of_a_draw_is_kept_and_nothing_else_moves(
    draws: Tensor, deviation: Tensor
) -> None:
    before = fill_ranks(draws, torch.zeros_like(deviation), deviation)
    after = before.clone()
    keep_total_power(after, draws, deviation, BUS_TYPE)
    power, counted = slice(P, None, KINDS), BUS_TYPE != 3
    assert not torch.allclose(before[..., power][..., counted].sum(-1), draws[..., power].sum(-1))
    torch.testing.assert_close(
        after[..., power][..., counted].sum(-1), draws[..., power][..., counted].sum(-1)
    )
    still = np.setdiff1d(np.arange(N * KINDS), [0, 2 * KINDS])
    assert torch.equal(after[..., still], before[..., still])


def test_power_without_spread_is_left_alone(draws: Tensor) -> None:
    after = draws.clone()
    keep_total_power(after, draws + 1, torch.zeros(H, N * KINDS), BUS_TYPE)
    assert torch.equal(after, draws)
