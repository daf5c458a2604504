"""The loss and its slopes by kernels: on a GPU, or else in Triton's interpreter."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any
from weakref import finalize

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from powerphase.errors import TaskError
from powerphase.models.framework import kernels as toolkit
from powerphase.models.timegrad import slopes as slopes_module
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.model import KERNELS, PLAIN, _parts
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.objective import Noisy, Pieces, mean_error
from powerphase.models.timegrad.slopes import COLUMNS, Piece, fast_slopes
from powerphase.models.timegrad.tiles import PIECE_NUMBERS, tiles
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, windows_of
from tests.models.timegrad.plain import denoiser_of, plain_noise

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = {torch.float64: 1e-9} | ({torch.float32: 1e-3} if ON_GPU else {})

pytestmark = pytest.mark.skipif(
    not (ON_GPU or toolkit.IS_INTERPRETED), reason="needs a GPU or the interpreter"
)
every_precision = pytest.mark.parametrize(("dtype", "exact"), PRECISIONS.items(), ids=str)

SIZES = {
    "the reference's, in several tiles": (8, 2, COLUMNS, None),
    "odd numbers": (3, 2, 31, None),
    "one of all": (1, 1, 5, None),
    "tiles of channels, fewer than the halo has": (2, 1, 9, 5),
    "one group of columns": (9, 1, 6, None),
}
"""Features, blocks, channels, and channels at once."""


def given(n_channels: int, dtype: torch.dtype, rows: int = 3) -> list[Tensor]:
    """Noisy rows, their noise, what is known of them."""
    torch.manual_seed(4)
    sizes = [(rows, n_channels), (rows, n_channels), (rows, 6)]
    return [torch.randn(one, dtype=torch.float64).to(DEVICE, dtype) for one in sizes]


def assert_close(found: Tensor, wanted: Tensor, exact: float) -> None:
    """As a share of the largest."""
    most = float(wanted.detach().abs().max())
    assert most > 0
    torch.testing.assert_close(found.to(wanted), wanted, rtol=0, atol=exact * most)


@every_precision
@pytest.mark.parametrize(("width", "blocks", "n_channels", "at_once"), SIZES.values(), ids=SIZES)
def test_kernels_give_the_loss_and_the_gradients_of_the_plain_network(
    width: int, blocks: int, n_channels: int, at_once: int | None, dtype: torch.dtype, exact: float
) -> None:
    """Rows have diffusion steps of their own, and are two pieces.

    The plain network is always in double precision: a GPU's own convolutions round in single.
    """
    plain = denoiser_of(n_channels, width=width, blocks=blocks).to(DEVICE)
    denoiser = deepcopy(plain).to(dtype)
    noisy, noise, known = given(n_channels, dtype)
    known.requires_grad_()
    step = torch.tensor([0, 8, 3], device=DEVICE)
    exactly = known.detach().double().requires_grad_()
    expected = (plain_noise(plain, noisy.double(), exactly, step) - noise).square().mean()
    conditioner, added = denoiser.conditioner(known), denoiser.steps()[step]
    cut = tiles(n_channels, at_once or n_channels, denoiser.halo)
    pieces = Pieces(2, cut, fast=True)
    found = mean_error(denoiser, Noisy(noisy, noise), conditioner, added, pieces)
    assert_close(found, expected, exact)
    slopes = torch.autograd.grad(2 * found, [known, *denoiser.parameters()])
    wanted = torch.autograd.grad(2 * expected, [exactly, *plain.parameters()])
    for one, other in zip(slopes, wanted, strict=True):
        assert_close(one, other, exact)
    with torch.no_grad():
        again = mean_error(denoiser, Noisy(noisy, noise), conditioner, added, pieces)
    assert_close(again, expected, exact)


@pytest.mark.skipif(not ON_GPU, reason="only a GPU has rough products")
def test_rough_products_change_slopes_by_little() -> None:
    denoiser = denoiser_of(200).to(DEVICE, torch.float32)
    noisy, noise, known = given(200, torch.float32)
    conditioner = denoiser.conditioner(known)
    found = []
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            pieces = Pieces(2, tiles(200, 200, denoiser.halo), fast=True)
            added = denoiser.steps()[torch.arange(3)]
            loss = mean_error(denoiser, Noisy(noisy, noise), conditioner.detach(), added, pieces)
            found.append(torch.autograd.grad(loss, denoiser.filters()))
        finally:
            torch.set_float32_matmul_precision("highest")
    for rough, fine in zip(found[1], found[0], strict=True):
        assert_close(rough, fine, 0.02)


def piece_of(denoiser: Denoiser, rows: int, channels: int) -> Piece:
    length, dtype = channels + 2 * denoiser.halo, denoiser.leave.weight.dtype
    torch.manual_seed(5)
    noisy, conditioner = torch.randn(2, rows, length, dtype=dtype, device=DEVICE)
    noise = torch.randn(rows, channels, dtype=dtype, device=DEVICE)
    step = denoiser.steps().detach()[torch.arange(rows) % 9]
    return Piece(noisy, conditioner, step, noise)


@torch.no_grad()
def test_programs_that_share_a_layer_add_up_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser = denoiser_of(8, width=2, blocks=1).to(DEVICE)
    found = []
    for programs in (1, 1000):
        monkeypatch.setattr(slopes_module, "PROGRAMS", programs)
        found.append(fast_slopes(denoiser, piece_of(denoiser, 3, 8), 0.1)[1])
    for one, same in zip(*found, strict=True):
        assert_close(same, one, 1e-12)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, about what is no number
def test_rows_do_not_meet() -> None:
    denoiser = denoiser_of(8, width=2, blocks=1).to(DEVICE)
    piece = piece_of(denoiser, 3, 8)
    before = fast_slopes(denoiser, piece, 0.1)[1]
    piece.noisy[1], piece.conditioner[1] = torch.nan, torch.inf
    after = fast_slopes(denoiser, piece, 0.1)[1]
    for one, other in zip(after[:2], before[:2], strict=True):
        assert one[1].isnan().any()
        assert torch.equal(one[[0, 2]], other[[0, 2]])


@every_precision
def test_a_step_by_kernels_is_that_of_plain_pytorch(dtype: torch.dtype, exact: float) -> None:
    context, target = windows_of(1, dtype=dtype)
    found = []
    for backend in ("triton", "torch"):
        torch.manual_seed(1)
        network = TimeGradNetwork(
            tiny(TimeGradConfig, rows=2, dropout=0.0), 8, CONTEXT, HORIZON, 3, backend
        )
        torch.nn.init.normal_(network.denoiser.leave.weight, std=0.1)
        network.to(DEVICE, dtype)
        inputs: Any = [one.to(DEVICE) for one in network.inputs(context, target)]
        torch.manual_seed(6)
        loss, _ = network.losses(*inputs)
        loss.backward()
        assert network._pieces(inputs[0][0]).fast == (backend == "triton")
        found.append([loss, *(one.grad for one in network.parameters() if one.requires_grad)])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 10 * exact)


def test_wider_networks_have_no_kernels() -> None:
    wide = tiny(TimeGradConfig, width=17)
    with pytest.raises(TaskError, match="for 16 features or fewer, and width is 17"):
        TimeGradNetwork(wide, 8, CONTEXT, HORIZON, None, "triton")
    network = TimeGradNetwork(wide, 8, CONTEXT, HORIZON)
    assert not network._pieces(torch.empty(1, 8, device=DEVICE)).fast


class Alive(TorchDispatchMode):
    """Counts the bytes of all tensors that are made while it is on; some were there before."""

    def __init__(self, before: Iterable[Tensor]) -> None:
        super().__init__()
        self.now, self.most = 0, 0
        self._seen = {one.untyped_storage()._cdata for one in before}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, list | tuple) else [made]:
            if isinstance(one, Tensor) and one.untyped_storage()._cdata not in self._seen:
                self._count(one.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@torch.no_grad()
def test_what_kernels_keep_of_a_piece_is_in_its_estimate() -> None:
    config, n_programs = TimeGradConfig(blocks=2), 3
    denoiser = denoiser_of(8, blocks=2).to(DEVICE)
    n_columns = slopes_module.BLOCK_COLUMNS * slopes_module.groups(config.width)
    piece = piece_of(denoiser, n_programs, n_columns - 2 * denoiser.halo)
    with Alive([*denoiser.parameters(), *piece]) as alive:
        fast_slopes(denoiser, piece, 0.1)
    # Beside the sums of programs there is their sum, and beside all else what is given.
    parts = _parts(config) * (n_programs + 0.5) / slopes_module.PROGRAMS
    wide = (KERNELS.of_block * config.blocks + KERNELS.more) * 2 * config.width
    estimate = (wide - 2) * piece.noisy.numel() + parts
    assert 0.8 * estimate < alive.most / 8 <= estimate


def test_a_piece_of_kernels_takes_less_memory_than_a_plain_one() -> None:
    config = TimeGradConfig()
    plain, fast = (one.of_block * config.blocks + one.more for one in (PLAIN, KERNELS))
    numbers = fast * PIECE_NUMBERS["kernels"] + _parts(config)
    assert numbers < 0.6 * plain * PIECE_NUMBERS["cuda"]
