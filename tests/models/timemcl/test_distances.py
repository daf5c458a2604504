"""Distances of all hypotheses without any of them, against the hypotheses written out."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.recurrent.blocks import blocks
from powerphase.models.timemcl.distances import squared_errors

Given = tuple[Tensor, Tensor, Tensor, Tensor]
"""Values, known, weight, bias."""


def plain(values: Tensor, known: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Every hypothesis made, and its squared errors added up."""
    made = F.linear(known, weight.flatten(0, 1), bias.flatten()).unflatten(2, weight.shape[:2])
    return (made - values.unsqueeze(2)).square().sum((1, 3)) / values.shape[1]


def fast(given: Given, at_once: int = 99) -> Tensor:
    values, known, weight, bias = given
    parts = blocks(values.shape[2], at_once)
    return squared_errors(lambda here: values[..., here].clone(), parts, known, weight, bias)


def random(
    n_windows: int = 3, n_steps: int = 9, n_channels: int = 7, dtype: Any = torch.float64
) -> Given:
    """Values around levels of very different size."""
    torch.manual_seed(4)
    level = torch.logspace(-2, 2, n_channels, dtype=torch.float64)
    values = level * (1 + 0.1 * torch.randn(n_windows, n_steps, n_channels).double())
    known, weight, bias = (
        torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_()
        for size in ((n_windows, n_steps, 5), (4, n_channels, 5), (4, n_channels, 1))
    )
    return values.to(dtype), known, weight, bias


def slopes(found: Tensor, given: Given) -> list[Tensor]:
    """Of a sum in which each window and hypothesis has a share of its own."""
    share = torch.linspace(0.1, 2, found.numel()).to(found).view_as(found)
    return list(torch.autograd.grad((share * found).sum(), given[1:], retain_graph=True))


@pytest.mark.parametrize("at_once", [1, 3, 7])
@pytest.mark.parametrize("size", [{}, {"n_windows": 1}, {"n_steps": 1}, {"n_steps": 48}])
def test_distances_and_slopes_are_those_of_the_hypotheses(
    at_once: int, size: dict[str, int]
) -> None:
    given = random(**size)
    found, wanted = fast(given, at_once), plain(*given)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    for one, other in zip(slopes(found, given), slopes(wanted, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def planted(residual: float) -> Given:
    """One hypothesis is as near as that to every value, in float32; the others a little farther.

    Values are of size 1 around a level of 1, as those of a grid are.
    """
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    known, weight = (0.3 * normal(3, 720, 20)).float(), (0.5 * normal(1, 150, 20)).float()
    bias = torch.ones(1, 150, 1)
    made = F.linear(known.double(), weight[0].double(), bias[0, :, 0].double())
    values = (made + residual * normal(3, 720, 150)).float()
    off = residual * torch.tensor([0.3, 0.0, 0.1, 0.2]).view(4, 1, 1)
    others = (weight + off * normal(4, 150, 20)).float()
    return values, known.requires_grad_(), others.requires_grad_(), bias.expand(4, -1, -1)


@pytest.mark.parametrize("residual", [1e-2, 1e-3])
def test_in_float32_a_nearly_perfect_fit_keeps_its_distance_and_its_winner(
    residual: float,
) -> None:
    """What is lost is a part of the squares that cancel, half of float32's last bit at most."""
    given = planted(residual)
    exact: Any = [one.detach().double().requires_grad_() for one in given]
    found, wanted = fast(given, 64), plain(*exact)
    square = (exact[0] - exact[0].mean((0, 1))).square().sum((1, 2)).max().item() / 720
    torch.testing.assert_close(found, wanted, rtol=0, atol=6e-8 * square)
    assert torch.equal(found.argmin(1), wanted.argmin(1))
    given = (*given[:3], given[3].clone().requires_grad_())
    expected = slopes(wanted, exact)
    for one, other in zip(slopes(fast(given, 64), given), expected, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()


def test_a_level_that_all_steps_share_costs_no_digits() -> None:
    """Voltages are 1 and hardly move: their mean is taken off before anything is squared."""
    given = planted(1e-3)
    level = 64.0  # of which float32 takes away whole bits, and no more
    values, bias = (given[0] * 2**10).round() / 2**10, given[3]
    near, far = ((values + shift, *given[1:3], bias + shift) for shift in (0.0, level))
    torch.testing.assert_close(fast(far), fast(near), rtol=1e-2, atol=0)


def test_no_distance_is_negative() -> None:
    values, known, weight, bias = planted(0.0)
    assert fast((values, known, weight, bias)).min() >= 0


def test_what_is_no_number_is_handed_on() -> None:
    given = random()
    given[0][1, 2, 3] = torch.nan
    assert fast(given)[1].isnan().all()


def test_nothing_is_rounded_on_the_way_back_either() -> None:
    """Where a training allows products of few digits."""
    values, *rest = random(dtype=torch.float32)
    seen = []

    def values_of(here: slice) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return values[..., here].clone()

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        squared_errors(values_of, blocks(7, 4), *rest).sum().backward()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"] * 4
