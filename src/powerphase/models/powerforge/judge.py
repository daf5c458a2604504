"""From views to the loss, and back: all that happens to scenarios in one step of training.

Scenarios are made, judged and forgotten in the forward pass, with the slope of the loss along all
that they were made of. That is small, so it is what is kept; the backward pass only multiplies it.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.kernels.toolkit import product_dtype
from powerphase.models.powerforge.kernels.fans import Sums, Terms, gate_fans, opening, power_fans
from powerphase.models.powerforge.kernels.powers import Views, hear, power_slopes, trajectory

PARTS = ("pinball", "width", "jitter", "angle", "voltage")


class Truth(NamedTuple):
    """What scenarios deviate from, and what they are held against."""

    day: Float[Tensor, "4 B H N"]
    target: Float[Tensor, "4 B H N"]


def judged(
    views: Views,
    level: Float[Tensor, " M"],
    weight: Float[Tensor, " 4"],
    truth: Truth,
    terms: Terms,
    fast: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
    """The loss of these scenarios, and its parts.

    Gradients go to the views, to the levels and to the kinds' weights, which are in `terms` too;
    the parts are for reading only.
    """
    apply: Any = _Judged.apply
    loss, parts = apply(*views[:-1], level, weight, views.noise, truth, terms, fast)
    return loss, parts


@torch.no_grad()
def pinball(views: Views, truth: Truth, terms: Terms, fast: bool) -> Float[Tensor, ""]:
    """The pinball part alone, without gradients."""
    power, _ = power_fans(views, *truth, terms, None, fast)
    gate, _ = gate_fans(views, heard_by(views, fast), *truth, terms, False, fast)
    return (
        _pinball(power, terms.worth[:2], terms).sum() + _pinball(gate, terms.worth[2:], terms).sum()
    )


@torch.no_grad()
def deviations(views: Views, fast: bool) -> list[Float[Tensor, "B M H W"]]:
    """The deviations of all scenarios from the reference day, by kind."""
    added = heard_by(views, fast)
    powers = [trajectory(views, source) for source in range(2)]
    return powers + [views.bound[kind] * opening(views, added, kind) for kind in range(2)]


def heard_by(views: Views, fast: bool) -> Float[Tensor, "2 B M H W"]:
    """What P and Q add to the gates of V and θ."""
    return _mapped(views.maps, hear(views, views.power.dtype, fast)[0])


class _Judged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *of_views, _, weight, noise, truth, terms, fast = given
        views = Views._make([*of_views, noise])
        dtype = product_dtype(views.power)
        with torch.autocast(views.power.device.type, enabled=False):
            heard, share = hear(views, dtype, fast)
            added = _mapped(views.maps, heard)
            power_sums, of_power = power_fans(views, truth.day, truth.target, terms, dtype, fast)
            gate_sums, of_gate = gate_fans(views, added, truth.day, truth.target, terms, True, fast)
            assert of_power is not None
            assert of_gate is not None
            slopes = _slopes(views, heard, share, added, of_power, of_gate, fast)
        sums = Sums(*(torch.cat(pair) for pair in zip(power_sums, gate_sums, strict=True)))
        by_kind = _pinball(sums, terms.worth, terms)
        shaped = terms.factors[:4] * torch.stack(
            [sums.width.sum(), sums.jitter.sum(), sums.ramp.sum(), sums.opening.sum()]
        )
        parts = torch.cat([by_kind.sum().reshape(1), shaped])
        # Δ_V bends the gate's own term too: of v² / 2 Δ², Δ is held where it divides only.
        of_bound = gate_sums.bound.clone()
        of_bound[0] += 2 * shaped[3] / views.bound[0]
        of_level = (terms.worth * sums.error).sum(0)
        ctx.save_for_backward(*slopes, of_bound, of_level, by_kind / weight)
        ctx.mark_non_differentiable(parts)
        return parts.sum(), parts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *torch._foreach_mul(ctx.saved_tensors, upstream), *[None] * 4


def _pinball(sums: Sums, worth: Float[Tensor, "K M"], terms: Terms) -> Float[Tensor, " K"]:
    return sums.above + (worth * terms.level * sums.error).sum(1)


def _mapped(
    maps: Float[Tensor, "2 I J"], given: Float[Tensor, "2 B M J W"], out: Tensor | None = None
) -> Float[Tensor, "2 B M I W"]:
    """The maps of both kinds, for every window and scenario."""
    _, windows, scenarios, _, width = given.shape
    if out is None:
        out = given.new_empty(2, windows, scenarios, maps.shape[1], width)
    maps = maps.to(given.dtype)
    for kind in range(2):
        # Seen from all windows and scenarios the map is one and the same, not a copy for each.
        by = maps[kind].expand(windows * scenarios, -1, -1)
        torch.bmm(by, given[kind].flatten(0, 1), out=out[kind].flatten(0, 1))
    return out


def _slopes(
    views: Views,
    heard: Float[Tensor, "2 B M RR W"],
    share: Float[Tensor, "2 B M W"],
    of_added: Float[Tensor, "2 B M H W"],
    of_power: Float[Tensor, "2 B M H W"],
    of_gate: Float[Tensor, "B 2 HHH1 W"],
    fast: bool,
) -> list[Tensor]:
    """Along the views but their bounds, in their order. What was heard is overwritten."""
    steps, rows = views.gate_table.shape[1], views.maps.shape[2] // 2
    by_scenario = torch.stack(
        [
            torch.bmm(slope.flatten(0, 1), source.flatten(0, 1).mT).unflatten(0, (len(slope), -1))
            for slope, source in zip(of_added, heard, strict=True)
        ]
    ).sum(1, dtype=views.maps.dtype)  # 2 M H RR
    # The rows of ones, times the shares of P and of Q, add up to one.
    of_gate_table = (by_scenario[..., steps] + by_scenario[..., rows + steps]).mT
    of_heard = _mapped(views.maps.mT, of_added, out=heard)
    through = power_slopes(views, share, of_heard, of_power, of_gate, fast)
    return [
        through.power,
        of_gate,
        through.power_table,
        of_gate_table,
        through.direction_table,
        through.logit.sum((0, 1, 3)),
        by_scenario.sum(1),
    ]
