"""The low-rank Gaussian against PyTorch's distributions, which build the whole covariance."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal

from powerphase.models.deepar import (
    SOFTPLUS_OFFSET,
    Gaussian,
    LowRankGaussian,
    channel_sums,
    negative_log_likelihood,
)

SIZE = (2, 3)
N_CHANNELS, WIDTH = 7, 5


def head_with_inputs(rank: int) -> tuple[LowRankGaussian, Tensor, Tensor]:
    torch.manual_seed(2)
    head = LowRankGaussian(WIDTH, N_CHANNELS, rank, 1e-6).double()
    hidden = torch.randn(*SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    return head, hidden, 3 * torch.randn(*SIZE, N_CHANNELS, dtype=torch.float64)


def pytorch_loss(gaussian: Gaussian, values: Tensor) -> Tensor:
    mean, factors, diagonal = gaussian
    distribution: Any
    if factors:
        distribution = LowRankMultivariateNormal(mean, torch.stack(factors, dim=-1), diagonal)
    else:
        distribution = MultivariateNormal(mean, torch.diag_embed(diagonal))
    return -distribution.log_prob(values)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_channel_sums_give_the_likelihood_and_its_gradient(rank: int) -> None:
    head, hidden, values = head_with_inputs(rank)
    gaussian = head(hidden)
    actual = negative_log_likelihood(channel_sums(gaussian, values), rank, N_CHANNELS)
    expected = pytorch_loss(gaussian, values)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=0)
    inputs = [hidden, *head.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(actual.sum(), inputs, retain_graph=True),
        torch.autograd.grad(expected.sum(), inputs),
        rtol=1e-8,
        atol=1e-10,
    )


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_block_sums_add_up_to_the_sums_of_all_channels(rank: int, size: int) -> None:
    head, hidden, values = head_with_inputs(rank)
    blocks = zip(
        head.weight.split(size, dim=1),
        head.bias.split(size, dim=1),
        values.split(size, dim=-1),
        strict=True,
    )
    sums = [
        channel_sums(head.gaussian(hidden, weight, bias), block) for weight, bias, block in blocks
    ]
    torch.testing.assert_close(torch.stack(sums).sum(0), channel_sums(head(hidden), values))


def test_variances_start_at_one_and_stay_positive() -> None:
    head, hidden, _ = head_with_inputs(1)
    with torch.no_grad():
        head.weight[1], head.bias[1] = 0.0, 0.0
        start = head(hidden).diagonal
        head.bias[1] = -1e3
        least = head(hidden).diagonal
    torch.testing.assert_close(start, torch.full_like(start, 1 + 1e-6))
    torch.testing.assert_close(least, torch.full_like(least, 1e-6))
    assert torch.nn.functional.softplus(torch.tensor(SOFTPLUS_OFFSET)) == pytest.approx(1)


def test_float32_is_accurate_for_thousands_of_correlated_channels() -> None:
    """The likelihood is a small difference of two large numbers."""
    n_channels = 20_000
    torch.manual_seed(2)
    common = torch.randn(4, 1, dtype=torch.float64)
    values = common + 0.01 * torch.randn(4, n_channels, dtype=torch.float64)
    exact = Gaussian(
        torch.zeros_like(values), (torch.ones_like(values),), torch.full_like(values, 1e-4)
    )
    single = Gaussian(exact.mean.float(), (exact.factors[0].float(),), exact.diagonal.float())
    actual = negative_log_likelihood(channel_sums(single, values.float()), 1, n_channels)
    expected = negative_log_likelihood(channel_sums(exact, values), 1, n_channels)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=0)
