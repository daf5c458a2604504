"""Kernels of the loss and its gradients: on a GPU, or else in Triton's interpreter."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any
from weakref import finalize

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from powerphase.errors import TaskError
from powerphase.models.framework import IS_INTERPRETED
from powerphase.models.timegrad import (
    KERNELS,
    PIECE_NUMBERS,
    PLAIN,
    Denoiser,
    NoisyRows,
    Piece,
    Pieces,
    TimeGradConfig,
    TimeGradNetwork,
    fused_gradients,
    groups,
    launch,
    make_tiles,
    noise_loss,
    partial_sums,
)
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, windows_of
from tests.models.timegrad.plain import denoiser_of, plain_noise

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = {torch.float64: 1e-9} | ({torch.float32: 1e-3} if ON_GPU else {})

pytestmark = pytest.mark.skipif(
    not (ON_GPU or IS_INTERPRETED), reason="needs a GPU or the interpreter"
)
each_precision = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS.items(), ids=str)

SIZES = {
    "default width, several tiles": (8, 2, launch.COLUMNS, None),
    "odd numbers": (3, 2, 31, None),
    "one of everything": (1, 1, 5, None),
    "tiles with fewer channels than the halo": (2, 1, 9, 5),
    "one group of columns": (9, 1, 6, None),
}
"""Features, blocks, channels, and channels per tile."""


def inputs_of(n_channels: int, dtype: torch.dtype, rows: int = 3) -> list[Tensor]:
    """Noisy rows, their noise and their conditions."""
    torch.manual_seed(4)
    sizes = [(rows, n_channels), (rows, n_channels), (rows, 6)]
    return [torch.randn(size, dtype=torch.float64).to(DEVICE, dtype) for size in sizes]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Check the error relative to the largest number."""
    largest = float(expected.detach().abs().max())
    assert largest > 0
    torch.testing.assert_close(actual.to(expected), expected, rtol=0, atol=tolerance * largest)


