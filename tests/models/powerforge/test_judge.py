"""From views to the loss and back: slopes against differences, with and without room for more."""

from dataclasses import replace
from math import pi

import pytest
import torch
from torch import Tensor

from powerphase.models.powerforge.kernels.bridge_inputs import Views
from powerphase.models.powerforge.objective import PARTS, Counts, Objective, Truth, judged, pinball
from tests.models.powerforge import TINY, random_views

B, N, M, H = 1, 2, 3, 3
COUNTS = Counts(windows=B, buses=N, scenarios=M, steps=H)
CONFIG = replace(TINY, scenarios=M, width_cap=0.3, width_weight=0.5, jitter_weight=0.5)


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def truth() -> Truth:
    return Truth(random(4, B, H, N, seed=1), random(4, B, H, N, seed=2))


def loss_of(given: Truth, *parts: Tensor, noise: Tensor, config=CONFIG) -> Tensor:
    """The loss of views, levels and the kinds' weights."""
    *of_views, level, weight = parts
    objective = Objective(config).double()
    about = objective._terms(given.target, level.detach(), weight.detach(), COUNTS, None)
    return judged(Views(*of_views, noise), level, weight, given, about, fast=False)[0]


@pytest.mark.parametrize("field", [*Views._fields[:-1], "level", "weight"])
def test_slopes_are_those_of_differences(field: str) -> None:
    # Where Δ_V divides it is held, as differences would not do.
    config = replace(CONFIG, voltage_weight=0.0) if field == "bound" else CONFIG
    views, level = random_views(B, N, M, H), torch.tensor([0.1, 0.5, 0.9]).double()
    given = [*views[:-1], level, torch.tensor([0.5, 0.8, 1.1, 1.4]).double()]
    place = [*Views._fields[:-1], "level", "weight"].index(field)

    def of_field(value: Tensor) -> Tensor:
        parts = [*given[:place], value, *given[place + 1 :]]
        return loss_of(truth(), *parts, noise=views.noise, config=config)

    assert torch.autograd.gradcheck(of_field, given[place].requires_grad_())


def test_buses_that_are_not_there_count_for_nothing() -> None:
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    views = random_views(B, N, M, H)
    wide = random_views(B, N, M, H, width=N + 3)
    found = []
    for given in (views, wide):
        leaves = [part.clone().requires_grad_() for part in (*given[:-1], level, weight)]
        loss = loss_of(truth(), *leaves, noise=given.noise)
        found.append((loss, torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-14, atol=0)
    for place, (one, other) in enumerate(zip(found[0][1], found[1][1], strict=True)):
        if place < 2:
            assert not other[..., N:].any()
            other = other[..., :N]
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-15)


def test_the_pinball_alone_is_the_first_part() -> None:
    views, given = random_views(B, N, M, H), truth()
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    about = Objective(CONFIG).double()._terms(given.target, level, weight, COUNTS, None)
    loss, parts = judged(views, level, weight, given, about, fast=False)
    assert len(parts) == len(PARTS)
    assert (parts > 0).all()
    torch.testing.assert_close(loss, parts.sum())
    torch.testing.assert_close(pinball(views, given, about, fast=False), parts[0])


def test_angles_that_pass_half_a_turn_come_back() -> None:
    """Their loss is that of the same angles a turn away."""
    views, given = random_views(B, N, M, H), truth()
    turned = given._replace(day=given.day.clone())
    turned.day[3] += 2 * pi
    level, weight = torch.tensor([0.1, 0.5, 0.9]).double(), torch.ones(4).double()
    one, other = (
        loss_of(around, *views[:-1], level, weight, noise=views.noise) for around in (given, turned)
    )
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
