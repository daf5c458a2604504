"""The encoder's kernels against their twins in PyTorch, and these against layers one by one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.encoder import ChannelEncoder
from powerphase.models.powerforge.kernels import encoder_output as settling
from powerphase.models.powerforge.kernels.encoder_output import settled
from powerphase.models.powerforge.kernels.gating import gated
from tests.models.powerforge import TINY

pytest.importorskip("triton", reason="kernels need Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON, DROPOUT = 1e-5, 0.3
BOTH = (True, False)
"""By the kernel, and by its twin."""

SIZES = {
    "as it is": (2, 5, 5, 8, 4),
    "two blocks of buses, one of them room for more": (3, 18, 40, 8, 4),
    "odd layers": (2, 3, 4, 11, 3),
    "little of everything": (1, 1, 1, 3, 1),
}
"""Windows, buses, room for buses, hidden and inner numbers."""

sizes = pytest.mark.parametrize(
    ("n_windows", "n_buses", "width", "hidden", "n_inner"), SIZES.values(), ids=SIZES
)


def draw(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, dtype=dtype).to(DEVICE).requires_grad_()


def to_open(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int, **kind: Any
) -> list[Tensor]:
    torch.manual_seed(0)
    seen, size = draw(n_windows, 4, width, hidden, **kind), draw(n_windows, 4, n_buses, **kind)
    layers = [draw(2, 2, **kind), draw(hidden, **kind)]
    return [seen, size, *layers, draw(n_inner, 1, **kind), draw(n_inner, **kind)]


def to_settle(n_windows: int, n_buses: int, hidden: int, **kind: Any) -> list[Tensor]:
    torch.manual_seed(0)
    refined, added = draw(n_windows, 4, n_buses, hidden, **kind), draw(4, n_buses, hidden, **kind)
    layers = [draw(hidden, **kind) for _ in range(3)]
    return [refined, *layers, added, draw(n_windows, hidden, **kind)]


def with_slopes(made: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The result, and the gradients of a sum in which each of its numbers counts differently."""
    torch.manual_seed(1)
    worth = torch.randn(made.shape, dtype=torch.float64).to(made)
    return [made, *torch.autograd.grad((made * worth).sum(), inputs)]


def assert_same(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-12) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        atol = tolerance * other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=atol)


@sizes
def test_opening_by_the_kernel_is_that_by_its_twin(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int
) -> None:
    inputs = to_open(n_windows, n_buses, width, hidden, n_inner)
    assert_same(*(with_slopes(gated(*inputs, fast), inputs) for fast in BOTH))


@pytest.mark.parametrize("fast", BOTH)
def test_rows_beyond_the_last_bus_do_not_count(fast: bool) -> None:
    inputs = to_open(2, 5, 8, 8, 4)
    seen, *others = inputs
    made, of_seen, *_ = with_slopes(gated(*inputs, fast), inputs)
    assert made.shape == (2, 4, 5, 12)
    assert of_seen[:, :, :5].all()
    assert not of_seen[:, :, 5:].any()
    assert torch.equal(gated(seen[:, :, :5], *others, fast), made)


def test_the_gates_show_voltages_and_angles_their_own_bus() -> None:
    seen, size, gates, bias, inner, inner_bias = to_open(2, 5, 8, 8, 4)
    layer = nn.Linear(1, 4).to(size)
    layer.weight.data, layer.bias.data = inner.data, inner_bias.data
    found = gated(seen, size, gates, bias, inner, inner_bias, False)
    for window in range(2):
        for bus in range(5):
            kinds = seen[window, :, bus].clone()
            kinds[V] += gates[0, 0] * kinds[P] + gates[0, 1] * kinds[Q]
            kinds[THETA] += gates[1, 0] * kinds[P] + gates[1, 1] * kinds[Q]
            for kind, state in enumerate(kinds):
                wanted = torch.cat([state + bias, layer(size[window, kind, bus, None])])
                torch.testing.assert_close(found[window, kind, bus], F.gelu(wanted))


