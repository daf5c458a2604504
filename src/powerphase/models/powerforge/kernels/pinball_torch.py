"""The loss of ordered scenarios and its gradient along each of them, in plain PyTorch.

Scenarios are sorted at every point, and the m-th in order is the quantile at level τ_m. Each term
of the loss is piecewise linear in the scenarios, so its gradient is computed together with it, and
returned in the original order of the scenarios.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.powerforge.anchor import wrap
from powerphase.models.powerforge.decoder import HeadOutputs

M, H = 1, 2
"""The axes of scenarios and steps in B M H W."""


class LossTerms(NamedTuple):
    """The factors of the loss terms, and the scenarios that enter them."""

    factors: Float[Tensor, " 5"]
    """Factors of width, jitter, the wrapped steps of angles, and the squared voltage gates; and the
    width's cap, in standard deviations."""
    level: Float[Tensor, " M"]
    weight: Float[Tensor, "4 M"]
    """Weight of the pinball loss by kind and rank (position in the order)."""
    nearest: Int[Tensor, " 3"]
    """The ranks whose levels are nearest to the low and the high level and to the median."""
    scale: Float[Tensor, "4 B N"]
    """Standard deviation of the target, by which width and jitter are divided."""
    winner: Float[Tensor, "B M"] | None = None
    """For winner-takes-all: 1 for the winning scenario of each window, 0 for the others."""


class LossSums(NamedTuple):
    """Sums over windows, buses and steps, for two kinds."""

    error: Float[Tensor, "2 M"]
    """Target less scenario, by rank."""
    overshoot: Float[Tensor, " 2"]
    """Weighted excess of scenarios above the target."""
    width: Float[Tensor, " 2"]
    jitter: Float[Tensor, " 2"]
    ramp: Float[Tensor, " 2"]
    """Wrapped steps of angles."""
    gate: Float[Tensor, " 2"]
    """Half the squares of the voltages' tanh gates."""
    bound: Float[Tensor, " 2"]
    """Gradient of the loss along the bounds of voltages and angles."""


def power_loss_torch(
    heads: HeadOutputs, day: Tensor, target: Tensor, terms: LossTerms, dtype: torch.dtype | None
) -> tuple[LossSums, Tensor | None]:
    """The loss sums of P and Q, and with a dtype the gradient along their residuals."""
    windows, scenarios, steps, width = heads.sizes
    size = (2, windows, scenarios, steps, width)
    grad_power = None if dtype is None else heads.power.new_zeros(size, dtype=dtype)
    by_kind = []
    for kind in (P, Q):
        x = heads.trajectory(kind)[..., : day.shape[3]] + day[kind].unsqueeze(M)
        sums, gradient = ordered_loss(x, target[kind], kind, terms)
        by_kind.append([*sums, torch.zeros_like(sums[1]), torch.zeros_like(sums[1])])
        if grad_power is not None:
            grad_power[kind, ..., : day.shape[3]] = gradient
    return _stack_kinds(by_kind), grad_power


def gate_loss_torch(
    heads: HeadOutputs,
    bridge: Tensor,
    day: Tensor,
    target: Tensor,
    terms: LossTerms,
    needs_gradient: bool,
) -> tuple[LossSums, Tensor | None]:
    """The loss sums of V and θ; if needed, gradients, of which the bridge's overwrites it."""
    steps, buses = day.shape[2:]
    grad_gate = torch.zeros_like(heads.gate) if needs_gradient else None
    by_kind = []
    for number, kind in enumerate((V, THETA)):
        gate, bound = heads.open_gate(bridge, number)[..., :buses], heads.bound[number]
        x = bound * gate + day[kind].unsqueeze(M)
        sums, gradient = ordered_loss(wrap(x) if kind == THETA else x, target[kind], kind, terms)
        half_square = gate.square().sum() / 2 if kind == V else torch.zeros_like(sums[1])
        by_kind.append([*sums, half_square, (gradient * gate).sum()])
        if grad_gate is None:
            continue
        gradient = gradient * bound
        if kind == V:
            gradient += terms.factors[3] * gate
        gradient *= 1 - gate.square()
        bridge[number] = F.pad(gradient, (0, bridge.shape[4] - buses))
        grad_gate[:, number, :steps] = bridge[number].sum(M)
    return _stack_kinds(by_kind), grad_gate


