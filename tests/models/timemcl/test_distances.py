"""Distances computed without the hypotheses, against the hypotheses written out."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timemcl import squared_errors

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Values, hidden, weight, bias."""


def blocks(n_channels: int, size: int) -> list[slice]:
    return [slice(k, min(k + size, n_channels)) for k in range(0, n_channels, size)]


def plain(values: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute every hypothesis and sum its squared errors."""
    outputs = F.linear(hidden, weight.flatten(0, 1), bias.flatten())
    outputs = outputs.unflatten(2, weight.shape[:2])
    return (outputs - values.unsqueeze(2)).square().sum((1, 3)) / values.shape[1]


def fast(inputs: Inputs, block_size: int = 99) -> Tensor:
    values, hidden, weight, bias = inputs
    parts = blocks(values.shape[2], block_size)
    return squared_errors(lambda block: values[..., block].clone(), parts, hidden, weight, bias)


def random(
    n_windows: int = 3, n_steps: int = 9, n_channels: int = 7, dtype: Any = torch.float64
) -> Inputs:
    """Values around levels of very different size."""
    torch.manual_seed(4)
    level = torch.logspace(-2, 2, n_channels, dtype=torch.float64)
    values = level * (1 + 0.1 * torch.randn(n_windows, n_steps, n_channels).double())
    hidden, weight, bias = (
        torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_()
        for size in ((n_windows, n_steps, 5), (4, n_channels, 5), (4, n_channels, 1))
    )
    return values.to(dtype), hidden, weight, bias


def gradients(errors: Tensor, inputs: Inputs) -> list[Tensor]:
    """Gradients of a sum in which each window and hypothesis has a different weight."""
    weights = torch.linspace(0.1, 2, errors.numel()).to(errors).view_as(errors)
    return list(torch.autograd.grad((weights * errors).sum(), inputs[1:], retain_graph=True))


@pytest.mark.parametrize("block_size", [1, 3, 7])
@pytest.mark.parametrize("size", [{}, {"n_windows": 1}, {"n_steps": 1}, {"n_steps": 48}])
def test_distances_and_gradients_equal_those_of_explicit_hypotheses(
    block_size: int, size: dict[str, int]
) -> None:
    inputs = random(**size)
    actual, expected = fast(inputs, block_size), plain(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        gradients(actual, inputs), gradients(expected, inputs), rtol=1e-9, atol=1e-9
    )


def planted(residual: float) -> Inputs:
    """One hypothesis fits every value up to this residual, in float32; the others fit less well.

    Values vary by about 1 around a level of 1, like those of a grid.
    """
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    hidden, weight = (0.3 * normal(3, 720, 20)).float(), (0.5 * normal(1, 150, 20)).float()
    bias = torch.ones(1, 150, 1)
    fit = F.linear(hidden.double(), weight[0].double(), bias[0, :, 0].double())
    values = (fit + residual * normal(3, 720, 150)).float()
    offset = residual * torch.tensor([0.3, 0.0, 0.1, 0.2]).view(4, 1, 1)
    weights = (weight + offset * normal(4, 150, 20)).float()
    return values, hidden.requires_grad_(), weights.requires_grad_(), bias.expand(4, -1, -1)


@pytest.mark.parametrize("residual", [1e-2, 1e-3])
def test_a_nearly_perfect_fit_keeps_its_distance_and_winner_in_float32(residual: float) -> None:
    """The error is at most half of float32's last bit of the squares that cancel."""
    inputs = planted(residual)
    exact: Any = [tensor.detach().double().requires_grad_() for tensor in inputs]
    actual, expected = fast(inputs, 64), plain(*exact)
    square = (exact[0] - exact[0].mean((0, 1))).square().sum((1, 2)).max().item() / 720
    torch.testing.assert_close(actual, expected, rtol=0, atol=6e-8 * square)
    assert torch.equal(actual.argmin(1), expected.argmin(1))
    inputs = (*inputs[:3], inputs[3].clone().requires_grad_())
    pairs = zip(gradients(fast(inputs, 64), inputs), gradients(expected, exact), strict=True)
    for gradient, exact_gradient in pairs:
        assert (gradient - exact_gradient).norm() <= 1e-3 * exact_gradient.norm()


def test_a_common_level_costs_no_digits() -> None:
    """Voltages are close to 1 and hardly move: the mean is subtracted before squaring."""
    inputs = planted(1e-3)
    level = 64.0  # exact in float32 when added to multiples of 2⁻¹⁰
    values, bias = (inputs[0] * 2**10).round() / 2**10, inputs[3]
    near, far = ((values + shift, *inputs[1:3], bias + shift) for shift in (0.0, level))
    torch.testing.assert_close(fast(far), fast(near), rtol=1e-2, atol=0)


def test_no_distance_is_negative() -> None:
    assert fast(planted(0.0)).min() >= 0


def test_nan_values_propagate() -> None:
    inputs = random()
    inputs[0][1, 2, 3] = torch.nan
    assert fast(inputs)[1].isnan().all()


def test_forward_and_backward_use_exact_products() -> None:
    """Even if the training allows TF32 products."""
    values, *rest = random(dtype=torch.float32)
    precisions = []

    def load_values(block: slice) -> Tensor:
        precisions.append(torch.get_float32_matmul_precision())
        return values[..., block].clone()

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        squared_errors(load_values, blocks(7, 4), *rest).sum().backward()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert precisions == ["highest"] * 4
