"""The encoder's kernels against plain PyTorch, and that against single layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge import ChannelEncoder
from powerphase.models.powerforge.kernels import encoder_output, gated_features, normalise_and_embed
from tests.models.powerforge import TINY

pytest.importorskip("triton", reason="kernels need Triton")

GATE: Any = gated_features
NORMALISE: Any = normalise_and_embed
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON, DROPOUT = 1e-5, 0.3
FAST = (True, False)
"""With the kernel, and in plain PyTorch."""

SIZES = {
    "no padding": (2, 5, 5, 8, 4),
    "two blocks of buses, with padding": (3, 18, 40, 8, 4),
    "odd layers": (2, 3, 4, 11, 3),
    "the smallest sizes": (1, 1, 1, 3, 1),
}
"""Windows, buses, padded buses, hidden and inner widths."""

sizes = pytest.mark.parametrize(
    ("n_windows", "n_buses", "width", "hidden", "n_inner"), SIZES.values(), ids=SIZES
)


def draw(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, dtype=dtype).to(DEVICE).requires_grad_()


def gating_inputs(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int, **options: Any
) -> Any:
    torch.manual_seed(0)
    projected, size = (
        draw(n_windows, 4, width, hidden, **options),
        draw(n_windows, 4, n_buses, **options),
    )
    layers = [draw(2, 2, **options), draw(hidden, **options)]
    return [projected, size, *layers, draw(n_inner, 1, **options), draw(n_inner, **options)]


def output_inputs(n_windows: int, n_buses: int, hidden: int, **options: Any) -> Any:
    torch.manual_seed(0)
    refined, embedding = (
        draw(n_windows, 4, n_buses, hidden, **options),
        draw(4, n_buses, hidden, **options),
    )
    layers = [draw(hidden, **options) for _ in range(3)]
    return [refined, *layers, embedding, draw(n_windows, hidden, **options)]


def with_gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of its sum with random weights."""
    torch.manual_seed(1)
    weight = torch.randn(output.shape, dtype=torch.float64).to(output)
    return [output, *torch.autograd.grad((output * weight).sum(), inputs)]


def assert_same(outputs: list[Tensor], expected: list[Tensor], tolerance: float = 1e-12) -> None:
    for ours, theirs in zip(outputs, expected, strict=True):
        assert ours.dtype == theirs.dtype
        atol = tolerance * theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=atol)


def assert_kernel_agrees(
    function: Callable[[bool], Tensor], inputs: list[Tensor], tolerance: float = 1e-12
) -> None:
    kernel, plain = (with_gradients(function(fast), inputs) for fast in FAST)
    assert_same(kernel, plain, tolerance)


@sizes
def test_the_gating_kernel_equals_plain_pytorch(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int
) -> None:
    inputs = gating_inputs(n_windows, n_buses, width, hidden, n_inner)
    assert_kernel_agrees(lambda fast: GATE(*inputs, fast=fast), inputs)


@pytest.mark.parametrize("fast", FAST)
def test_padding_has_no_effect(fast: bool) -> None:
    inputs = gating_inputs(2, 5, 8, 8, 4)
    projected, *others = inputs
    output, grad_projected, *_ = with_gradients(GATE(*inputs, fast=fast), inputs)
    assert output.shape == (2, 4, 5, 12)
    assert grad_projected[:, :, :5].all()
    assert not grad_projected[:, :, 5:].any()
    assert torch.equal(GATE(projected[:, :, :5], *others, fast=fast), output)


def test_the_gates_add_power_to_voltage_and_angle_of_the_same_bus() -> None:
    projected, size, gates, bias, inner, inner_bias = gating_inputs(2, 5, 8, 8, 4)
    layer = nn.Linear(1, 4).to(size)
    layer.weight.data, layer.bias.data = inner.data, inner_bias.data
    outputs = GATE(projected, size, gates, bias, inner, inner_bias, False)
    for window in range(2):
        for bus in range(5):
            kinds = projected[window, :, bus].clone()
            kinds[V] += gates[0, 0] * kinds[P] + gates[0, 1] * kinds[Q]
            kinds[THETA] += gates[1, 0] * kinds[P] + gates[1, 1] * kinds[Q]
            for options, state in enumerate(kinds):
                expected = torch.cat([state + bias, layer(size[window, options, bus, None])])
                torch.testing.assert_close(outputs[window, options, bus], F.gelu(expected))


