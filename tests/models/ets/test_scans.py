"""The two passes in every implementation, against the textbook, plain torch and autograd."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.ets import backward, forward, forward_plain, response, scans
from tests.models.ets import random, some_gains

SIZES = {
    "one step and channel": (1, 1, 2),
    "odd numbers": (41, 5, 4),
    "less than a season": (3, 2, 7),
    "whole seasons": (24, 3, 8),
    "more channels than lanes": (9, 67, 3),
}
every_size = pytest.mark.parametrize(("steps", "channels", "season"), SIZES.values(), ids=SIZES)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def case(steps: int, channels: int, season: int) -> tuple[Tensor, Tensor, Tensor]:
    record, states = random(steps, channels), random(2 + season, channels, seed=1)
    return record, some_gains(channels), states


def assert_close(results: Iterable[Tensor], references: Iterable[Tensor]) -> None:
    for actual, expected in zip(results, references, strict=True):
        assert actual.shape == expected.shape
        assert (actual.cpu() - expected.cpu()).abs().max() <= 1e-9 * (1 + expected.abs().max())


def test_forward_equals_the_component_form_of_textbooks() -> None:
    """Level, trend and season as weighted means of new and old values."""
    alpha, beta, gamma, season = 0.3, 0.2, 0.4, 5
    record, states = random(60, 1), random(2 + season, 1, seed=1)
    level, trend, *ring = states[:, 0].tolist()
    expected = []
    for step, value in enumerate(record[:, 0].tolist()):
        before, drift, old = level, trend, ring[step % season]
        expected.append(value - (before + drift + old))
        level = alpha * (value - old) + (1 - alpha) * (before + drift)
        trend = beta * (level - before) + (1 - beta) * drift
        ring[step % season] = gamma * (value - before - drift) + (1 - gamma) * old
    errors = torch.empty(60, 1, dtype=torch.float64)
    gains = torch.tensor([[alpha], [alpha * beta], [gamma]], dtype=torch.float64)
    final = forward(record, gains, states, errors).states
    np.testing.assert_allclose(errors[:, 0], expected, atol=1e-9)
    np.testing.assert_allclose(final[:, 0], [level, trend, *ring], atol=1e-9)


@every_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_forward_equals_plain_torch(
    steps: int, channels: int, season: int, dtype: torch.dtype
) -> None:
    record, gains, states = case(steps, channels, season)
    record = record.to(dtype)
    errors, final = forward_plain(record, gains, states)
    stored = torch.empty_like(errors)
    before = states.clone()
    assert_close(
        [*forward(record, gains, states, stored), stored], [errors.square().sum(0), final, errors]
    )
    assert_close(forward(record, gains, states), [errors.square().sum(0), final])
    assert torch.equal(states, before)


@every_size
def test_backward_equals_autograd(steps: int, channels: int, season: int) -> None:
    record, gains, states = case(steps, channels, season)
    inputs = gains.clone().requires_grad_(), states.requires_grad_()
    errors, _ = forward_plain(record, *inputs)
    half = errors.square().sum() / 2
    expected = torch.autograd.grad(half, inputs, materialize_grads=True)
    assert_close(backward(errors.detach(), gains, season), expected)


@every_size
def test_triton_kernels_give_the_same_passes(steps: int, channels: int, season: int) -> None:
    pytest.importorskip("triton", reason="kernels need Triton")
    record, gains, states = (part.to(DEVICE) for part in case(steps, channels, season))
    errors, expected = torch.empty_like(record), forward(record.cpu(), gains.cpu(), states.cpu())
    for stored in (errors, errors[:0]):
        final, sse = states.clone(), torch.zeros_like(gains[0])
        scans._forward_on_gpu(record, gains, final, stored, sse, steps)
        final[2:] = final[2:].roll(-steps, 0)
        assert_close([sse, final], expected)
    assert_close([errors], [forward_plain(record.cpu(), gains.cpu(), states.cpu())[0]])
    gradient = torch.zeros_like(gains), torch.zeros_like(states)
    scans._backward_on_gpu(errors, gains, *gradient)
    assert_close(gradient, backward(errors.cpu(), gains.cpu(), season))


def test_a_response_is_the_error_of_a_record_of_zeros() -> None:
    pytest.importorskip("triton", reason="kernels need Triton")
    _, gains, states = case(30, 4, 6)
    expected = forward(torch.zeros(30, 4), gains, states).sse
    assert_close([response(gains, states, 30)], [expected])
    final, sse = states.clone().to(DEVICE), torch.zeros_like(gains[0]).to(DEVICE)
    zeros = torch.zeros(1, 4, device=DEVICE)
    scans._forward_on_gpu(zeros, gains.to(DEVICE), final, final[:0], sse, 30)
    assert_close([sse], [expected])


def test_channels_and_threads_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    record, gains, states = case(50, 11, 6)
    errors = torch.empty_like(record)
    whole = forward(record, gains, states, errors)
    gradient = backward(errors, gains, 6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    again = torch.empty_like(record)
    assert all(map(torch.equal, forward(record, gains, states, again), whole))
    assert torch.equal(again, errors)
    assert all(map(torch.equal, backward(errors, gains, 6), gradient))
    for channel in range(11):
        column = slice(channel, channel + 1)
        alone = forward(record[:, column], gains[:, column], states[:, column])
        assert torch.equal(alone.sse, whole.sse[column])
