"""The low-rank Gaussian against PyTorch's own, which makes every matrix."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal

from powerphase.models.deepar.head import (
    UNIT,
    Gaussian,
    LowRankGaussian,
    channel_sums,
    negative_log_likelihood,
)
from powerphase.models.recurrent.blocks import blocks

SIZE = (2, 3)
N_CHANNELS, WIDTH = 7, 5


def setting(rank: int) -> tuple[LowRankGaussian, Tensor, Tensor]:
    torch.manual_seed(2)
    head = LowRankGaussian(WIDTH, N_CHANNELS, rank, 1e-6).double()
    known = torch.randn(*SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    return head, known, 3 * torch.randn(*SIZE, N_CHANNELS, dtype=torch.float64)


def oracle(found: Gaussian, values: Tensor) -> Tensor:
    if not found.factors:
        covariance = torch.diag_embed(found.diagonal)
        return -MultivariateNormal(found.mean, covariance).log_prob(values)
    law: Any = LowRankMultivariateNormal(
        found.mean, torch.stack(found.factors, dim=-1), found.diagonal
    )
    return -law.log_prob(values)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_sums_over_channels_give_the_likelihood_and_its_gradient(rank: int) -> None:
    head, known, values = setting(rank)
    found = head(known)
    wanted = oracle(found, values)
    given = negative_log_likelihood(channel_sums(found, values), rank, N_CHANNELS)
    torch.testing.assert_close(given, wanted, rtol=1e-10, atol=0)
    inputs = [known, *head.parameters()]
    slopes, expected = (torch.autograd.grad(one.sum(), inputs, retain_graph=True)
                        for one in (given, wanted))  # fmt: skip
    for one, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_sums_of_blocks_are_those_of_all_channels(rank: int, block: int) -> None:
    head, known, values = setting(rank)
    found = [
        channel_sums(
            head.gaussian(known, head.weight[:, here], head.bias[:, here]), values[..., here]
        )
        for here in blocks(N_CHANNELS, block)
    ]
    whole = channel_sums(head(known), values)
    torch.testing.assert_close(torch.stack(found).sum(0), whole)


def test_variances_begin_at_one_and_never_reach_zero() -> None:
    head, known, _ = setting(1)
    with torch.no_grad():
        head.weight[1], head.bias[1] = 0.0, 0.0
        start = head(known).diagonal
        head.bias[1] = -1e3
        least = head(known).diagonal
    torch.testing.assert_close(start, torch.full_like(start, 1 + 1e-6))
    torch.testing.assert_close(least, torch.full_like(least, 1e-6))
    assert torch.nn.functional.softplus(torch.tensor(UNIT)) == pytest.approx(1)


def test_float32_is_right_with_thousands_of_channels_that_move_together() -> None:
    """Where two large numbers leave a small difference."""
    n_channels = 20_000
    torch.manual_seed(2)
    common = torch.randn(4, 1, dtype=torch.float64)
    values = common + 0.01 * torch.randn(4, n_channels, dtype=torch.float64)
    exact = Gaussian(
        torch.zeros_like(values), (torch.ones_like(values),), torch.full_like(values, 1e-4)
    )
    single = Gaussian(exact.mean.float(), (exact.factors[0].float(),), exact.diagonal.float())
    found, wanted = (
        negative_log_likelihood(channel_sums(law, seen), 1, n_channels)
        for law, seen in ((single, values.float()), (exact, values))
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=0)