@sizes
def test_the_output_kernel_equals_plain_pytorch(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int
) -> None:
    inputs = output_inputs(n_windows, n_buses, hidden)
    assert_kernel_agrees(
        lambda fast: NORMALISE(*inputs, epsilon=EPSILON, dropout=0.0, fast=fast), inputs
    )


@pytest.mark.parametrize("per_chunk", [1, 2, 4])
def test_chunks_of_windows_give_the_same_sums(
    monkeypatch: pytest.MonkeyPatch, per_chunk: int
) -> None:
    monkeypatch.setattr(encoder_output, "_windows_per_chunk", lambda *_: per_chunk)
    inputs = output_inputs(4, 5, 8)
    assert_kernel_agrees(
        lambda fast: NORMALISE(*inputs, epsilon=EPSILON, dropout=0.0, fast=fast), inputs
    )


@pytest.mark.parametrize(
    ("n_windows", "n_programs", "expected"),
    [(32, 128, 8), (8, 2312, 8), (32, 10_000, 32), (1, 7, 1), (7, 4, 1)],
)
def test_chunks_divide_the_windows_and_keep_the_device_busy(
    n_windows: int, n_programs: int, expected: int
) -> None:
    assert encoder_output._windows_per_chunk(n_windows, n_programs) == expected


def with_dropout(inputs: Any, fast: bool, seed: int = 7) -> Tensor:
    torch.manual_seed(seed)
    return NORMALISE(*inputs, epsilon=EPSILON, dropout=DROPOUT, fast=fast)


def dropout_mask(n_windows: int, n_buses: int, hidden: int, seed: int = 7) -> Tensor:
    """Dropout of a tensor of ones."""
    refined, bias, norm, *_ = output_inputs(n_windows, n_buses, hidden)
    ones, zeros = torch.ones_like(norm), torch.zeros_like
    embedding = (zeros(refined[0]), zeros(refined[:, 0, 0]))
    return with_dropout([refined, bias, zeros(norm), ones, *embedding], True, seed).detach()


def test_the_kernels_dropout_has_the_right_rate_and_scale() -> None:
    mask = dropout_mask(3, 37, 8)
    share = (mask > 0).double().mean().item()
    assert share == pytest.approx(1 - DROPOUT, abs=4 * (0.21 / mask.numel()) ** 0.5)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - DROPOUT)])
    for axis in range(4):  # neighbouring slices differ
        first, second = mask.narrow(axis, 0, 1), mask.narrow(axis, 1, 1)
        assert 0.2 < (first != second).double().mean() < 0.65


def test_the_seed_determines_dropout() -> None:
    assert torch.equal(dropout_mask(2, 5, 8), dropout_mask(2, 5, 8))
    assert not torch.equal(dropout_mask(2, 5, 8), dropout_mask(2, 5, 8, seed=8))


def test_forward_and_backward_use_the_same_dropout() -> None:
    inputs = output_inputs(2, 5, 8)
    refined, bias, norm, norm_bias, identity, calendar = inputs
    outputs = with_gradients(with_dropout(inputs, True), inputs)
    state = F.layer_norm(refined + bias, norm.shape, norm, norm_bias, EPSILON) * dropout_mask(
        2, 5, 8
    )
    state = state + identity + calendar[:, None, None]
    assert_same(outputs, with_gradients(state, inputs))


def test_the_plain_form_uses_pytorchs_dropout() -> None:
    inputs = output_inputs(2, 5, 8)
    refined, bias, norm, norm_bias, identity, calendar = inputs
    outputs = with_dropout(inputs, False)
    torch.manual_seed(7)
    state = F.dropout(F.layer_norm(refined + bias, norm.shape, norm, norm_bias, EPSILON), DROPOUT)
    assert torch.equal(outputs, state + identity + calendar[:, None, None])


