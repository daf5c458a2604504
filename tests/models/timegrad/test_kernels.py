"""The inference kernels against PyTorch: on a GPU, or else in Triton's interpreter."""

import pytest
import torch

from powerphase.models.framework import IS_INTERPRETED, CapturedFunction
from powerphase.models.timegrad import Denoiser, TimeGradConfig, fused_noise, launch

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = {torch.float64: 1e-12} | ({torch.float32: 1e-4} if ON_GPU else {})


@pytest.mark.skipif(not (ON_GPU or IS_INTERPRETED), reason="needs a GPU or the interpreter")
@pytest.mark.parametrize(("dtype", "exact"), PRECISIONS.items(), ids=str)
@pytest.mark.parametrize(
    ("width", "rows", "channels"),
    [(8, 2, launch.INFERENCE_COLUMNS), (3, 3, 31), (1, 1, 29)],
    ids=["default width, several programs", "odd numbers", "one of everything"],
)
def test_kernels_match_the_network(
    width: int, rows: int, channels: int, dtype: torch.dtype, exact: float
) -> None:
    torch.manual_seed(1)
    denoiser = Denoiser(TimeGradConfig(width=width), channels).to(DEVICE, dtype)
    torch.nn.init.normal_(denoiser.leave.weight)  # which starts at zero
    noisy, conditioner = torch.randn(2, rows, channels, device=DEVICE, dtype=dtype)
    step = denoiser.step_embeddings()[41:42]
    with torch.no_grad():
        expected = denoiser(noisy, conditioner, step)
    noise = fused_noise(denoiser, noisy, conditioner, step)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(noise, expected, rtol=0, atol=exact * float(expected.abs().max()))


def test_a_captured_function_matches_the_function_for_every_size() -> None:
    captured = CapturedFunction(lambda first, second: (first + second).sin())
    for size in (3, 3, 5, 3):
        first, second = torch.randn(2, size, device=DEVICE)
        torch.testing.assert_close(captured(first, second), (first + second).sin())
