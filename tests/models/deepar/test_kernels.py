"""The kernels of DeepAR's sums against their twin: on a GPU, or else in Triton's interpreter."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from powerphase.errors import TaskError
from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.head import LowRankGaussian, channel_sums
from powerphase.models.deepar.kernels import Law, fast_sums
from powerphase.models.deepar.network import DeepARNetwork
from powerphase.models.recurrent.inputs import Window
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, windows_of

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32] if ON_GPU else [torch.float64]

every_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """Of a case."""

    windows: int
    context: int
    horizon: int
    channels: int
    cells: int
    reach: int = 2


SIZES = {
    "one of all": Size(1, 3, 1, 1, 1),
    "odd numbers": Size(3, 5, 4, 7, 5),
    "no step before the context": Size(2, 5, 4, 9, 3, reach=0),
    "the reference's cells": Size(1, 30, 12, 37, 40),
    "several tiles of rows and channels": Size(2, 50, 21, 131, 17),
    "several programs for a channel": Size(9, 60, 11, 3, 6),
}

every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def given(size: Size, dtype: torch.dtype) -> tuple[LowRankGaussian, Tensor, Window]:
    """Windows are parts of one tensor, as those of a batch are."""
    torch.manual_seed(3)
    head = LowRankGaussian(size.cells, size.channels, 1, 1e-6).to(DEVICE, dtype)
    steps = size.context + size.horizon
    values = torch.randn(size.windows, steps, size.channels, dtype=torch.float64) + 2
    scale = torch.rand(size.windows, size.channels, dtype=torch.float64) + 0.5
    known = torch.randn(size.windows, steps - size.reach, size.cells, dtype=torch.float64)
    values, scale, known = (one.to(DEVICE, dtype) for one in (values, scale, known))
    window = Window(values[:, : size.context], values[:, size.context :], scale)
    return head, known.requires_grad_(), window


def slopes(found: Tensor, head: LowRankGaussian, known: Tensor) -> tuple[Tensor, ...]:
    """Of something in which every sum of every row counts differently."""
    share = torch.linspace(-1, 2, found.numel()).to(found).view_as(found).cos()
    return torch.autograd.grad((share * found).sum(), [known, head.weight, head.bias])


def assert_close(found: Tensor, wanted: Tensor, rough: float = 2e-5) -> None:
    """Within a share of the norm; of single precision, a rough one."""
    share = 1e-9 if wanted.dtype == torch.float64 else rough
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= share * wanted.norm() + 1e-12


@every_precision
@every_size
def test_sums_and_slopes_are_those_of_the_twin(size: Size, dtype: torch.dtype) -> None:
    head, known, window = given(size, dtype)
    found = fast_sums(known, head.weight, head.bias, window, Law(size.reach, 1e-6))
    wanted = channel_sums(head(known), window.scaled(slice(None), size.reach))
    assert_close(found, wanted)
    pairs = zip(slopes(found, head, known), slopes(wanted, head, known), strict=True)
    for one, other in pairs:
        assert_close(one, other)


@every_size
def test_products_of_few_digits_are_those_of_the_twin(
    size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TF32, for which tiles are larger; without a GPU, its digits are all there."""
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    head, known, window = given(size, torch.float32)
    found = fast_sums(known, head.weight, head.bias, window, Law(size.reach, 1e-6))
    wanted = channel_sums(head(known), window.scaled(slice(None), size.reach))
    assert_close(found, wanted, 5e-3)
    pairs = zip(slopes(found, head, known), slopes(wanted, head, known), strict=True)
    for one, other in pairs:
        assert_close(one, other, 1e-2 if ON_GPU else 2e-5)


@every_precision
def test_tiny_and_large_variances_are_those_of_the_twin(dtype: torch.dtype) -> None:
    size = SIZES["odd numbers"]
    head, known, window = given(size, dtype)
    with torch.no_grad():
        head.bias[1, :, 0] = torch.linspace(-30, 30, size.channels)
    found = fast_sums(known, head.weight, head.bias, window, Law(size.reach, 1e-6))
    wanted = channel_sums(head(known), window.scaled(slice(None), size.reach))
    assert_close(found, wanted)
    for one, other in zip(slopes(found, head, known), slopes(wanted, head, known), strict=True):
        assert_close(one, other)


@every_precision
def test_a_step_by_kernels_is_that_of_plain_pytorch(dtype: torch.dtype) -> None:
    context, target = windows_of(dtype=dtype)
    found = []
    for backend in ("triton", "torch"):
        torch.manual_seed(1)
        config = tiny(DeepARConfig, dropout=0.0)
        network = DeepARNetwork(config, 8, CONTEXT, HORIZON, None, backend).to(DEVICE, dtype)
        inputs: Any = [one.to(DEVICE) for one in network.inputs(context, target)]
        loss, _ = network.losses(*inputs)
        loss.backward()
        found.append([loss, *(one.grad for one in network.parameters() if one.requires_grad)])
        assert network.is_fast == (backend == "triton")
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


def test_what_has_no_kernels_is_refused_them() -> None:
    with pytest.raises(TaskError, match="kernels of DeepAR are for rank 1"):
        DeepARNetwork(tiny(DeepARConfig, rank=2), 8, CONTEXT, HORIZON, None, "triton")
    assert not DeepARNetwork(tiny(DeepARConfig, rank=2), 8, CONTEXT, HORIZON).to(DEVICE).is_fast


@every_precision
def test_what_is_no_number_is_handed_on(dtype: torch.dtype) -> None:
    size = SIZES["odd numbers"]
    head, known, window = given(size, dtype)
    window.past[1, 3, 2] = torch.nan
    found = fast_sums(known, head.weight, head.bias, window, Law(size.reach, 1e-6))
    assert found[1, 1, 1].isnan()
    assert found[0].isfinite().all()