def test_single_precision_differs_only_by_rounding() -> None:
    inputs = gating_inputs(2, 18, 20, 8, 4, dtype=torch.float32)
    assert_kernel_agrees(lambda fast: GATE(*inputs, fast=fast), inputs, 3e-6)
    inputs = output_inputs(2, 18, 8, dtype=torch.float32)
    fast, plain = (
        with_gradients(NORMALISE(*inputs, epsilon=EPSILON, dropout=0.0, fast=fast), inputs)
        for fast in FAST
    )
    assert_same(fast, plain, 3e-6)


def test_half_precision_inputs_and_outputs() -> None:
    inputs = gating_inputs(2, 5, 8, 8, 4, dtype=torch.float32)
    inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    fast, plain = (with_gradients(GATE(*inputs, fast=fast), inputs) for fast in FAST)
    assert fast[0].dtype == torch.bfloat16
    assert_same(fast, plain, 2e-2)
    inputs = output_inputs(2, 5, 8, dtype=torch.float32)
    inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    fast, plain = (
        with_gradients(NORMALISE(*inputs, epsilon=EPSILON, dropout=0.0, fast=fast), inputs)
        for fast in FAST
    )
    assert fast[0].dtype == torch.float32
    assert_same(fast, plain, 2e-2)


@pytest.mark.parametrize("fast", FAST)
def test_an_encoder_in_half_precision_returns_single_precision(fast: bool) -> None:
    torch.manual_seed(3)
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE)
    options = {"dtype": torch.float32}
    inputs = [draw(2, 4, 36, 8, **options), draw(2, 4, 5, **options), draw(2, 4, **options)]
    exact = with_gradients(encoder(*inputs), [*inputs, *encoder.parameters()])
    with torch.autocast(DEVICE.type, torch.bfloat16):
        state = encoder(*inputs, fast)
    for outputs, expected in zip(
        with_gradients(state, [*inputs, *encoder.parameters()]), exact, strict=True
    ):
        assert outputs.dtype == torch.float32
        assert (outputs - expected).norm() < 0.05 * expected.norm()


class LayerByLayer(ChannelEncoder):
    """The encoder as the paper describes it."""

    def forward(
        self, residual: Tensor, size: Tensor, calendar: Tensor, fast: bool = False
    ) -> Tensor:
        weight, bias = self.linear_map()
        projected = F.linear(residual.mT[:, :, : size.shape[2]], weight)
        p, q, v, theta = projected.unbind(1)
        (p_to_v, q_to_v), (p_to_theta, q_to_theta) = self.gates
        v, theta = v + p_to_v * p + q_to_v * q, theta + p_to_theta * p + q_to_theta * q
        projected = torch.stack([p, q, v, theta], dim=1) + bias
        state = self.refine(F.gelu(projected)) + self.scale(size.unsqueeze(3))
        state = self.dropout(self.norm(state)) + self._identity()
        return state + self.calendar(calendar)[:, None, None]


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("is_training", [True, False])
def test_the_encoder_equals_its_single_layers(fast: bool, is_training: bool) -> None:
    torch.manual_seed(3)
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE).double().train(is_training)
    encoder.gates.data.normal_()
    by_layers = LayerByLayer(TINY, 5, 36).to(DEVICE).double().train(is_training)
    by_layers.load_state_dict(encoder.state_dict())
    inputs = [draw(2, 4, 36, 8), draw(2, 4, 5), draw(2, 4)]
    outputs = with_gradients(encoder(*inputs, fast), [*inputs, *encoder.parameters()])
    assert_same(outputs, with_gradients(by_layers(*inputs), [*inputs, *by_layers.parameters()]))


@pytest.mark.parametrize("fast", FAST)
def test_an_encoder_has_no_dropout_outside_training(fast: bool) -> None:
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE).double()
    encoder.dropout.p = DROPOUT
    inputs = [draw(2, 4, 36, 8), draw(2, 4, 5), draw(2, 4)]
    once, twice = (encoder.train()(*inputs, fast) for _ in range(2))
    assert not torch.equal(once, twice)
    once, twice = (encoder.eval()(*inputs, fast) for _ in range(2))
    assert torch.equal(once, twice)
