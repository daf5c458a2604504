"""The loss of ordered scenarios against its definition, and its slopes against autograd's."""

from math import pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import THETA, P, V
from powerphase.models.powerforge.kernels.pinball import Terms, _fan
from tests.models.powerforge.straightforward import wrapped

B, N, M, H = 2, 3, 5, 7
WIDTH, JITTER, RAMP = range(3)
"""Among the factors."""


def exactly(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def terms(
    pinball: float = 0.3, width: float = 0.5, jitter: float = 0.7, ramp: float = 0.9
) -> Terms:
    worth = pinball * (1 + random(4, M, seed=7).abs())
    return Terms(
        factors=exactly(width, jitter, ramp, 0.0, 1.3),
        level=random(M, seed=8).sigmoid().sort().values,
        worth=worth,
        nearest=torch.tensor([1, 3, 2]),
        scale=random(4, B, N, seed=9).abs() + 0.2,
    )


def example(seed: int = 0, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Scenarios and target."""
    return spread * random(B, M, H, N, seed=seed), random(B, H, N, seed=seed + 1)


def judged(x: Tensor, target: Tensor, kind: int, about: Terms) -> tuple[Tensor, Tensor]:
    """Pinball, width, jitter and ramp, and the slope of their sum."""
    (error, above, *others), slope = _fan(x, target, kind, about)
    pinball = above + (about.worth[kind] * about.level * error).sum()
    return torch.stack([pinball, *(about.factors[:3] * torch.stack(others))]), slope


def definition(x: Tensor, target: Tensor, kind: int, about: Terms) -> Tensor:
    """The same as the paper has them."""
    fan = x.sort(1).values
    error = target.unsqueeze(1) - fan
    pinball = error * (about.level[:, None, None] - (error < 0).double())
    low, high, middle = (fan[:, [place]] for place in about.nearest)
    scale = about.scale[kind, :, None, None]
    width, jitter, ramp, _, cap = about.factors
    ramps = wrapped(fan.diff(dim=2)).abs().sum() if kind == THETA else exactly(0.0)[0]
    return torch.stack(
        [
            (about.worth[kind][:, None, None] * pinball).sum(),
            width * F.relu((high - low) / (cap * scale) - 1).sum(),
            jitter * ((fan - middle).diff(dim=2).abs() / scale).sum(),
            ramp * ramps,
        ]
    )


ONE_BY_ONE = {
    "all": {},
    "pinball": {"width": 0.0, "jitter": 0.0, "ramp": 0.0},
    "width": {"pinball": 0.0, "jitter": 0.0, "ramp": 0.0},
    "jitter": {"pinball": 0.0, "width": 0.0, "ramp": 0.0},
    "ramp": {"pinball": 0.0, "width": 0.0, "jitter": 0.0},
}


@pytest.mark.parametrize("kind", [P, THETA])
@pytest.mark.parametrize("changes", ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_parts_and_slope_are_those_of_the_definition(changes: dict[str, float], kind: int) -> None:
    (x, target), about = example(), terms(**changes)
    parts, slope = judged(x, target, kind, about)
    wanted = definition(x.requires_grad_(), target, kind, about)
    torch.testing.assert_close(parts, wanted.detach(), rtol=1e-12, atol=0)
    (oracle,) = torch.autograd.grad(wanted.sum(), x)
    torch.testing.assert_close(slope, oracle, rtol=1e-11, atol=1e-13)


def test_the_slope_is_that_of_differences() -> None:
    (x, target), about, step = example(3), terms(), 1e-6
    for direction in (random(B, M, H, N, seed=seed) for seed in (4, 5, 6)):
        ahead, behind = (
            judged(x + way * step * direction, target, THETA, about)[0].sum() for way in (1, -1)
        )
        slope = (judged(x, target, THETA, about)[1] * direction).sum()
        assert slope.item() == pytest.approx((ahead - behind).item() / (2 * step), rel=1e-6)


def single(x: list[list[float]], target: list[float], level: list[float], **changes) -> tuple:
    """One bus in one window: scenarios by step, and all that counts counts once."""
    given = terms(**{"pinball": 0.0, "width": 0.0, "jitter": 0.0, "ramp": 0.0, **changes})
    about = given._replace(
        level=exactly(*level),
        worth=torch.full((4, len(level)), changes.get("pinball", 0.0)).double(),
        nearest=torch.tensor([0, 1, 0]),
        scale=torch.ones(4, 1, 1).double(),
    )
    steps = exactly(*(value for row in x for value in row)).reshape(1, len(x), -1, 1)
    return judged(steps, exactly(*target).reshape(1, -1, 1), THETA, about)


def test_two_scenarios_on_paper() -> None:
    # Sorted they are 1 and 3 about 2: errors 1 and -1, so ρ = 0.25·1 and (0.75 − 1)·(−1).
    parts, slope = single([[3], [1]], [2], [0.25, 0.75], pinball=10.0)
    assert parts.tolist() == pytest.approx([5, 0, 0, 0])
    # The greater one, which comes first, lies above the target: 1 − 0.75; the other, −0.25.
    assert slope.flatten().tolist() == pytest.approx([2.5, -2.5])


def test_angles_ramp_the_shorter_way_around() -> None:
    step = 0.1
    row = [pi - step, step - pi, pi - step]
    parts, _ = single([row, row], [0, 0, 0], [0.3, 0.6], ramp=1.0)
    assert parts.tolist() == pytest.approx([0, 0, 0, 2 * 2 * 2 * step])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.5, 1.0]))
def test_ties_keep_the_loss_and_finite_slopes(seed: int, grain: float) -> None:
    x, target = example(seed)
    rounded, target = (grain * x).round(), target.round()
    parts, slope = judged(rounded, target, THETA, terms())
    wanted = definition(rounded, target, THETA, terms())
    torch.testing.assert_close(parts, wanted, rtol=1e-12, atol=1e-12)
    assert slope.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(M)))
def test_the_order_of_the_scenarios_does_not_matter(order: list[int]) -> None:
    x, target = example(5)
    parts, slope = judged(x, target, THETA, terms())
    again, moved = judged(x[:, order], target, THETA, terms())
    torch.testing.assert_close(again, parts, rtol=1e-14, atol=0)
    torch.testing.assert_close(moved, slope[:, order], rtol=1e-14, atol=0)


def test_a_fan_within_its_cap_is_free_and_one_beyond_it_is_drawn_in() -> None:
    about = terms(pinball=0.0, jitter=0.0, ramp=0.0)
    narrow, _ = judged(*example(1, spread=1e-3), P, about)
    assert narrow[1 + WIDTH] == 0
    x, target = example(1, spread=1e3)
    wide, slope = judged(x, target, P, about)
    drawn, _ = judged(x - slope, target, P, about)
    assert drawn[1 + WIDTH] < wide[1 + WIDTH]
    assert (slope != 0).sum() == 2 * B * N * H


def test_what_all_scenarios_do_alike_is_no_jitter() -> None:
    x, target = example(2)
    alike = x[:, :, :1].expand(B, M, H, N) + target.unsqueeze(1)
    parts, _ = judged(alike, target, P, terms())
    assert parts[1 + JITTER].item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", [P, V, THETA])
def test_only_angles_have_ramps(kind: int) -> None:
    parts, _ = judged(*example(), kind, terms())
    assert (parts[1 + RAMP] > 0) == (kind == THETA)


def test_the_winner_alone_pays_its_distance() -> None:
    x, target = example(4)
    chosen = F.one_hot(torch.tensor([3, 1]), M).double()
    about = terms(ramp=0.0)._replace(chosen=chosen)
    parts, slope = judged(x, target, THETA, about)
    worth = about.worth[THETA]
    wanted = sum(worth[m] * (x[b, m] - target[b]).abs().sum() for b, m in enumerate((3, 1)))
    torch.testing.assert_close(parts, F.pad(wanted.reshape(1), (0, 3)), rtol=1e-12, atol=0)
    assert torch.equal(slope.abs().sum((2, 3)) > 0, chosen.bool())
    assert torch.equal(slope[0, 3], worth[3] * (x[0, 3] - target[0]).sign())
