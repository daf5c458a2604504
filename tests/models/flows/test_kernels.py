"""The flow by kernels against the plain form: on a GPU, or else in Triton's interpreter."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from powerphase.models.flows.kernels import contraction, motion, tiles
from powerphase.models.flows.kernels.moments import moments_of
from powerphase.models.flows.memory import flow_block, flow_numbers
from powerphase.models.flows.normalisation import Moments
from powerphase.models.flows.realnvp import RealNVP
from powerphase.models.flows.tempflow.config import TempFlowConfig
from powerphase.models.flows.tempflow.model import TempFlow
from powerphase.models.flows.transformer.model import TransformerTempFlow
from powerphase.models.recurrent.inputs import Given
from tests.models.flows.test_realnvp import CONDITION, flow_of
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, training_of, waves, windows_of

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32]

each_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """Of a case."""

    windows: int
    past: int
    target: int
    channels: int
    at_once: int


SIZES = {
    "one window of few channels": Size(1, 5, 0, 2, 99),
    "odd channels in two parts": Size(2, 3, 2, 7, 99),
    "blocks of odd sizes": Size(2, 4, 3, 9, 3),
    "blocks that are aligned": Size(2, 4, 1, 75, 20),
    "several programs and tiles": Size(2, 18, 3, 259, 999),
}
each_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def given_of(size: Size, dtype: torch.dtype) -> Given:
    """Windows that are cut out of longer ones, of channels that differ in level and size."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    past = random(size.windows, size.past + 4, size.channels) + 1
    target = random(size.windows, size.target, size.channels) - 0.5
    scale = random(size.windows, size.channels).abs() + 0.3
    past, target, scale = (part.to(DEVICE, dtype) for part in (past, target, scale))
    return Given((past[:, 4:], target) if size.target else (past[:, 4:],), scale)


def share_off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Each within a share of its norm; a bias that normalisation takes off again has none."""
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        share, least = (1e-9, 1e-11) if one.dtype == torch.float64 else (1e-4, 1e-4)
        assert found[name].dtype == one.dtype
        off = (found[name] - one).norm()
        assert off <= share * one.norm() + least, f"{name} is off by {off:.1e}"


def learned(
    flow: RealNVP, given: Given, known: Tensor, at_once: int, fast: bool
) -> dict[str, Tensor]:
    """Loss, gradients and running statistics after a step."""
    known = known.detach().requires_grad_()
    state = {name: value.clone() for name, value in flow.state_dict().items()}
    flow.zero_grad()
    loss = flow.negative_log_likelihood(known, given, at_once, fast)
    loss.backward()
    found = {name: one.grad.clone() for name, one in flow.named_parameters()}
    found |= {name: one.clone() for name, one in flow.named_buffers()}
    flow.load_state_dict(state)
    return {"loss": loss.detach(), "known": known.grad, **found}


def both(size: Size, dtype: torch.dtype, couplings: int = 3, train: bool = True) -> Any:
    flow = flow_of(size.channels, couplings, train).to(DEVICE, dtype)
    torch.manual_seed(6)
    rows = (size.windows, size.past + size.target, CONDITION)
    known = torch.randn(rows, dtype=torch.float64).to(DEVICE, dtype)
    given = given_of(size, dtype)
    return [learned(flow, given, known, size.at_once, fast) for fast in (True, False)]


@each_precision
@each_size
def test_loss_gradients_and_statistics_are_those_of_the_plain_form(
    size: Size, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "MOST_TILES", 2)
    assert_close(*both(size, dtype))


@pytest.mark.parametrize("couplings", [1, 2, 4])
@pytest.mark.parametrize("train", [True, False])
def test_any_number_of_couplings_is_that_of_the_plain_form(couplings: int, train: bool) -> None:
    """By the batch's statistics and by running ones, whose moments get no gradient."""
    assert_close(*both(Size(2, 4, 2, 5, 2), torch.float64, couplings, train))


