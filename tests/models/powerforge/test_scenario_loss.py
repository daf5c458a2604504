"""The loss of head outputs: gradients against differences, padding, and wrapped angles."""

from dataclasses import replace
from math import pi

import pytest
import torch
from torch import Tensor

from powerphase.models.powerforge import (
    PARTS,
    Counts,
    HeadOutputs,
    Objective,
    PowerForgeConfig,
    Truth,
    pinball_loss,
    scenario_loss,
)
from tests.models.powerforge import TINY, random_heads

B, N, M, H = 1, 2, 3, 3
COUNTS = Counts(windows=B, buses=N, scenarios=M, steps=H)
CONFIG = replace(TINY, scenarios=M, width_cap=0.3, width_weight=0.5, jitter_weight=0.5)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def truth() -> Truth:
    return Truth(random(4, B, H, N, seed=1), random(4, B, H, N, seed=2))


def loss_of(
    truth_: Truth, *parts: Tensor, noise: Tensor, config: PowerForgeConfig = CONFIG
) -> Tensor:
    """The loss of head outputs, levels and the kinds' weights."""
    *head_tensors, level, weight = parts
    heads = HeadOutputs._make([*head_tensors, noise])
    objective = Objective(config).double()
    terms = objective._terms(truth_.target, level.detach(), weight.detach(), COUNTS, None)
    return scenario_loss(heads, level, weight, truth_, terms, fast=False)[0]


@pytest.mark.parametrize("field", [*HeadOutputs._fields[:-1], "level", "weight"])
def test_gradients_equal_differences(field: str) -> None:
    # The divisor Δ_V is detached, which differences cannot reproduce.
    config = replace(CONFIG, voltage_weight=0.0) if field == "bound" else CONFIG
    heads, level = random_heads(B, N, M, H), torch.tensor([0.1, 0.5, 0.9]).double()
    inputs = [*heads[:-1], level, torch.tensor([0.5, 0.8, 1.1, 1.4]).double()]
    index = [*HeadOutputs._fields[:-1], "level", "weight"].index(field)

    def of_field(value: Tensor) -> Tensor:
        parts = [*inputs[:index], value, *inputs[index + 1 :]]
        return loss_of(truth(), *parts, noise=heads.noise, config=config)

    assert torch.autograd.gradcheck(of_field, inputs[index].requires_grad_())


def test_padding_has_no_effect() -> None:
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    heads = random_heads(B, N, M, H)
    wide = random_heads(B, N, M, H, width=N + 3)
    results = []
    for outputs in (heads, wide):
        leaves = [part.clone().requires_grad_() for part in (*outputs[:-1], level, weight)]
        loss = loss_of(truth(), *leaves, noise=outputs.noise)
        results.append((loss, torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-14, atol=0)
    for index, (narrow, padded) in enumerate(zip(results[0][1], results[1][1], strict=True)):
        if index < 2:
            assert not padded[..., N:].any()
            padded = padded[..., :N]
        torch.testing.assert_close(padded, narrow, rtol=1e-12, atol=1e-15)


def test_the_pinball_loss_is_the_first_part() -> None:
    heads, truth_ = random_heads(B, N, M, H), truth()
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    terms = Objective(CONFIG).double()._terms(truth_.target, level, weight, COUNTS, None)
    loss, parts = scenario_loss(heads, level, weight, truth_, terms, fast=False)
    assert len(parts) == len(PARTS)
    assert (parts > 0).all()
    torch.testing.assert_close(loss, parts.sum())
    torch.testing.assert_close(pinball_loss(heads, truth_, terms, fast=False), parts[0])


def test_angles_are_periodic() -> None:
    heads, truth_ = random_heads(B, N, M, H), truth()
    rotated = truth_._replace(day=truth_.day.clone())
    rotated.day[3] += 2 * pi
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    original, shifted = (
        loss_of(day, *heads[:-1], level, weight, noise=heads.noise) for day in (truth_, rotated)
    )
    torch.testing.assert_close(original, shifted, rtol=1e-12, atol=0)