@sizes
def test_settling_by_the_kernel_is_that_by_its_twin(
    n_windows: int, n_buses: int, width: int, hidden: int, n_inner: int
) -> None:
    inputs = to_settle(n_windows, n_buses, hidden)
    assert_same(*(with_slopes(settled(*inputs, EPSILON, 0.0, fast), inputs) for fast in BOTH))


@pytest.mark.parametrize("per_chunk", [1, 2, 4])
def test_windows_in_chunks_add_up_to_the_same(
    monkeypatch: pytest.MonkeyPatch, per_chunk: int
) -> None:
    monkeypatch.setattr(settling, "_windows_per_chunk", lambda *_: per_chunk)
    inputs = to_settle(4, 5, 8)
    assert_same(*(with_slopes(settled(*inputs, EPSILON, 0.0, fast), inputs) for fast in BOTH))


@pytest.mark.parametrize(
    ("n_windows", "n_programs", "wanted"),
    [(32, 128, 8), (8, 2312, 8), (32, 10_000, 32), (1, 7, 1), (7, 4, 1)],
)
def test_chunks_are_whole_and_keep_the_device_busy(
    n_windows: int, n_programs: int, wanted: int
) -> None:
    assert settling._windows_per_chunk(n_windows, n_programs) == wanted


def dropped(inputs: list[Tensor], fast: bool, seed: int = 7) -> Tensor:
    torch.manual_seed(seed)
    return settled(*inputs, EPSILON, DROPOUT, fast)


def kept(n_windows: int, n_buses: int, hidden: int, seed: int = 7) -> Tensor:
    """What is 1 before dropout, after it."""
    refined, bias, norm, *_ = to_settle(n_windows, n_buses, hidden)
    ones, zeros = torch.ones_like(norm), torch.zeros_like
    added = (zeros(refined[0]), zeros(refined[:, 0, 0]))
    return dropped([refined, bias, zeros(norm), ones, *added], True, seed).detach()


def test_the_kernel_keeps_its_share_and_makes_up_for_the_rest() -> None:
    mask = kept(3, 37, 8)
    share = (mask > 0).double().mean().item()
    assert share == pytest.approx(1 - DROPOUT, abs=4 * (0.21 / mask.numel()) ** 0.5)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - DROPOUT)])
    for axis in range(4):  # no part is like the next one
        one, next_one = mask.narrow(axis, 0, 1), mask.narrow(axis, 1, 1)
        assert 0.2 < (one != next_one).double().mean() < 0.65


def test_the_seed_says_what_is_dropped() -> None:
    assert torch.equal(kept(2, 5, 8), kept(2, 5, 8))
    assert not torch.equal(kept(2, 5, 8), kept(2, 5, 8, seed=8))


def test_forward_and_backward_drop_the_same() -> None:
    inputs = to_settle(2, 5, 8)
    refined, bias, norm, norm_bias, identity, calendar = inputs
    found = with_slopes(dropped(inputs, True), inputs)
    state = F.layer_norm(refined + bias, norm.shape, norm, norm_bias, EPSILON) * kept(2, 5, 8)
    state = state + identity + calendar[:, None, None]
    assert_same(found, with_slopes(state, inputs))


def test_the_twin_drops_what_pytorch_drops() -> None:
    inputs = to_settle(2, 5, 8)
    refined, bias, norm, norm_bias, identity, calendar = inputs
    found = dropped(inputs, False)
    torch.manual_seed(7)
    state = F.dropout(F.layer_norm(refined + bias, norm.shape, norm, norm_bias, EPSILON), DROPOUT)
    assert torch.equal(found, state + identity + calendar[:, None, None])


def test_single_precision_differs_by_its_rounding_alone() -> None:
    inputs = to_open(2, 18, 20, 8, 4, dtype=torch.float32)
    assert_same(*(with_slopes(gated(*inputs, fast), inputs) for fast in BOTH), 3e-6)
    inputs = to_settle(2, 18, 8, dtype=torch.float32)
    fast, plain = (with_slopes(settled(*inputs, EPSILON, 0.0, fast), inputs) for fast in BOTH)
    assert_same(fast, plain, 3e-6)


