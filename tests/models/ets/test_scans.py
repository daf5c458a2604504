"""The two passes, in every form, against textbook, plain torch and autograd."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.ets import scans
from powerphase.models.ets.scans import backward, forward, forward_plain, response
from tests.models.ets import random, some_gains

SIZES = {
    "one of all": (1, 1, 2),
    "odd numbers": (41, 5, 4),
    "less than a season": (3, 2, 7),
    "whole seasons": (24, 3, 8),
    "more than a program's lanes": (9, 67, 3),
}
every_size = pytest.mark.parametrize(("steps", "channels", "season"), SIZES.values(), ids=SIZES)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def case(steps: int, channels: int, season: int) -> tuple[Tensor, Tensor, Tensor]:
    record, states = random(steps, channels), random(2 + season, channels, seed=1)
    return record, some_gains(channels), states


def assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert (one.cpu() - other.cpu()).abs().max() <= 1e-9 * (1 + other.abs().max())


def test_it_is_the_textbook_s_component_form() -> None:
    """Level, trend and season as weighted means of what was seen and of what was known."""
    alpha, beta, gamma, season = 0.3, 0.2, 0.4, 5
    record, states = random(60, 1), random(2 + season, 1, seed=1)
    level, trend, *ring = states[:, 0].tolist()
    wanted = []
    for step, value in enumerate(record[:, 0].tolist()):
        before, slope, old = level, trend, ring[step % season]
        wanted.append(value - (before + slope + old))
        level = alpha * (value - old) + (1 - alpha) * (before + slope)
        trend = beta * (level - before) + (1 - beta) * slope
        ring[step % season] = gamma * (value - before - slope) + (1 - gamma) * old
    errors = torch.empty(60, 1, dtype=torch.float64)
    gains = torch.tensor([[alpha], [alpha * beta], [gamma]], dtype=torch.float64)
    ended = forward(record, gains, states, errors).states
    np.testing.assert_allclose(errors[:, 0], wanted, atol=1e-9)
    np.testing.assert_allclose(ended[:, 0], [level, trend, *ring], atol=1e-9)


@every_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_forward_is_its_plain_twin(
    steps: int, channels: int, season: int, dtype: torch.dtype
) -> None:
    record, gains, states = case(steps, channels, season)
    record = record.to(dtype)
    errors, ended = forward_plain(record, gains, states)
    kept = torch.empty_like(errors)
    before = states.clone()
    assert_close(
        [*forward(record, gains, states, kept), kept], [errors.square().sum(0), ended, errors]
    )
    assert_close(forward(record, gains, states), [errors.square().sum(0), ended])
    assert torch.equal(states, before)


@every_size
def test_backward_is_autograd_s_gradient(steps: int, channels: int, season: int) -> None:
    record, gains, states = case(steps, channels, season)
    inputs = gains.clone().requires_grad_(), states.requires_grad_()
    errors, _ = forward_plain(record, *inputs)
    half = errors.square().sum() / 2
    wanted = torch.autograd.grad(half, inputs, materialize_grads=True)
    assert_close(backward(errors.detach(), gains, season), wanted)


@every_size
def test_triton_s_lanes_are_the_same(steps: int, channels: int, season: int) -> None:
    pytest.importorskip("triton", reason="kernels need Triton")
    record, gains, states = (part.to(DEVICE) for part in case(steps, channels, season))
    errors, wanted = torch.empty_like(record), forward(record.cpu(), gains.cpu(), states.cpu())
    for kept in (errors, errors[:0]):
        ended, sse = states.clone(), torch.zeros_like(gains[0])
        scans._forward_on_gpu(record, gains, ended, kept, sse, steps)
        ended[2:] = ended[2:].roll(-steps, 0)
        assert_close([sse, ended], wanted)
    assert_close([errors], [forward_plain(record.cpu(), gains.cpu(), states.cpu())[0]])
    found = torch.zeros_like(gains), torch.zeros_like(states)
    scans._backward_on_gpu(errors, gains, *found)
    assert_close(found, backward(errors.cpu(), gains.cpu(), season))


def test_a_response_is_what_states_do_to_nothing() -> None:
    pytest.importorskip("triton", reason="kernels need Triton")
    _, gains, states = case(30, 4, 6)
    wanted = forward(torch.zeros(30, 4), gains, states).sse
    assert_close([response(gains, states, 30)], [wanted])
    ended, sse = states.clone().to(DEVICE), torch.zeros_like(gains[0]).to(DEVICE)
    nothing = torch.zeros(1, 4, device=DEVICE)
    scans._forward_on_gpu(nothing, gains.to(DEVICE), ended, ended[:0], sse, 30)
    assert_close([sse], [wanted])


def test_channels_and_threads_do_not_meddle(monkeypatch: pytest.MonkeyPatch) -> None:
    record, gains, states = case(50, 11, 6)
    errors = torch.empty_like(record)
    whole = forward(record, gains, states, errors)
    slopes = backward(errors, gains, 6)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    again = torch.empty_like(record)
    assert all(map(torch.equal, forward(record, gains, states, again), whole))
    assert torch.equal(again, errors)
    assert all(map(torch.equal, backward(errors, gains, 6), slopes))
    for channel in range(11):
        alone = slice(channel, channel + 1)
        found = forward(record[:, alone], gains[:, alone], states[:, alone])
        assert torch.equal(found.sse, whole.sse[alone])
