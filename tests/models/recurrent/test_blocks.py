"""Blocks of channels: the same sums and gradients, and nothing kept in between."""

from typing import Any

import pytest
import torch
from torch import Tensor

from powerphase.models.recurrent import (
    BLOCK_NUMBERS,
    channel_slices,
    channels_at_once,
    map_checkpointed,
    sum_blocks,
)

VALUES = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def of_block(channels: slice, shared: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """A function that is not linear in any input."""
    known = torch.ones(5, 3, dtype=torch.float64) if shared is None else shared
    values = torch.tanh(known @ weight.mT + bias.squeeze(1)) * VALUES[:, channels]
    return values.exp().sum(1)


def example_inputs() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True)
            for size in ((5, 3), (12, 3), (12, 1))]  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 5, 11, 12, 99])
@pytest.mark.parametrize("is_shared", [True, False])
def test_sums_and_gradients_equal_those_of_all_channels_at_once(
    at_once: int, is_shared: bool
) -> None:
    shared, *weights = example_inputs()
    known = shared if is_shared else None
    inputs = [shared, *weights] if is_shared else weights
    result, expected = sum_blocks(of_block, at_once, known, *weights), of_block(
        slice(12), known, *weights
    )  # fmt: skip
    torch.testing.assert_close(result, expected)
    direction = torch.arange(5, dtype=torch.float64)
    gradients, reference = (
        torch.autograd.grad(tensor, inputs, direction) for tensor in (result, expected)
    )
    for tensor, other in zip(gradients, reference, strict=True):
        torch.testing.assert_close(tensor, other)


def kept(at_once: int) -> int:
    """Numbers that are saved for the backward pass."""
    count = 0

    def pack(tensor: Tensor) -> Any:
        nonlocal count
        count += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        sum_blocks(of_block, at_once, *example_inputs())
    return count


def test_blocks_keep_only_their_inputs_for_the_backward_pass() -> None:
    assert kept(4) == kept(1) == sum(tensor.numel() for tensor in example_inputs())
    assert kept(12) > 3 * 5 * 12


def several(weight: Tensor, pieces: list[slice], calls: list[slice]) -> Tensor:
    """Pieces with two results each, of a weight that is not an argument."""

    def of_piece(rows: slice) -> tuple[Tensor, Tensor]:
        calls.append(rows)
        values = torch.tanh(weight[rows])
        return values.exp(), values.square().sum()

    result = list(map_checkpointed(of_piece, [(rows,) for rows in pieces]))
    return torch.cat([first for first, _ in result]).prod() + sum(second for _, second in result)


def test_checkpointed_pieces_have_the_same_gradients_and_are_recomputed() -> None:
    _, weight, _ = example_inputs()
    calls: list[slice] = []
    whole = several(weight, [slice(12)], calls)
    (expected,) = torch.autograd.grad(whole, weight)
    assert len(calls) == 1
    result = several(weight, channel_slices(12, 5), calls)
    torch.testing.assert_close(result, whole)
    torch.testing.assert_close(torch.autograd.grad(result, weight)[0], expected)
    assert len(calls) == 1 + 2 * 3


def test_without_gradients_nothing_is_recomputed() -> None:
    with torch.no_grad():
        assert not sum_blocks(of_block, 4, *example_inputs()).requires_grad


def test_a_block_has_the_set_number_of_channels_or_stays_small() -> None:
    assert channels_at_once(7, 100, 10**9) == 7
    assert channels_at_once(700, 100, 1) == 100
    assert channels_at_once(None, 100, BLOCK_NUMBERS // 9) == 9
    assert channels_at_once(None, 100, 10**9) == 1
    assert channel_slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
