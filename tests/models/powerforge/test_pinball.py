"""The loss of ordered scenarios against its definition, and its gradient against autograd."""

from math import pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import THETA, P, V
from powerphase.models.powerforge.kernels import LossTerms, ordered_loss
from tests.models.powerforge.straightforward import wrap

B, N, M, H = 2, 3, 5, 7
WIDTH, JITTER, RAMP = range(3)
"""Positions among the factors."""


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def terms(
    pinball: float = 0.3, width: float = 0.5, jitter: float = 0.7, ramp: float = 0.9
) -> LossTerms:
    weight = pinball * (1 + random(4, M, seed=7).abs())
    return LossTerms(
        factors=doubles(width, jitter, ramp, 0.0, 1.3),
        level=random(M, seed=8).sigmoid().sort().values,
        weight=weight,
        nearest=torch.tensor([1, 3, 2]),
        scale=random(4, B, N, seed=9).abs() + 0.2,
    )


def example(seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scenarios and target."""
    return spread * random(B, M, H, N, seed=seed), random(B, H, N, seed=seed + 1)


def parts_and_gradient(
    x: Tensor, target: Tensor, kind: int, loss_terms: LossTerms
) -> tuple[Tensor, Tensor]:
    """Pinball, width, jitter and ramp, and the gradient of their sum."""
    (error, overshoot, *sums), gradient = ordered_loss(x, target, kind, loss_terms)
    pinball = overshoot + (loss_terms.weight[kind] * loss_terms.level * error).sum()
    return torch.stack([pinball, *(loss_terms.factors[:3] * torch.stack(sums))]), gradient


def definition(x: Tensor, target: Tensor, kind: int, loss_terms: LossTerms) -> Tensor:
    """The same by the paper's equations."""
    ordered = x.sort(1).values
    error = target.unsqueeze(1) - ordered
    pinball = error * (loss_terms.level[:, None, None] - (error < 0).double())
    low, high, median = (ordered[:, [rank]] for rank in loss_terms.nearest)
    scale = loss_terms.scale[kind, :, None, None]
    width, jitter, ramp, _, cap = loss_terms.factors
    ramps = wrap(ordered.diff(dim=2)).abs().sum() if kind == THETA else doubles(0.0)[0]
    return torch.stack(
        [
            (loss_terms.weight[kind][:, None, None] * pinball).sum(),
            width * F.relu((high - low) / (cap * scale) - 1).sum(),
            jitter * ((ordered - median).diff(dim=2).abs() / scale).sum(),
            ramp * ramps,
        ]
    )


TERMS: dict[str, dict[str, float]] = {
    "all": {},
    "pinball": {"width": 0.0, "jitter": 0.0, "ramp": 0.0},
    "width": {"pinball": 0.0, "jitter": 0.0, "ramp": 0.0},
    "jitter": {"pinball": 0.0, "width": 0.0, "ramp": 0.0},
    "ramp": {"pinball": 0.0, "width": 0.0, "jitter": 0.0},
}


@pytest.mark.parametrize("kind", [P, THETA])
@pytest.mark.parametrize("changes", TERMS.values(), ids=TERMS)
def test_parts_and_gradient_equal_the_definition(changes: dict[str, float], kind: int) -> None:
    (x, target), loss_terms = example(), terms(**changes)
    parts, gradient = parts_and_gradient(x, target, kind, loss_terms)
    expected = definition(x.requires_grad_(), target, kind, loss_terms)
    torch.testing.assert_close(parts, expected.detach(), rtol=1e-12, atol=0)
    (oracle,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(gradient, oracle, rtol=1e-11, atol=1e-13)


def test_the_gradient_equals_differences() -> None:
    (x, target), loss_terms, step = example(3), terms(), 1e-6
    for direction in (random(B, M, H, N, seed=seed) for seed in (4, 5, 6)):
        ahead, behind = (
            parts_and_gradient(x + way * step * direction, target, THETA, loss_terms)[0].sum()
            for way in (1, -1)
        )
        gradient = (parts_and_gradient(x, target, THETA, loss_terms)[1] * direction).sum()
        assert gradient.item() == pytest.approx((ahead - behind).item() / (2 * step), rel=1e-6)


def single_bus(
    x: list[list[float]], target: list[float], level: list[float], **changes: float
) -> tuple[Tensor, Tensor]:
    """One bus in one window, with scenarios by step and all scales 1."""
    default = terms(**{"pinball": 0.0, "width": 0.0, "jitter": 0.0, "ramp": 0.0, **changes})
    loss_terms = default._replace(
        level=doubles(*level),
        weight=torch.full((4, len(level)), changes.get("pinball", 0.0)).double(),
        nearest=torch.tensor([0, 1, 0]),
        scale=torch.ones(4, 1, 1).double(),
    )
    steps = doubles(*(value for row in x for value in row)).reshape(1, len(x), -1, 1)
    return parts_and_gradient(steps, doubles(*target).reshape(1, -1, 1), THETA, loss_terms)


def test_two_scenarios_by_hand() -> None:
    # Sorted they are 1 and 3, the target is 2: errors 1 and −1, so ρ = 0.25·1 and (0.75 − 1)·(−1).
    parts, gradient = single_bus([[3], [1]], [2], [0.25, 0.75], pinball=10.0)
    assert parts.tolist() == pytest.approx([5, 0, 0, 0])
    # The first is above the target, which gives 1 − 0.75; the other gives −0.25.
    assert gradient.flatten().tolist() == pytest.approx([2.5, -2.5])


def test_steps_of_angles_are_wrapped() -> None:
    step = 0.1
    row = [pi - step, step - pi, pi - step]
    parts, _ = single_bus([row, row], [0, 0, 0], [0.3, 0.6], ramp=1.0)
    assert parts.tolist() == pytest.approx([0, 0, 0, 2 * 2 * 2 * step])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_ties_keep_the_loss_and_finite_gradients(seed: int, resolution: float) -> None:
    x, target = example(seed)
    rounded, target = (resolution * x).round(), target.round()
    parts, gradient = parts_and_gradient(rounded, target, THETA, terms())
    expected = definition(rounded, target, THETA, terms())
    torch.testing.assert_close(parts, expected, rtol=1e-12, atol=1e-12)
    assert gradient.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(M)))