@each_precision
@pytest.mark.parametrize(("width", "blocks", "n_channels", "tile_size"), SIZES.values(), ids=SIZES)
def test_kernels_match_the_loss_and_gradients_of_the_plain_network(
    width: int,
    blocks: int,
    n_channels: int,
    tile_size: int | None,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Rows have different diffusion steps, in two pieces.

    The plain network is always in double precision: a GPU's convolutions round in single.
    """
    plain = denoiser_of(n_channels, width=width, blocks=blocks).to(DEVICE)
    denoiser = deepcopy(plain).to(dtype)
    noisy, noise, condition = inputs_of(n_channels, dtype)
    condition.requires_grad_()
    step = torch.tensor([0, 8, 3], device=DEVICE)
    double = condition.detach().double().requires_grad_()
    expected = (plain_noise(plain, noisy.double(), double, step) - noise).square().mean()
    conditioner, embeddings = denoiser.conditioner(condition), denoiser.step_embeddings()[step]
    pieces = Pieces(2, make_tiles(n_channels, tile_size or n_channels, denoiser.halo), fast=True)
    loss = noise_loss(denoiser, NoisyRows(noisy, noise), conditioner, embeddings, pieces)
    assert_close(loss, expected, tolerance)
    gradients = torch.autograd.grad(2 * loss, [condition, *denoiser.parameters()])
    plain_gradients = torch.autograd.grad(2 * expected, [double, *plain.parameters()])
    for gradient, plain_gradient in zip(gradients, plain_gradients, strict=True):
        assert_close(gradient, plain_gradient, tolerance)
    with torch.no_grad():
        loss = noise_loss(denoiser, NoisyRows(noisy, noise), conditioner, embeddings, pieces)
    assert_close(loss, expected, tolerance)


@pytest.mark.skipif(not ON_GPU, reason="TF32 needs a GPU")
def test_tf32_products_change_gradients_little() -> None:
    denoiser = denoiser_of(200).to(DEVICE, torch.float32)
    noisy, noise, condition = inputs_of(200, torch.float32)
    conditioner = denoiser.conditioner(condition)
    results = []
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            pieces = Pieces(2, make_tiles(200, 200, denoiser.halo), fast=True)
            embeddings = denoiser.step_embeddings()[torch.arange(3)]
            loss = noise_loss(
                denoiser, NoisyRows(noisy, noise), conditioner.detach(), embeddings, pieces
            )
            results.append(torch.autograd.grad(loss, denoiser.convolution_parameters()))
        finally:
            torch.set_float32_matmul_precision("highest")
    for rounded, exact in zip(results[1], results[0], strict=True):
        assert_close(rounded, exact, 0.02)


def piece_of(denoiser: Denoiser, rows: int, channels: int) -> Piece:
    length, dtype = channels + 2 * denoiser.halo, denoiser.leave.weight.dtype
    torch.manual_seed(5)
    noisy, conditioner = torch.randn(2, rows, length, dtype=dtype, device=DEVICE)
    noise = torch.randn(rows, channels, dtype=dtype, device=DEVICE)
    step = denoiser.step_embeddings().detach()[torch.arange(rows) % 9]
    return Piece(noisy, conditioner, step, noise)


@torch.no_grad()
def test_gradients_do_not_depend_on_the_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser = denoiser_of(8, width=2, blocks=1).to(DEVICE)
    results = []
    for programs in (1, 1000):
        monkeypatch.setattr(launch, "PROGRAMS", programs)
        results.append(fused_gradients(denoiser, piece_of(denoiser, 3, 8), 0.1)[1])
    for single, several in zip(*results, strict=True):
        assert_close(several, single, 1e-12)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, about NaN
def test_rows_are_independent() -> None:
    denoiser = denoiser_of(8, width=2, blocks=1).to(DEVICE)
    piece = piece_of(denoiser, 3, 8)
    before = fused_gradients(denoiser, piece, 0.1)[1]
    piece.noisy[1], piece.conditioner[1] = torch.nan, torch.inf
    after = fused_gradients(denoiser, piece, 0.1)[1]
    for gradient, expected in zip(after[:2], before[:2], strict=True):
        assert gradient[1].isnan().any()
        assert torch.equal(gradient[[0, 2]], expected[[0, 2]])


@each_precision
def test_a_training_step_with_kernels_matches_pytorch(dtype: torch.dtype, tolerance: float) -> None:
    context, target = windows_of(1, dtype=dtype)
    results = []
    for backend in ("triton", "torch"):
        torch.manual_seed(1)
        network = TimeGradNetwork(
            tiny(TimeGradConfig, rows=2, dropout=0.0), 8, CONTEXT, HORIZON, 3, backend
        )
        torch.nn.init.normal_(network.denoiser.leave.weight, std=0.1)
        network.to(DEVICE, dtype)
        inputs: Any = [part.to(DEVICE) for part in network.inputs(context, target)]
        torch.manual_seed(6)
        loss, _ = network.losses(*inputs)
        loss.backward()
        assert network.pieces(inputs[0][0]).fast == (backend == "triton")
        trained: list[Any] = [weight for weight in network.parameters() if weight.requires_grad]
        results.append([loss, *(weight.grad for weight in trained)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected, 10 * tolerance)


def test_wide_networks_reject_the_triton_backend() -> None:
    wide = tiny(TimeGradConfig, width=17)
    with pytest.raises(TaskError, match=r"16.* 17"):
        TimeGradNetwork(wide, 8, CONTEXT, HORIZON, None, "triton")
    network = TimeGradNetwork(wide, 8, CONTEXT, HORIZON)
    assert not network.pieces(torch.empty(1, 8, device=DEVICE)).fast


class AllocationCounter(TorchDispatchMode):
    """Counts the bytes of all new tensors while it is active; `before` existed already."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current, self.peak = 0, 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, list | tuple) else [result]:
            if isinstance(part, Tensor) and part.untyped_storage()._cdata not in self._seen:
                self._count(part.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.current -= size


@torch.no_grad()
def test_the_memory_of_kernels_is_within_the_estimate() -> None:
    config, n_programs = TimeGradConfig(blocks=2), 3
    denoiser = denoiser_of(8, blocks=2).to(DEVICE)
    n_columns = launch.BLOCK_COLUMNS * groups(config.width)
    piece = piece_of(denoiser, n_programs, n_columns - 2 * denoiser.halo)
    with AllocationCounter([*denoiser.parameters(), *piece]) as counter:
        fused_gradients(denoiser, piece, 0.1)
    # The programs' sums include their total, and the estimate includes the inputs of a piece.
    sums = partial_sums(config) * (n_programs + 0.5) / launch.PROGRAMS
    wide = (KERNELS.per_block * config.blocks + KERNELS.extra) * 2 * config.width
    estimate = (wide - 2) * piece.noisy.numel() + sums
    assert 0.8 * estimate < counter.peak / 8 <= estimate


def test_a_piece_takes_less_memory_with_kernels() -> None:
    config = TimeGradConfig()
    plain, fused = (count.per_block * config.blocks + count.extra for count in (PLAIN, KERNELS))
    numbers = fused * PIECE_NUMBERS["kernels"] + partial_sums(config)
    assert numbers < 0.6 * plain * PIECE_NUMBERS["cuda"]
