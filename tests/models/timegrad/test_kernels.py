"""The kernels against the network in PyTorch: on a GPU, or else in Triton's interpreter."""

import pytest
import torch

from powerphase.models.framework import kernels as toolkit
from powerphase.models.framework.stepping import CapturedFunction
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.kernels import COLUMNS, denoised

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = {torch.float64: 1e-12} | ({torch.float32: 1e-4} if ON_GPU else {})


@pytest.mark.skipif(not (ON_GPU or toolkit.IS_INTERPRETED), reason="needs a GPU or the interpreter")
@pytest.mark.parametrize(("dtype", "exact"), PRECISIONS.items(), ids=str)
@pytest.mark.parametrize(
    ("width", "rows", "channels"),
    [(8, 2, COLUMNS), (3, 3, 31), (1, 1, 29)],
    ids=["the reference's, across programs", "odd numbers", "one of all"],
)
def test_a_kernel_for_each_layer_makes_what_the_network_makes(
    width: int, rows: int, channels: int, dtype: torch.dtype, exact: float
) -> None:
    torch.manual_seed(1)
    denoiser = Denoiser(TimeGradConfig(width=width), channels).to(DEVICE, dtype)
    torch.nn.init.normal_(denoiser.leave.weight)  # which begins as zeros
    noisy, conditioner = torch.randn(2, rows, channels, device=DEVICE, dtype=dtype)
    step = denoiser.steps()[41:42]
    with torch.no_grad():
        wanted = denoiser(noisy, conditioner, step)
    found = denoised(denoiser, noisy, conditioner, step)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=exact * float(wanted.abs().max()))


def test_what_is_replayed_is_what_the_function_makes_of_every_size() -> None:
    replayed = CapturedFunction(lambda one, other: (one + other).sin())
    for size in (3, 3, 5, 3):
        one, other = torch.randn(2, size, device=DEVICE)
        torch.testing.assert_close(replayed(one, other), (one + other).sin())
