"""Attention: PyTorch's, with a backward pass that is asked to be the same each time."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework import ops
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.ops import attend
from powerphase.models.framework.training import Trainer
from tests.models.toys import CPU, Shelf, Toy, wavy_training

DEFAULT, ERROR = 0, 2
"""How torch calls them by number; 1 is a warning."""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    torch.set_deterministic_debug_mode("default")


def inputs(n: int = 40) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_of_pytorch(causal: bool) -> None:
    given = inputs()
    found = attend(*given, causal=causal)
    wanted = F.scaled_dot_product_attention(*given, is_causal=causal)
    torch.testing.assert_close(found, wanted)
    slopes, expected = (torch.autograd.grad(one.sin().sum(), given) for one in (found, wanted))
    for one, other in zip(slopes, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_mask_and_dropout_are_handed_on() -> None:
    given, mask = inputs(), torch.ones(40, 40, dtype=torch.bool).tril()
    torch.testing.assert_close(attend(*given, mask), attend(*given, causal=True))
    torch.manual_seed(1)
    found = attend(*given, dropout=0.5)
    torch.manual_seed(1)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*given, dropout_p=0.5))


@pytest.mark.parametrize("before", [DEFAULT, 1, ERROR])
def test_its_step_of_the_backward_pass_alone_is_in_the_deterministic_mode(
    before: int,
) -> None:
    query, key, value = inputs()
    first = query * 2
    found = attend(first, key, value)
    assert found.grad_fn is not None
    seen: dict[str, int] = {}

    def see(name: str) -> Callable[..., None]:
        return lambda *_: seen.update({name: torch.get_deterministic_debug_mode()})

    last = found.sin()
    for name, node in (("after", last.grad_fn), ("before", first.grad_fn)):
        node.register_prehook(see(name))  # type: ignore[union-attr]
    found.grad_fn.register_prehook(see("within"))
    torch.set_deterministic_debug_mode(before)
    last.sum().backward()
    assert seen == {"after": before, "within": ERROR, "before": before}
    assert torch.get_deterministic_debug_mode() == before


def test_plain_products_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In that mode a GPU asks of them for a setting of the environment."""
    monkeypatch.setattr(ops, "DETERMINISTIC_BACKENDS", [torch.nn.attention.SDPBackend.MATH])
    seen = []
    query, key, value = inputs()
    found = attend(query, key, value)
    nodes, names = [found.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in names:
            names.add(node)
            node.register_prehook(lambda *_: seen.append(torch.get_deterministic_debug_mode()))
            nodes.extend(one for one, _ in node.next_functions)
    found.sum().backward()
    assert len(seen) > 5
    assert set(seen) == {DEFAULT}


def test_without_gradients_nothing_is_switched() -> None:
    with torch.no_grad():
        assert not attend(*inputs()).requires_grad


class Broken(Toy):
    """A network whose backward pass breaks in the midst of attention."""

    def forward(self, context: object, target: object) -> object:
        torch.set_deterministic_debug_mode("error")
        raise ValueError("broken")


def test_a_training_that_breaks_within_it_leaves_the_mode_as_it_was() -> None:
    config = TrainingConfig(epochs=1, batches_per_epoch=1, batch_size=4)
    with pytest.raises(ValueError, match="broken"):
        Trainer(Broken(), wavy_training(), config, 42, CPU, Shelf()).run()
    assert torch.get_deterministic_debug_mode() == DEFAULT