def test_the_order_of_the_scenarios_does_not_matter(order: list[int]) -> None:
    x, target = example(5)
    parts, gradient = parts_and_gradient(x, target, THETA, terms())
    permuted_parts, permuted_gradient = parts_and_gradient(x[:, order], target, THETA, terms())
    torch.testing.assert_close(permuted_parts, parts, rtol=1e-14, atol=0)
    torch.testing.assert_close(permuted_gradient, gradient[:, order], rtol=1e-14, atol=0)


def test_only_a_fan_wider_than_its_cap_is_penalised() -> None:
    loss_terms = terms(pinball=0.0, jitter=0.0, ramp=0.0)
    narrow, _ = parts_and_gradient(*example(1, spread=1e-3), P, loss_terms)
    assert narrow[1 + WIDTH] == 0
    x, target = example(1, spread=1e3)
    wide, gradient = parts_and_gradient(x, target, P, loss_terms)
    narrower, _ = parts_and_gradient(x - gradient, target, P, loss_terms)
    assert narrower[1 + WIDTH] < wide[1 + WIDTH]
    assert (gradient != 0).sum() == 2 * B * N * H


def test_parallel_scenarios_have_no_jitter() -> None:
    x, target = example(2)
    parallel = x[:, :, :1].expand(B, M, H, N) + target.unsqueeze(1)
    parts, _ = parts_and_gradient(parallel, target, P, terms())
    assert parts[1 + JITTER].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", [P, V, THETA])
def test_only_angles_have_a_ramp_term(kind: int) -> None:
    parts, _ = parts_and_gradient(*example(), kind, terms())
    assert (parts[1 + RAMP] > 0) == (kind == THETA)


def test_only_the_winner_has_a_loss() -> None:
    x, target = example(4)
    winner = F.one_hot(torch.tensor([3, 1]), M).double()
    loss_terms = terms(ramp=0.0)._replace(winner=winner)
    parts, gradient = parts_and_gradient(x, target, THETA, loss_terms)
    weight = loss_terms.weight[THETA]
    distances = [weight[m] * (x[b, m] - target[b]).abs().sum() for b, m in enumerate((3, 1))]
    expected = torch.stack(distances).sum()
    torch.testing.assert_close(parts, F.pad(expected.reshape(1), (0, 3)), rtol=1e-12, atol=0)
    assert torch.equal(gradient.abs().sum((2, 3)) > 0, winner.bool())
    assert torch.equal(gradient[0, 3], weight[3] * (x[0, 3] - target[0]).sign())