def _stack_kinds(by_kind: list[list[Tensor]]) -> LossSums:
    return LossSums(*(torch.stack(pair) for pair in zip(*by_kind, strict=True)))


def ordered_loss(
    x: Float[Tensor, "B M H N"], target: Float[Tensor, "B H N"], kind: int, terms: LossTerms
) -> tuple[list[Tensor], Float[Tensor, "B M H N"]]:
    """The sums of one kind, and the gradient of their loss along each scenario."""
    if terms.winner is not None:
        return _winner_loss(x, target, kind, terms, terms.winner[:, :, None, None])
    ordered, order = x.sort(M)
    error = target.unsqueeze(M) - ordered
    by_rank, weight = error.sum((0, H, 3)), terms.weight[kind]
    overshoot = (F.relu(-error).sum((0, H, 3)) * weight).sum()
    gradient = ((error < 0).to(x.dtype) - terms.level[:, None, None]) * weight[:, None, None]
    scale = terms.scale[kind, :, None, None]  # B 1 1 N
    width = _add_width(ordered, gradient, scale, terms)
    jitter = _add_jitter(ordered, gradient, scale, terms)
    ramp = overshoot.new_zeros(())
    if kind == THETA:
        ramp = _add_ramp(ordered, gradient, terms.factors[2])
    by_scenario = torch.empty_like(gradient).scatter_(M, order, gradient)
    return [by_rank, overshoot, width, jitter, ramp], by_scenario


def _winner_loss(
    x: Tensor, target: Tensor, kind: int, terms: LossTerms, winner: Float[Tensor, "B M 1 1"]
) -> tuple[list[Tensor], Tensor]:
    """The same for winner-takes-all: scenarios are not ordered, and only the winner counts."""
    error, weight = (x - target.unsqueeze(M)) * winner, terms.weight[kind][:, None, None]
    zero = error.new_zeros(())
    distance, gradient = (error.abs() * weight).sum(), error.sign() * weight
    ramp = _add_ramp(x, gradient, terms.factors[2]) if kind == THETA else zero
    return [torch.zeros_like(terms.level), distance, zero, zero, ramp], gradient


def _add_width(ordered: Tensor, gradient: Tensor, scale: Tensor, terms: LossTerms) -> Tensor:
    """The excess of the fan's width over its cap; its gradient is added to `gradient`."""
    low, high, cap = terms.nearest[:1], terms.nearest[1:2], terms.factors[4] * scale
    excess = (ordered.index_select(M, high) - ordered.index_select(M, low)) / cap - 1
    term_gradient = (excess > 0) * (terms.factors[0] / cap)
    gradient.index_add_(M, high, term_gradient).index_add_(M, low, -term_gradient)
    return F.relu(excess).sum()


def _add_jitter(ordered: Tensor, gradient: Tensor, scale: Tensor, terms: LossTerms) -> Tensor:
    """The steps of the fan around its median; their gradient is added to `gradient`."""
    median = terms.nearest[2:]
    step = (ordered - ordered.index_select(M, median)).diff(dim=H)
    jitter = (step.abs().sum((M, H), keepdim=True) / scale).sum()
    term_gradient = step.sign_().mul_(terms.factors[1] / scale)
    _add_difference_gradient(gradient, term_gradient)
    # A force on all others against the median acts on the median in reverse.
    total = term_gradient.sum(M, keepdim=True)
    on_median = F.pad(total, (0, 0, 0, 1)) - F.pad(total, (0, 0, 1, 0))
    gradient.index_add_(M, median, on_median)
    return jitter


def _add_ramp(ordered: Tensor, gradient: Tensor, factor: Tensor) -> Tensor:
    """The steps of angles, wrapped; their gradient is added to `gradient`."""
    step = wrap(ordered.diff(dim=H))
    ramp = step.abs().sum()
    _add_difference_gradient(gradient, step.sign_().mul_(factor))
    return ramp


def _add_difference_gradient(gradient: Tensor, term_gradient: Tensor) -> None:
    gradient[:, :, 1:] += term_gradient
    gradient[:, :, :-1] -= term_gradient
