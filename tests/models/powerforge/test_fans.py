"""The loss of ordered scenarios against its definition, and its gradient against autograd's."""

from math import pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.powerforge.fans import FanTerms, fan_loss
from tests.models.powerforge.straightforward import wrapped

B, N, M, H = 2, 3, 5, 7


def exactly(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def terms(**changes) -> FanTerms:
    given = FanTerms(
        pinball=0.3,
        width=0.5,
        jitter=0.7,
        ramp=0.9,
        scale=torch.rand(B, N, 1, 1, dtype=torch.float64, generator=seeded(8)) + 0.2,
        width_cap=1.3,
        low=torch.tensor([1]),
        high=torch.tensor([3]),
        middle=torch.tensor([2]),
    )
    return given._replace(**changes)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def example(seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scenarios, target, levels and weight, all of which can have gradients."""
    random = {"dtype": torch.float64, "generator": seeded(seed)}
    scenarios = spread * torch.randn(B, N, M, H, **random)
    level = torch.rand(M, **random).sort().values
    target = torch.randn(B, N, H, **random)
    return (
        scenarios.requires_grad_(),
        target,
        level.requires_grad_(),
        exactly(1.7).requires_grad_()[0],
    )


def definition(
    scenarios: Tensor, target: Tensor, level: Tensor, weight: Tensor, terms: FanTerms
) -> list[Tensor]:
    """Pinball, width, jitter and ramp as the paper has them, as sums."""
    fan = scenarios.sort(2).values
    error = target.unsqueeze(2) - fan
    pinball = error * (level[:, None] - (error < 0).double())
    width = (fan[:, :, terms.high] - fan[:, :, terms.low]) / (terms.width_cap * terms.scale)
    jitter = (fan - fan[:, :, terms.middle]).diff(dim=3).abs() / terms.scale
    return [
        weight * terms.pinball * pinball.sum(),
        terms.width * F.relu(width - 1).sum(),
        terms.jitter * jitter.sum(),
        terms.ramp * wrapped(fan.diff(dim=3)).abs().sum(),
    ]


ONE_BY_ONE = {
    "all": {},
    "pinball": {"width": 0.0, "jitter": 0.0, "ramp": 0.0},
    "width": {"pinball": 0.0, "jitter": 0.0, "ramp": 0.0},
    "jitter": {"pinball": 0.0, "width": 0.0, "ramp": 0.0},
    "ramp": {"pinball": 0.0, "width": 0.0, "jitter": 0.0},
}


@pytest.mark.parametrize("changes", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_loss_parts_and_gradients_are_those_of_the_definition(changes: dict[str, float]) -> None:
    given, about = example(), terms(**changes)
    leaves = [given[0], given[2], given[3]]
    loss, parts = fan_loss(*given, about)
    wanted = definition(*given, about)
    torch.testing.assert_close(parts, torch.stack(wanted).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, sum(wanted), rtol=1e-12, atol=0)
    found = torch.autograd.grad(2.5 * loss, leaves)
    oracle = torch.autograd.grad(2.5 * sum(wanted), leaves)
    for one, other in zip(found, oracle, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def test_gradients_are_those_of_differences() -> None:
    scenarios, target, level, weight = example(3)
    assert torch.autograd.gradcheck(
        lambda x, tau, omega: fan_loss(x, target, tau, omega, terms())[0],
        (scenarios, level, weight),
    )


def test_two_scenarios_on_paper() -> None:
    # Sorted they are 1 and 3 about 2: errors 1 and -1, so ρ = 0.25·1 and (0.75 − 1)·(−1).
    about = terms(pinball=1.0, width=0.0, jitter=0.0, ramp=0.0)
    about = about._replace(scale=torch.ones(1, 1, 1, 1).double())
    scenarios = exactly(3, 1).reshape(1, 1, 2, 1).requires_grad_()
    target, level = exactly(2).reshape(1, 1, 1), exactly(0.25, 0.75)
    loss, parts = fan_loss(scenarios, target, level, exactly(10.0)[0], about)
    assert loss.item() == pytest.approx(10 * 0.5)
    assert parts.tolist() == pytest.approx([5, 0, 0, 0])
    loss.backward()
    # The greater one, which comes first, lies above the target: 1 − 0.75; the other, −0.25.
    assert scenarios.grad is not None
    assert scenarios.grad.flatten().tolist() == pytest.approx([2.5, -2.5])


def test_angles_ramp_the_shorter_way_around() -> None:
    about = terms(pinball=0.0, width=0.0, jitter=0.0, ramp=1.0)
    about = about._replace(scale=torch.ones(1, 1, 1, 1).double())
    step = 0.1
    scenarios = exactly(pi - step, step - pi, pi - step).expand(1, 1, 2, 3).clone()
    target = torch.zeros(1, 1, 3).double()
    loss, _ = fan_loss(scenarios, target, exactly(0.3, 0.6), exactly(1.0)[0], about)
    assert loss.item() == pytest.approx(2 * 2 * 2 * step)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_ties_keep_the_loss_and_finite_gradients(seed: int, grain: float) -> None:
    scenarios, target, level, weight = example(seed)
    rounded = (grain * scenarios.detach()).round().requires_grad_()
    given = rounded, target.round(), level, weight
    loss, _ = fan_loss(*given, terms())
    torch.testing.assert_close(loss, sum(definition(*given, terms())), rtol=1e-12, atol=1e-12)
    (slope,) = torch.autograd.grad(loss, rounded)
    assert slope.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(M)))
def test_the_order_of_the_scenarios_does_not_matter(order: list[int]) -> None:
    scenarios, *rest = example(5)
    (slope,) = torch.autograd.grad(fan_loss(scenarios, *rest, terms())[0], scenarios)
    shuffled = scenarios.detach()[:, :, order].requires_grad_()
    loss, _ = fan_loss(shuffled, *rest, terms())
    torch.testing.assert_close(loss, fan_loss(scenarios, *rest, terms())[0], rtol=1e-14, atol=0)
    (moved,) = torch.autograd.grad(loss, shuffled)
    torch.testing.assert_close(moved, slope[:, :, order], rtol=1e-14, atol=0)


def test_a_fan_within_its_cap_is_free_and_one_beyond_it_is_drawn_in() -> None:
    about = terms(pinball=0.0, jitter=0.0, ramp=0.0)
    narrow, *rest = example(1, spread=1e-3)
    assert fan_loss(narrow, *rest, about)[0] == 0
    wide, *rest = example(1, spread=1e3)
    loss, _ = fan_loss(wide, *rest, about)
    (slope,) = torch.autograd.grad(loss, wide)
    drawn, _ = fan_loss(wide - slope, *rest, about)
    assert drawn < loss
    assert (slope != 0).sum() == 2 * B * N * H


def test_what_all_scenarios_do_alike_is_no_jitter() -> None:
    about = terms(pinball=0.0, width=0.0, ramp=0.0)
    scenarios, *rest = example(2)
    still = scenarios.detach()[..., :1].expand(B, N, M, H) + rest[0].unsqueeze(2)
    assert fan_loss(still, *rest, about)[0].item() == pytest.approx(0, abs=1e-12)


def test_terms_that_are_switched_off_are_nought() -> None:
    _, parts = fan_loss(*example(), terms(width=0.0, jitter=0.0, ramp=0.0))
    assert parts[0] > 0
    assert not parts[1:].any()
    assert not parts.requires_grad
