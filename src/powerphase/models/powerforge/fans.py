"""The loss of ordered scenarios, with its gradient worked out by hand.

Scenarios are sorted at every point, and scenario m of the order answers for the level τ_m. Each
term is piecewise linear in the scenarios, so the gradient is known as soon as the terms are: it is
made in the forward pass, put back into the order in which the scenarios came, and kept instead of
the dozen tensors that automatic differentiation would keep.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.powerforge.anchor import wrap

M, H = -2, -1
"""Where scenarios and steps are among the axes of a kind's scenarios, B N M H."""


class FanTerms(NamedTuple):
    """The terms of one kind: what each sum is multiplied by, and which scenarios it looks at."""

    pinball: float
    width: float
    jitter: float
    ramp: float
    """Of the wrapped steps of angles; 0 for other kinds."""
    scale: Float[Tensor, "B N 1 1"]
    """Standard deviation of the target, by which width and jitter are divided."""
    width_cap: float
    low: Int[Tensor, " 1"]
    high: Int[Tensor, " 1"]
    middle: Int[Tensor, " 1"]


def fan_loss(
    scenarios: Float[Tensor, "B N M H"],
    target: Float[Tensor, "B N H"],
    level: Float[Tensor, " M"],
    weight: Float[Tensor, ""],
    terms: FanTerms,
) -> tuple[Float[Tensor, ""], Float[Tensor, " 4"]]:
    """The loss of one kind, and its four parts: pinball, width, jitter and ramp.

    Gradients go to the scenarios, the levels and the kind's weight, which multiplies the pinball;
    the parts are for reading only.
    """
    apply: Any = _FanLoss.apply
    loss, parts = apply(scenarios, target.unsqueeze(M), level, weight, terms)
    return loss, parts


class _FanLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scenarios: Tensor, target: Tensor, level: Tensor, weight: Tensor, terms: FanTerms
    ) -> tuple[Tensor, Tensor]:
        fan, order = scenarios.sort(M)
        parts, slope = scenarios.new_zeros(4), torch.zeros_like(fan)
        error = target - fan
        by_level = error.sum((0, 1, H)) * terms.pinball
        pinball = (level * by_level).sum() + F.relu(-error).sum() * terms.pinball
        parts[0] = weight * pinball
        torch.sub((error < 0).to(fan.dtype), level[:, None], out=slope)
        slope *= weight * terms.pinball
        if terms.width:
            parts[1] = _add_width(fan, slope, terms)
        if terms.jitter:
            parts[2] = _add_jitter(fan, slope, terms)
        if terms.ramp:
            parts[3] = _add_ramp(fan, slope, terms.ramp)
        in_place = torch.empty_like(slope).scatter_(M, order, slope)
        ctx.save_for_backward(in_place, by_level, pinball, weight)
        ctx.mark_non_differentiable(parts)
        return parts.sum(), parts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        slope, by_level, pinball, weight = ctx.saved_tensors
        return upstream * slope, None, upstream * weight * by_level, upstream * pinball, None


def _add_width(fan: Tensor, slope: Tensor, terms: FanTerms) -> Tensor:
    """How far the fan is wider than the cap; the slope gets the term's."""
    cap = terms.width_cap * terms.scale
    width = fan.index_select(M, terms.high) - fan.index_select(M, terms.low)
    excess = width / cap - 1
    push = (excess > 0) * (terms.width / cap)
    slope.index_add_(M, terms.high, push).index_add_(M, terms.low, -push)
    return terms.width * F.relu(excess).sum()


def _add_jitter(fan: Tensor, slope: Tensor, terms: FanTerms) -> Tensor:
    """How much the fan flutters around its median from step to step."""
    step = (fan - fan.index_select(M, terms.middle)).diff(dim=H)
    jitter = (step.abs().sum((M, H), keepdim=True) / terms.scale).sum()
    push = step.sign_().mul_(terms.jitter / terms.scale)
    _add_steps(slope, push)
    # Whatever moves all others against the median moves the median the other way.
    total = push.sum(M, keepdim=True)
    slope.index_add_(M, terms.middle, F.pad(total, (0, 1)) - F.pad(total, (1, 0)))
    return terms.jitter * jitter


def _add_ramp(fan: Tensor, slope: Tensor, factor: float) -> Tensor:
    """How much angles move from step to step, the shorter way around."""
    step = wrap(fan.diff(dim=H))
    ramp = step.abs().sum()
    _add_steps(slope, step.sign_().mul_(factor))
    return factor * ramp


def _add_steps(slope: Tensor, push: Tensor) -> None:
    slope[..., 1:] += push
    slope[..., :-1] -= push
