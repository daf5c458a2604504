"""Shared operations: attention with a repeatable backward pass, exact products, multiple choice."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework import (
    Losses,
    Trainer,
    TrainingConfig,
    annealing_temperature,
    attend,
    choice_weights,
    exact_matmul,
    ops,
)
from powerphase.models.timemcl import TimeMCLConfig, cross_entropy
from powerphase.scenarios import Context
from tests.models.recurrent.toys import budget
from tests.models.toys import CPU, Shelf, Toy, wavy_training

DEFAULT, ERROR = 0, 2
"""Numbers of torch's debug modes; 1 is a warning."""


@pytest.fixture(autouse=True)
def restore_mode() -> Iterator[None]:
    yield
    torch.set_deterministic_debug_mode("default")


def inputs(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    return query, key, value


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_values_and_gradients_of_pytorch(causal: bool) -> None:
    tensors = inputs()
    result = attend(*tensors, causal=causal)
    reference = F.scaled_dot_product_attention(*tensors, is_causal=causal)
    torch.testing.assert_close(result, reference)
    gradients, expected = (
        torch.autograd.grad(tensor.sin().sum(), tensors) for tensor in (result, reference)
    )
    for tensor, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(tensor, other)


def test_attention_applies_mask_and_dropout() -> None:
    tensors, mask = inputs(), torch.ones(40, 40, dtype=torch.bool).tril()
    torch.testing.assert_close(attend(*tensors, mask), attend(*tensors, causal=True))
    torch.manual_seed(1)
    result = attend(*tensors, dropout=0.5)
    torch.manual_seed(1)
    torch.testing.assert_close(result, F.scaled_dot_product_attention(*tensors, dropout_p=0.5))


@pytest.mark.parametrize("before", [DEFAULT, 1, ERROR])
def test_only_the_backward_node_of_attention_runs_in_deterministic_mode(
    before: int,
) -> None:
    query, key, value = inputs()
    first = query * 2
    result = attend(first, key, value)
    assert result.grad_fn is not None
    seen: dict[str, int] = {}

    def note_mode(name: str) -> Callable[..., None]:
        return lambda *_: seen.update({name: torch.get_deterministic_debug_mode()})

    last = result.sin()
    for name, node in (("after", last.grad_fn), ("before", first.grad_fn)):
        node.register_prehook(note_mode(name))  # type: ignore[union-attr]
    result.grad_fn.register_prehook(note_mode("within"))
    torch.set_deterministic_debug_mode(before)
    last.sum().backward()
    assert seen == {"after": before, "within": ERROR, "before": before}
    assert torch.get_deterministic_debug_mode() == before


def test_the_math_backend_runs_without_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """In that mode, products on a GPU need an environment variable."""
    monkeypatch.setattr(ops, "DETERMINISTIC_BACKENDS", [torch.nn.attention.SDPBackend.MATH])
    seen: list[int] = []
    query, key, value = inputs()
    result = attend(query, key, value)
    nodes, visited = [result.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visited:
            visited.add(node)
            node.register_prehook(lambda *_: seen.append(torch.get_deterministic_debug_mode()))
            nodes.extend(following for following, _ in node.next_functions)
    result.sum().backward()
    assert len(seen) > 5
    assert set(seen) == {DEFAULT}


def test_attention_without_gradients_registers_no_hook() -> None:
    with torch.no_grad():
        assert not attend(*inputs()).requires_grad


class Broken(Toy):
    """A network that fails while the deterministic mode is on."""

    def forward(self, context: Context, target: Tensor) -> Losses:
        torch.set_deterministic_debug_mode("error")
        raise ValueError("broken")


def test_a_training_that_fails_in_deterministic_mode_restores_the_mode() -> None:
    config = TrainingConfig(epochs=1, batches_per_epoch=1, batch_size=4)
    with pytest.raises(ValueError, match="broken"):
        Trainer(Broken(), wavy_training(), config, 42, CPU, Shelf()).run()
    assert torch.get_deterministic_debug_mode() == DEFAULT


def test_matmul_is_exact_only_within_exact_matmul() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            ones = torch.ones(2, 2)
            with exact_matmul():
                assert torch.get_float32_matmul_precision() == "highest"
                assert (ones @ ones).dtype == torch.float32
            assert (ones @ ones).dtype == torch.bfloat16
        with pytest.raises(ZeroDivisionError), exact_matmul():
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


ERRORS = torch.tensor([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]], dtype=torch.float64)


def steps(number: int) -> torch.Tensor:
    return torch.tensor(number)


def weights_of(errors: torch.Tensor, after: int, config: TimeMCLConfig) -> torch.Tensor:
    winner = errors.argmin(1, keepdim=True)
    return choice_weights(errors, winner, annealing_temperature(steps(after), config), config)


def test_the_winner_gets_all_but_the_slack() -> None:
    result = weights_of(ERRORS, 0, TimeMCLConfig(slack=0.2))
    expected = torch.tensor([[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(result, expected)


def test_the_winner_gets_everything_with_the_plain_objective() -> None:
    result = weights_of(ERRORS, 0, TimeMCLConfig(objective="plain"))
    assert result.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_annealing_ends_with_the_winner_getting_everything() -> None:
    """As the reference intended but did not do; 5e-4 is passed after epoch 193."""
    config = TimeMCLConfig(objective="annealed", training=budget(batches_per_epoch=30))
    first = weights_of(ERRORS, 29, config)
    torch.testing.assert_close(first, torch.softmax(-ERRORS / 10, dim=1))
    second = weights_of(ERRORS, 30, config)
    torch.testing.assert_close(second, torch.softmax(-ERRORS / 9.5, dim=1))
    almost_equal = torch.tensor([[1.0, 1.00001]], dtype=torch.float64)
    before, after = (weights_of(almost_equal, 30 * epoch, config) for epoch in (193, 194))
    assert 0.4 < before[0, 1] < 0.6
    assert after.tolist() == [[1, 0]]


def test_the_temperature_is_computed_on_the_device() -> None:
    result = annealing_temperature(
        steps(7), TimeMCLConfig(cooling=0.5, training=budget(batches_per_epoch=3))
    )
    assert float(result) == pytest.approx(2.5)


def test_no_gradient_goes_through_the_weights_of_a_choice() -> None:
    errors = ERRORS.clone().requires_grad_()
    for objective in ("relaxed", "annealed", "plain"):
        assert not weights_of(errors, 0, TimeMCLConfig(objective=objective)).requires_grad


def test_cross_entropy_equals_pytorch_s_unless_a_probability_is_certain() -> None:
    likely = torch.tensor([[0.2, 0.9], [1e-9, 0.5]], dtype=torch.float64, requires_grad=True)
    won = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    result, expected = cross_entropy(likely, won), F.binary_cross_entropy(likely, won)
    torch.testing.assert_close(result, expected)
    gradient, reference = (torch.autograd.grad(loss, likely)[0] for loss in (result, expected))
    torch.testing.assert_close(gradient, reference)


def test_cross_entropy_of_certain_probabilities_has_finite_gradients() -> None:
    likely = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.3]], requires_grad=True)
    won = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    result = cross_entropy(likely, won)
    (gradient,) = torch.autograd.grad(result, likely)
    assert result.isfinite()
    assert gradient[0, :4].tolist() == [0, 0, 0, 0]
    assert gradient[0, 4] > 0


def test_cross_entropy_propagates_nan() -> None:
    assert cross_entropy(torch.tensor([[torch.nan]]), torch.ones(1, 1)).isnan()