@pytest.mark.parametrize("tiles_each", [1, 2, 32])
def test_moments_keep_the_digits_of_channels_that_hardly_move(
    tiles_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision, of rows that several programs share and whose last tile is not full."""
    monkeypatch.setattr(tiles, "MOST_TILES", tiles_each)
    given = given_of(Size(3, 50, 7, 5, 99), torch.float32)
    given.parts[0][..., 1], given.parts[1][..., 1] = 3e9, 3e9
    given.parts[0][..., 2] = 1000 + 1e-2 * given.parts[0][..., 2]
    given.parts[1][..., 2] = 1000 + 1e-2 * given.parts[1][..., 2]
    given = given._replace(scale=torch.ones_like(given.scale))
    found, wanted = moments_of(given), Moments.of(given.made().double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=1e-6)


def test_channels_that_do_not_move_stay_finite_by_kernels() -> None:
    torch.manual_seed(0)
    flow = RealNVP(CONDITION, 6, 3, 6).to(DEVICE).train()
    known, values = torch.randn(3, 4, CONDITION).to(DEVICE), torch.randn(3, 4, 6).to(DEVICE)
    values[..., 0], values[..., 1], values[..., 2] = 0.0, 1.0, 3e9
    loss = flow.negative_log_likelihood(known, Given((values,)), 2, fast=True)
    loss.backward()
    assert loss.isfinite()
    assert all(one.grad.isfinite().all() for one in flow.parameters())


def test_missing_values_are_not_lost() -> None:
    given = given_of(Size(1, 20, 0, 4, 99), torch.float32)
    given.parts[0][0, 3, 1] = torch.nan
    found = moments_of(given)
    assert found.mean.isnan().tolist() == found.variance.isnan().tolist()
    assert found.mean.isnan().tolist() == [False, True, False, False]


def test_half_precision_is_a_matter_of_products_alone() -> None:
    """Products are rounded as the plain form's are, so both are equally far from the whole."""
    size = Size(2, 9, 3, 7, 3)
    _, exact = both(size, torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found, wanted = both(size, torch.float32)
    for name, one in exact.items():
        if one.norm() > 1e-3:
            assert share_off(found[name], one) < 2 * share_off(wanted[name], one) + 1e-2, name
    assert found["loss"] != exact["loss"]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_a_step_can_be_recorded_and_repeats_itself() -> None:
    size = Size(2, 283, 1, 259, 64)
    flow = flow_of(size.channels, 3, train=True).to(DEVICE, torch.float32)
    known = torch.randn(2, 284, CONDITION, device=DEVICE, requires_grad=True)
    given = given_of(size, torch.float32)

    def step() -> list[Tensor]:
        loss = flow.negative_log_likelihood(known, given, size.at_once, fast=True)
        return [loss.detach(), *torch.autograd.grad(loss, [known, *flow.parameters()])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wanted = [step() for _ in range(3)][-1]
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        found = step()
    for _ in range(2):
        recorded.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])
def test_a_network_by_kernels_has_the_plain_one_s_loss_and_gradients(kind: Any) -> None:
    """From windows in two parts or one, with what the lags reach left out."""
    found = []
    for backend in ("triton", "torch"):
        torch.manual_seed(1)
        config = tiny(kind.config_type, dropout=0.0)
        network = kind.network_type(config, 8, CONTEXT, HORIZON, 3, backend)
        network = network.to(DEVICE, torch.float64).train()
        assert network.is_fast == (backend == "triton")
        context, target = windows_of()
        context = replace(context, past=context.past.to(DEVICE))
        torch.manual_seed(2)
        loss, _ = network(context, target.to(DEVICE))
        loss.backward()
        slopes = {name: one.grad for name, one in network.named_parameters() if one.requires_grad}
        found.append({"loss": loss.detach(), **slopes})
    assert_close(*found)


@pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])
def test_kernels_take_less_memory_and_smaller_blocks_less_again(kind: Any) -> None:
    sizes = []
    for backend, block in (("torch", None), ("triton", None), ("triton", 4), ("triton", 1)):
        model = kind(tiny(kind.config_type, training={"batch_size": 200}), backend=backend)
        sizes.append(model.memory_gib(training_of(waves()), block))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_kernels_keep_what_the_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step of three couplings: kept halves and their slopes, two tensors of a block."""
    made: list[tuple[int, ...]] = []
    for name in ("room", "empty"):
        real = getattr(tiles, name)

        def noted(*given: Any, real: Any = real) -> Tensor:
            found = real(*given)
            made.append(tuple(found.shape))
            return found

        for module in (contraction, motion):
            monkeypatch.setattr(module, name, noted)
    both(Size(1, 3, 0, 64, 16), torch.float64)
    assert {size for size in made if size[-1] == 16} == {(1, 3, 16), (2, 3, 16)}
    assert made.count((1, 3, 32)) == 2 + 3  # moved twice; slopes of one half twice


@pytest.mark.parametrize("n_channels", [2_000, 36_964])
def test_wider_blocks_of_kernels_take_no_more_than_the_plain_form_s(n_channels: int) -> None:
    plain, fast = (
        flow_numbers(TempFlowConfig(), 144_000, n_channels, None, fast) for fast in (False, True)
    )
    assert flow_block(None, n_channels, 144_000, fast=True) > 2 * flow_block(
        None, n_channels, 144_000, fast=False
    )
    assert fast[0] < plain[0]
    assert fast[1] < plain[1]
    assert flow_block(100, n_channels, 144_000, fast=True) == 100