def test_half_precision_comes_and_goes_with_products_alone() -> None:
    inputs = to_open(2, 5, 8, 8, 4, dtype=torch.float32)
    inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    fast, plain = (with_slopes(gated(*inputs, fast), inputs) for fast in BOTH)
    assert fast[0].dtype == torch.bfloat16
    assert_same(fast, plain, 2e-2)
    inputs = to_settle(2, 5, 8, dtype=torch.float32)
    inputs[0] = inputs[0].detach().bfloat16().requires_grad_()
    fast, plain = (with_slopes(settled(*inputs, EPSILON, 0.0, fast), inputs) for fast in BOTH)
    assert fast[0].dtype == torch.float32
    assert_same(fast, plain, 2e-2)


@pytest.mark.parametrize("fast", BOTH)
def test_an_encoder_in_half_precision_gives_states_and_gradients_in_single(fast: bool) -> None:
    torch.manual_seed(3)
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE)
    kind = {"dtype": torch.float32}
    inputs = [draw(2, 4, 36, 8, **kind), draw(2, 4, 5, **kind), draw(2, 4, **kind)]
    exact = with_slopes(encoder(*inputs), [*inputs, *encoder.parameters()])
    with torch.autocast(DEVICE.type, torch.bfloat16):
        state = encoder(*inputs, fast)
    for found, wanted in zip(
        with_slopes(state, [*inputs, *encoder.parameters()]), exact, strict=True
    ):
        assert found.dtype == torch.float32
        assert (found - wanted).norm() < 0.05 * wanted.norm()


class LayerByLayer(ChannelEncoder):
    """The encoder as it reads on paper."""

    def forward(self, residual: Tensor, size: Tensor, calendar: Tensor) -> Tensor:
        weight, bias = self.folded()
        seen = F.linear(residual.mT[:, :, : size.shape[2]], weight)
        p, q, v, theta = seen.unbind(1)
        (p_to_v, q_to_v), (p_to_theta, q_to_theta) = self.gates
        v, theta = v + p_to_v * p + q_to_v * q, theta + p_to_theta * p + q_to_theta * q
        seen = torch.stack([p, q, v, theta], dim=1) + bias
        state = self.refine(F.gelu(seen)) + self.scale(size.unsqueeze(3))
        state = self.dropout(self.norm(state)) + self._identity()
        return state + self.calendar(calendar)[:, None, None]


@pytest.mark.parametrize("fast", BOTH)
@pytest.mark.parametrize("is_training", [True, False])
def test_an_encoder_of_two_passes_is_the_encoder_layer_by_layer(
    fast: bool, is_training: bool
) -> None:
    torch.manual_seed(3)
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE).double().train(is_training)
    encoder.gates.data.normal_()
    on_paper = LayerByLayer(TINY, 5, 36).to(DEVICE).double().train(is_training)
    on_paper.load_state_dict(encoder.state_dict())
    inputs = [draw(2, 4, 36, 8), draw(2, 4, 5), draw(2, 4)]
    found = with_slopes(encoder(*inputs, fast), [*inputs, *encoder.parameters()])
    assert_same(found, with_slopes(on_paper(*inputs), [*inputs, *on_paper.parameters()]))


@pytest.mark.parametrize("fast", BOTH)
def test_an_encoder_drops_nothing_outside_training(fast: bool) -> None:
    encoder = ChannelEncoder(TINY, 5, 36).to(DEVICE).double()
    encoder.dropout.p = DROPOUT
    inputs = [draw(2, 4, 36, 8), draw(2, 4, 5), draw(2, 4)]
    once, twice = (encoder.train()(*inputs, fast) for _ in range(2))
    assert not torch.equal(once, twice)
    once, twice = (encoder.eval()(*inputs, fast) for _ in range(2))
    assert torch.equal(once, twice)
