"""Blocks of channels: the same sums and slopes, and nothing kept in between."""

from typing import Any

import pytest
import torch
from torch import Tensor

from powerphase.models.recurrent.blocks import (
    BLOCK_NUMBERS,
    channel_slices,
    channels_at_once,
    map_checkpointed,
    sum_blocks,
)

VALUES = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def of_block(here: slice, shared: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """Something that is linear in nothing."""
    known = torch.ones(5, 3, dtype=torch.float64) if shared is None else shared
    made = torch.tanh(known @ weight.mT + bias.squeeze(1)) * VALUES[:, here]
    return made.exp().sum(1)


def given() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True)
            for size in ((5, 3), (12, 3), (12, 1))]  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 5, 11, 12, 99])
@pytest.mark.parametrize("is_shared", [True, False])
def test_sums_and_slopes_are_those_of_all_channels(at_once: int, is_shared: bool) -> None:
    shared, *weights = given()
    known = shared if is_shared else None
    inputs = [shared, *weights] if is_shared else weights
    found, expected = sum_blocks(of_block, at_once, known, *weights), of_block(
        slice(12), known, *weights
    )  # fmt: skip
    torch.testing.assert_close(found, expected)
    direction = torch.arange(5, dtype=torch.float64)
    slopes, wanted = (torch.autograd.grad(one, inputs, direction) for one in (found, expected))
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other)


def kept(at_once: int) -> int:
    """Numbers that are saved for the backward pass."""
    count = 0

    def pack(tensor: Tensor) -> Any:
        nonlocal count
        count += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        sum_blocks(of_block, at_once, *given())
    return count


def test_of_blocks_nothing_is_kept_but_what_was_given() -> None:
    assert kept(4) == kept(1) == sum(one.numel() for one in given())
    assert kept(12) > 3 * 5 * 12


def several(weight: Tensor, pieces: list[slice], calls: list[slice]) -> Tensor:
    """By pieces with two results each, of a weight that is no argument."""

    def of_piece(here: slice) -> tuple[Tensor, Tensor]:
        calls.append(here)
        made = torch.tanh(weight[here])
        return made.exp(), made.square().sum()

    found = list(map_checkpointed(of_piece, [(here,) for here in pieces]))
    return torch.cat([first for first, _ in found]).prod() + sum(second for _, second in found)


def test_several_results_of_pieces_have_the_slopes_of_one_and_are_made_again() -> None:
    (_, weight, _), calls = given(), []
    whole = several(weight, [slice(12)], calls)
    (expected,) = torch.autograd.grad(whole, weight)
    assert len(calls) == 1
    found = several(weight, channel_slices(12, 5), calls)
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(torch.autograd.grad(found, weight)[0], expected)
    assert len(calls) == 1 + 2 * 3


def test_nothing_is_made_again_where_no_slope_is_asked_for() -> None:
    with torch.no_grad():
        assert not sum_blocks(of_block, 4, *given()).requires_grad


def test_a_block_has_as_many_channels_as_asked_for_or_as_keep_it_small() -> None:
    assert channels_at_once(7, 100, 10**9) == 7
    assert channels_at_once(700, 100, 1) == 100
    assert channels_at_once(None, 100, BLOCK_NUMBERS // 9) == 9
    assert channels_at_once(None, 100, 10**9) == 1
    assert channel_slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
