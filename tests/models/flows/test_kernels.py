"""The flow's Triton kernels against PyTorch: on a GPU, or else in Triton's interpreter."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from powerphase.models.flows import (
    RealNVP,
    TempFlow,
    TempFlowConfig,
    TransformerTempFlow,
    channel_moments,
    flow_block_size,
    flow_numbers,
)
from powerphase.models.flows.kernels import coupling, projection, tiles
from powerphase.models.recurrent import Moments, ScaledValues
from tests.models.flows.test_realnvp import CONDITION, all_gradients_are_finite, flow_of
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, training_of, waves, windows_of

pytest.importorskip("triton", reason="kernels need Triton")

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32]

each_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """Size of a test case."""

    windows: int
    past: int
    target: int
    channels: int
    block_size: int


SIZES = {
    "one window of few channels": Size(1, 5, 0, 2, 99),
    "odd channels in two parts": Size(2, 3, 2, 7, 99),
    "blocks of odd sizes": Size(2, 4, 3, 9, 3),
    "blocks that are aligned": Size(2, 4, 1, 75, 20),
    "several programs and tiles": Size(2, 18, 3, 259, 999),
}
each_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def inputs_of(size: Size, dtype: torch.dtype) -> ScaledValues:
    """Windows cut out of longer ones, with channels of different level and size."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    past = random(size.windows, size.past + 4, size.channels) + 1
    target = random(size.windows, size.target, size.channels) - 0.5
    scale = random(size.windows, size.channels).abs() + 0.3
    past, target, scale = (part.to(DEVICE, dtype) for part in (past, target, scale))
    return ScaledValues((past[:, 4:], target) if size.target else (past[:, 4:],), scale)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check the error of each relative to its norm; biases that normalisation removes have none."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        relative, absolute = (1e-9, 1e-11) if tensor.dtype == torch.float64 else (1e-4, 1e-4)
        assert actual[name].dtype == tensor.dtype
        error = (actual[name] - tensor).norm()
        assert error <= relative * tensor.norm() + absolute, f"error of {name}: {error:.1e}"


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    parameters = module.named_parameters()
    return {name: weight.grad.clone() for name, weight in parameters if weight.grad is not None}


def train_step(
    flow: RealNVP, inputs: ScaledValues, condition: Tensor, block_size: int, fast: bool
) -> dict[str, Tensor]:
    """Loss, gradients and running statistics after a step."""
    condition = condition.detach().requires_grad_()
    state = {name: value.clone() for name, value in flow.state_dict().items()}
    flow.zero_grad()
    loss = flow.negative_log_likelihood(condition, inputs, block_size, fast)
    loss.backward()
    results = gradients_of(flow) | {name: buffer.clone() for name, buffer in flow.named_buffers()}
    flow.load_state_dict(state)
    assert condition.grad is not None
    return {"loss": loss.detach(), "condition": condition.grad, **results}


def with_and_without_kernels(
    size: Size, dtype: torch.dtype, couplings: int = 3, train: bool = True
) -> Any:
    flow = flow_of(size.channels, couplings, train).to(DEVICE, dtype)
    torch.manual_seed(6)
    rows = (size.windows, size.past + size.target, CONDITION)
    condition = torch.randn(rows, dtype=torch.float64).to(DEVICE, dtype)
    inputs = inputs_of(size, dtype)
    return [train_step(flow, inputs, condition, size.block_size, fast) for fast in (True, False)]


@each_precision
@each_size
def test_kernels_match_pytorch(
    size: Size, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "MAX_TILES", 2)
    assert_close(*with_and_without_kernels(size, dtype))


@pytest.mark.parametrize("couplings", [1, 2, 4])
@pytest.mark.parametrize("train", [True, False])
def test_kernels_match_pytorch_for_any_number_of_couplings(couplings: int, train: bool) -> None:
    """With batch statistics and with running ones, whose moments get no gradient."""
    assert_close(*with_and_without_kernels(Size(2, 4, 2, 5, 2), torch.float64, couplings, train))


