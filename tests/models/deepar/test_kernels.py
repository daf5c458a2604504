"""DeepAR's Triton kernels against PyTorch: on a GPU, or else in Triton's interpreter."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from powerphase.errors import TaskError
from powerphase.models.deepar import (
    DeepARConfig,
    DeepARNetwork,
    LowRankGaussian,
    channel_sums,
    fused_channel_sums,
)
from powerphase.models.recurrent import Window
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, windows_of

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32] if ON_GPU else [torch.float64]

each_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """Size of a test case."""

    windows: int
    context: int
    horizon: int
    channels: int
    cells: int
    reach: int = 2


SIZES = {
    "one of everything": Size(1, 3, 1, 1, 1),
    "odd numbers": Size(3, 5, 4, 7, 5),
    "all context steps count": Size(2, 5, 4, 9, 3, reach=0),
    "the default cells": Size(1, 30, 12, 37, 40),
    "several tiles of rows and channels": Size(2, 50, 21, 131, 17),
    "several programs for a channel": Size(9, 60, 11, 3, 6),
}

each_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def head_and_window(size: Size, dtype: torch.dtype) -> tuple[LowRankGaussian, Tensor, Window]:
    """A head, hidden states, and windows that are views of one tensor, like those of a batch."""
    torch.manual_seed(3)
    head = LowRankGaussian(size.cells, size.channels, 1, 1e-6).to(DEVICE, dtype)
    steps = size.context + size.horizon
    values = torch.randn(size.windows, steps, size.channels, dtype=torch.float64) + 2
    scale = torch.rand(size.windows, size.channels, dtype=torch.float64) + 0.5
    hidden = torch.randn(size.windows, steps - size.reach, size.cells, dtype=torch.float64)
    values, scale, hidden = (part.to(DEVICE, dtype) for part in (values, scale, hidden))
    window = Window(values[:, : size.context], values[:, size.context :], scale)
    return head, hidden.requires_grad_(), window


def gradients(sums: Tensor, head: LowRankGaussian, hidden: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a loss in which every sum of every row has a different weight."""
    weights = torch.linspace(-1, 2, sums.numel()).to(sums).view_as(sums).cos()
    return torch.autograd.grad((weights * sums).sum(), [hidden, head.weight, head.bias])


def gradient_of(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def assert_close(actual: Tensor, expected: Tensor, single: float = 2e-5) -> None:
    """Check the error relative to the norm, with a tolerance for single precision."""
    tolerance = 1e-9 if expected.dtype == torch.float64 else single
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert (actual - expected).norm() <= tolerance * expected.norm() + 1e-12


def assert_kernels_match(
    size: Size,
    head: LowRankGaussian,
    hidden: Tensor,
    window: Window,
    tolerances: tuple[float, float] = (2e-5, 2e-5),
) -> None:
    """Compare sums and gradients of the kernels with PyTorch's."""
    sums = fused_channel_sums(hidden, head.weight, head.bias, window, size.reach, 1e-6)
    plain_sums = channel_sums(head(hidden), window.scaled(slice(None), size.reach))
    assert_close(sums, plain_sums, tolerances[0])
    pairs = zip(gradients(sums, head, hidden), gradients(plain_sums, head, hidden), strict=True)
    for actual, expected in pairs:
        assert_close(actual, expected, tolerances[1])


@each_precision
@each_size
def test_kernels_match_pytorch(size: Size, dtype: torch.dtype) -> None:
    assert_kernels_match(size, *head_and_window(size, dtype))


@each_size
def test_tf32_kernels_match_pytorch(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 uses larger tiles; without a GPU, products keep all digits."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    tolerances = (5e-3, 1e-2 if ON_GPU else 2e-5)
    assert_kernels_match(size, *head_and_window(size, torch.float32), tolerances)


@each_precision
def test_kernels_match_pytorch_for_tiny_and_large_variances(dtype: torch.dtype) -> None:
    size = SIZES["odd numbers"]
    head, hidden, window = head_and_window(size, dtype)
    with torch.no_grad():
        head.bias[1, :, 0] = torch.linspace(-30, 30, size.channels)
    assert_kernels_match(size, head, hidden, window)


@each_precision
def test_a_training_step_with_kernels_matches_pytorch(dtype: torch.dtype) -> None:
    context, target = windows_of(dtype=dtype)
    results = []
    for backend in ("triton", "torch"):
        torch.manual_seed(1)
        config = tiny(DeepARConfig, dropout=0.0)
        network = DeepARNetwork(config, 8, CONTEXT, HORIZON, None, backend).to(DEVICE, dtype)
        inputs: Any = [tensor.to(DEVICE) for tensor in network.inputs(context, target)]
        loss, _ = network.losses(*inputs)
        loss.backward()
        trained = [weight for weight in network.parameters() if weight.requires_grad]
        results.append([loss, *(gradient_of(weight) for weight in trained)])
        assert network.is_fast == (backend == "triton")
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


def test_unsupported_configurations_reject_the_triton_backend() -> None:
    with pytest.raises(TaskError, match="rank 1"):
        DeepARNetwork(tiny(DeepARConfig, rank=2), 8, CONTEXT, HORIZON, None, "triton")
    assert not DeepARNetwork(tiny(DeepARConfig, rank=2), 8, CONTEXT, HORIZON).to(DEVICE).is_fast


@each_precision
def test_nan_values_propagate(dtype: torch.dtype) -> None:
    size = SIZES["odd numbers"]
    head, hidden, window = head_and_window(size, dtype)
    window.past[1, 3, 2] = torch.nan
    sums = fused_channel_sums(hidden, head.weight, head.bias, window, size.reach, 1e-6)
    assert sums[1, 1, 1].isnan()
    assert sums[0].isfinite().all()