@pytest.mark.parametrize("tiles_each", [1, 2, 32])
def test_moments_are_accurate_for_channels_that_hardly_move(
    tiles_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision, with rows shared by several programs and a partial last tile."""
    monkeypatch.setattr(tiles, "MAX_TILES", tiles_each)
    inputs = inputs_of(Size(3, 50, 7, 5, 99), torch.float32)
    for part in inputs.parts:
        part[..., 1] = 3e9
        part[..., 2] = 1000 + 1e-2 * part[..., 2]
    assert inputs.scale is not None
    inputs = inputs._replace(scale=torch.ones_like(inputs.scale))
    actual, expected = channel_moments(inputs), Moments.of(inputs.compute().double())
    double = Moments(actual.mean.double(), actual.variance.double())
    torch.testing.assert_close(double, expected, rtol=2e-5, atol=1e-6)


def test_constant_channels_stay_finite_with_kernels() -> None:
    torch.manual_seed(0)
    flow = RealNVP(CONDITION, 6, 3, 6).to(DEVICE).train()
    condition, values = torch.randn(3, 4, CONDITION).to(DEVICE), torch.randn(3, 4, 6).to(DEVICE)
    values[..., 0], values[..., 1], values[..., 2] = 0.0, 1.0, 3e9
    loss = flow.negative_log_likelihood(condition, ScaledValues((values,)), 2, fast=True)
    loss.backward()
    assert loss.isfinite()
    assert all_gradients_are_finite(flow)


def test_nan_values_propagate() -> None:
    inputs = inputs_of(Size(1, 20, 0, 4, 99), torch.float32)
    inputs.parts[0][0, 3, 1] = torch.nan
    for moment in channel_moments(inputs):
        assert moment.isnan().tolist() == [False, True, False, False]


def test_half_precision_affects_only_products() -> None:
    """Both versions round their products, so both have similar errors."""
    size = Size(2, 9, 3, 7, 3)
    _, exact = with_and_without_kernels(size, torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        kernels, plain = with_and_without_kernels(size, torch.float32)
    for name, tensor in exact.items():
        if tensor.norm() > 1e-3:
            error = relative_error(kernels[name], tensor)
            assert error < 2 * relative_error(plain[name], tensor) + 1e-2, name
    assert kernels["loss"] != exact["loss"]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_a_captured_step_replays_the_same_results() -> None:
    size = Size(2, 283, 1, 259, 64)
    flow = flow_of(size.channels, 3, train=True).to(DEVICE, torch.float32)
    condition = torch.randn(2, 284, CONDITION, device=DEVICE, requires_grad=True)
    inputs = inputs_of(size, torch.float32)

    def step() -> list[Tensor]:
        loss = flow.negative_log_likelihood(condition, inputs, size.block_size, fast=True)
        return [loss.detach(), *torch.autograd.grad(loss, [condition, *flow.parameters()])]

    side: Any = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = [step() for _ in range(3)][-1]
    torch.cuda.current_stream().wait_stream(side)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(captured, expected, strict=True))


@pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])
def test_a_network_with_kernels_matches_pytorch(kind: Any) -> None:
    """For windows of one part or two, without the steps that serve only as lags."""
    results = []
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
        results.append({"loss": loss.detach(), **gradients_of(network)})
    assert_close(*results)


@pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])
def test_kernels_and_smaller_blocks_take_less_memory(kind: Any) -> None:
    sizes = []
    for backend, block in (("torch", None), ("triton", None), ("triton", 4), ("triton", 1)):
        model = kind(tiny(kind.config_type, training={"batch_size": 200}), backend=backend)
        sizes.append(model.memory_gib(training_of(waves()), block))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_kernels_allocate_what_the_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of three couplings: stored halves, their gradients, and two tensors of a block."""
    sizes: list[tuple[int, ...]] = []
    for name in ("workspace", "empty_aligned"):
        allocate = getattr(tiles, name)

        def record(*arguments: Any, allocate: Any = allocate) -> Tensor:
            tensor: Tensor = allocate(*arguments)
            sizes.append(tuple(tensor.shape))
            return tensor

        for module in (projection, coupling):
            monkeypatch.setattr(module, name, record)
    with_and_without_kernels(Size(1, 3, 0, 64, 16), torch.float64)
    assert {size for size in sizes if size[-1] == 16} == {(1, 3, 16), (2, 3, 16)}
    assert sizes.count((1, 3, 32)) == 2 + 3  # two transforms; two gradients of one half


@pytest.mark.parametrize("n_channels", [2_000, 36_964])
def test_wider_blocks_of_kernels_take_less_memory(n_channels: int) -> None:
    plain, fast = (
        flow_numbers(TempFlowConfig(), 144_000, n_channels, None, fast) for fast in (False, True)
    )
    assert flow_block_size(None, n_channels, 144_000, fast=True) > 2 * flow_block_size(
        None, n_channels, 144_000, fast=False
    )
    assert fast[0] < plain[0]
    assert fast[1] < plain[1]
    assert flow_block_size(100, n_channels, 144_000, fast=True) == 100
