"""The training objective: quantile levels, the loss of scenarios with its gradient, and its terms.

The forward pass computes the scenarios, their loss and its gradient along the head outputs, and
discards the scenarios. The head outputs are small, so their gradient is what is kept, and the
backward pass only multiplies it.

Buses may come in blocks: the contributions of all blocks are summed, and `Objective.losses` adds
the terms that do not belong to single buses.
"""

from dataclasses import dataclass
from functools import cache
from math import expm1, inf, log
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.models.framework.kernels import product_dtype
from powerphase.models.framework.network import Losses
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import HeadOutputs
from powerphase.models.powerforge.kernels.bridge_inputs import make_bridge_inputs, power_gradients
from powerphase.models.powerforge.kernels.pinball import gate_loss, power_loss
from powerphase.models.powerforge.kernels.pinball_torch import LossSums, LossTerms

NODES = 24
"""Gauss-Legendre nodes between two neighbouring points of the grid."""

CROWDING = 8
"""Power that concentrates the nodes at 0 and 1, where a Beta density may be infinite."""


class QuantileLaw(nn.Module):
    """The quantile levels τ_m = F(u_m), where u is an even grid and F that of Beta(α, β).

    Training starts at α = β = 1, where τ = u. The integral is a sum of Gauss-Legendre pieces
    between neighbouring points of the grid, so that τ increases for any α and β. With x = sin²φ the
    density is 2 sin^(2α−1)φ cos^(2β−1)φ; with φ ∝ s⁸ in the first piece, and likewise in the last,
    it is smooth.
    """

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        self._mean_weight = config.law_mean_weight
        self._concentration_weight = config.law_concentration_weight
        self.raw = nn.Parameter(torch.full((2,), log(expm1(1.0))))
        grid = np.linspace(config.lowest_level, config.highest_level, config.scenarios)
        border = np.arcsin(np.sqrt(np.concatenate([[0.0], grid, [1.0]])))
        node, weight = (part / 2 for part in np.polynomial.legendre.leggauss(NODES))
        node, width = node + 0.5, np.diff(border)[:, None]
        angle, weight = border[:-1, None] + width * node, width * weight
        sine, cosine = np.sin(angle), np.cos(angle)
        edge = width[[0, -1]] * node**CROWDING  # angles from 0, and from the other end
        sine[[0, -1]] = np.sin(edge[0]), np.cos(edge[1])
        cosine[[0, -1]] = np.cos(edge[0]), np.sin(edge[1])
        weight[[0, -1]] *= CROWDING * node ** (CROWDING - 1)
        for name, values in (
            ("_log_sine", np.log(sine)),
            ("_log_cosine", np.log(cosine)),
            ("_weight", weight),
        ):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def shape(self) -> Float[Tensor, " 2"]:
        """α and β."""
        return F.softplus(self.raw)

    def levels(self) -> Float[Tensor, " M"]:
        """τ_1 < … < τ_M."""
        alpha, beta = self.shape.double()
        density = (2 * alpha - 1) * self._log_sine + (2 * beta - 1) * self._log_cosine
        piece = (density.exp() * self._weight).sum(1)
        total = piece.cumsum(0)
        return (total[:-1] / total[-1]).to(self.raw.dtype)

    def weights(self) -> Float[Tensor, " M"]:
        """The scenarios' weights: each represents the levels that are nearest to its own."""
        level = self.levels().double()
        between = (level[1:] + level[:-1]) / 2
        border = torch.cat([level.new_zeros(1), between, level.new_ones(1)])
        return border.diff().to(self.raw.dtype)

    def prior(self) -> Float[Tensor, ""]:
        """The Beta prior: the penalty for moving mean and concentration from their start."""
        alpha, beta = self.shape
        mean, concentration = alpha / (alpha + beta), alpha + beta
        return (
            self._mean_weight * (mean - 0.5).square()
            + self._concentration_weight * (concentration / 2).log().square()
        )


PARTS = ("pinball", "width", "jitter", "angle", "voltage")


class Truth(NamedTuple):
    """The reference day, to which residuals are added, and the target."""

    day: Float[Tensor, "4 B H N"]
    target: Float[Tensor, "4 B H N"]


def scenario_loss(
    heads: HeadOutputs,
    level: Float[Tensor, " M"],
    weight: Float[Tensor, " 4"],
    truth: Truth,
    terms: LossTerms,
    fast: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
    """The loss of the scenarios, and its parts.

    Gradients go to the head outputs, to the levels and to the kinds' weights, whose values are in
    `terms` too; the parts are for the log.
    """
    apply: Any = _ScenarioLoss.apply
    loss, parts = apply(*heads[:-1], level, weight, heads.noise, truth, terms, fast)
    return loss, parts


@torch.no_grad()
def pinball_loss(
    heads: HeadOutputs, truth: Truth, terms: LossTerms, fast: bool
) -> Float[Tensor, ""]:
    """The pinball loss alone, without gradients."""
    power, _ = power_loss(heads, *truth, terms, None, fast)
    gate, _ = gate_loss(heads, bridge_outputs(heads, fast), *truth, terms, False, fast)
    of_power = _pinball_by_kind(power, terms.weight[:2], terms)
    return of_power.sum() + _pinball_by_kind(gate, terms.weight[2:], terms).sum()


@torch.no_grad()
def residuals(heads: HeadOutputs, fast: bool) -> list[Float[Tensor, "B M H W"]]:
    """The residuals of all scenarios by kind."""
    bridge = bridge_outputs(heads, fast)
    powers = [heads.trajectory(source) for source in range(2)]
    return powers + [heads.bound[kind] * heads.open_gate(bridge, kind) for kind in range(2)]


def bridge_outputs(heads: HeadOutputs, fast: bool) -> Float[Tensor, "2 B M H W"]:
    """What the bridge adds to the gates of V and θ."""
    return _apply_maps(heads.gate_maps, make_bridge_inputs(heads, heads.power.dtype, fast)[0])


class _ScenarioLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        *head_tensors, _, weight, noise, truth, terms, fast = inputs
        heads = HeadOutputs._make([*head_tensors, noise])
        dtype = product_dtype(heads.power)
        with torch.autocast(heads.power.device.type, enabled=False):
            bridge_inputs, attention = make_bridge_inputs(heads, dtype, fast)
            bridge = _apply_maps(heads.gate_maps, bridge_inputs)
            day, target = truth
            power_sums, grad_power = power_loss(heads, day, target, terms, dtype, fast)
            gate_sums, grad_gate = gate_loss(heads, bridge, day, target, terms, True, fast)
            assert grad_power is not None
            assert grad_gate is not None
            # The loss has overwritten the bridge's output by its gradient.
            gradients = _gradients(
                heads, bridge_inputs, attention, bridge, grad_power, grad_gate, fast
            )
        sums = LossSums(*(torch.cat(pair) for pair in zip(power_sums, gate_sums, strict=True)))
        by_kind = _pinball_by_kind(sums, terms.weight, terms)
        regularisers = terms.factors[:4] * torch.stack(
            [sums.width.sum(), sums.jitter.sum(), sums.ramp.sum(), sums.gate.sum()]
        )
        parts = torch.cat([by_kind.sum().reshape(1), regularisers])
        # In the voltage term v² / 2 Δ_V², only the divisor is detached, so Δ_V has a gradient here.
        grad_bound = gate_sums.bound.clone()
        grad_bound[0] += 2 * regularisers[3] / heads.bound[0]
        grad_level = (terms.weight * sums.error).sum(0)
        ctx.save_for_backward(*gradients, grad_bound, grad_level, by_kind / weight)
        ctx.mark_non_differentiable(parts)
        return parts.sum(), parts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *torch._foreach_mul(ctx.saved_tensors, upstream), *[None] * 4


def _pinball_by_kind(
    sums: LossSums, weight: Float[Tensor, "K M"], terms: LossTerms
) -> Float[Tensor, " K"]:
    return sums.overshoot + (weight * terms.level * sums.error).sum(1)


def _apply_maps(
    maps: Float[Tensor, "2 I J"], vectors: Float[Tensor, "2 B M J W"], out: Tensor | None = None
) -> Float[Tensor, "2 B M I W"]:
    """Both kinds' maps, applied for every window and scenario."""
    _, windows, scenarios, _, width = vectors.shape
    if out is None:
        out = vectors.new_empty(2, windows, scenarios, maps.shape[1], width)
    maps = maps.to(vectors.dtype)
    for kind in range(2):
        # An expanded view: all windows and scenarios share one map without copies.
        map_ = maps[kind].expand(windows * scenarios, -1, -1)
        torch.bmm(map_, vectors[kind].flatten(0, 1), out=out[kind].flatten(0, 1))
    return out


def _gradients(
    heads: HeadOutputs,
    bridge_inputs: Float[Tensor, "2 B M RR W"],
    attention: Float[Tensor, "2 B M W"],
    grad_bridge: Float[Tensor, "2 B M H W"],
    grad_trajectory: Float[Tensor, "2 B M H W"],
    grad_gate: Float[Tensor, "B 2 HHH1 W"],
    fast: bool,
) -> list[Tensor]:
    """Gradients of the head outputs but bound and noise; they overwrite the bridge's inputs."""
    steps, rows = heads.gate_table.shape[1], heads.gate_maps.shape[2] // 2
    pairs = zip(grad_bridge.flatten(1, 2), bridge_inputs.flatten(1, 2), strict=True)
    products = [torch.bmm(gradient, inputs.mT) for gradient, inputs in pairs]
    by_window = torch.stack(products).unflatten(1, (grad_bridge.shape[1], -1))
    by_scenario = by_window.sum(1, dtype=heads.gate_maps.dtype)  # 2 M H RR
    # The rows of ones, times the attention weights of P and of Q, sum to one.
    grad_gate_table = (by_scenario[..., steps] + by_scenario[..., rows + steps]).mT
    grad_inputs = _apply_maps(heads.gate_maps.mT, grad_bridge, out=bridge_inputs)
    through_power = power_gradients(heads, attention, grad_inputs, grad_trajectory, grad_gate, fast)
    return [
        through_power.power,
        grad_gate,
        through_power.power_table,
        grad_gate_table,
        through_power.direction_table,
        through_power.logit.sum((0, 1, 3)),
        by_scenario.sum(1),
    ]


@dataclass(frozen=True)
class Counts:
    """The sizes of a whole batch, by which sums over its blocks are divided."""

    windows: int
    buses: int
    scenarios: int
    steps: int

    @property
    def points(self) -> int:
        """Points of one kind: windows × buses × steps."""
        return self.windows * self.buses * self.steps

    @property
    def ramps(self) -> int:
        """Steps of one kind: windows × buses × pairs of neighbouring steps."""
        return self.windows * self.buses * max(self.steps - 1, 1)


class Objective(nn.Module):
    """Ordered-quantile loss (or winner-takes-all), physics, and the quantile-fan regularisers."""

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        self.config = config
        self.type_weight = nn.Parameter(torch.ones(KINDS))
        self.is_ordered = config.objective == "ordered-quantile"
        if self.is_ordered:
            self.law = QuantileLaw(config)

    @property
    def bounded_type_weight(self) -> Float[Tensor, " 4"]:
        """ω, the weight of each kind, within its range."""
        return self.type_weight.clamp(*self.config.type_weight_range)

    @torch.no_grad()
    def calibrate(self, volatility: Float[Tensor, " 4"]) -> None:
        """Initialise ω inversely to each kind's volatility, with a mean of 1."""
        inverse = 1 / volatility.clamp(min=self.config.volatility_floor)
        weight = inverse / inverse.mean()
        self.type_weight.copy_(weight.clamp(*self.config.type_weight_range))

    def block_loss(
        self,
        heads: HeadOutputs,
        truth: Truth,
        counts: Counts,
        winner: Float[Tensor, "B M"] | None,
        fast: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
        """The loss contribution of a block of buses, and its parts."""
        weight = self.bounded_type_weight
        level = self.law.levels() if self.is_ordered else weight.new_zeros(counts.scenarios)
        terms = self._terms(truth.target, level.detach(), weight.detach(), counts, winner)
        return scenario_loss(heads, level, weight, truth, terms, fast)

    def losses(self, loss: Float[Tensor, ""], parts: Float[Tensor, " 5"]) -> Losses:
        """The loss and its parts, from the sum of all blocks' contributions."""
        config, regularised = self.config, self.config.quantile_regularisation and self.is_ordered
        enabled = (True, regularised, regularised, config.physics, config.physics)
        pairs = zip(PARTS, parts, enabled, strict=True)
        named = {name: part for name, part, is_enabled in pairs if is_enabled}
        priors = {"types": config.type_weight_penalty * (self.type_weight - 1).square().sum()}
        if self.is_ordered:
            priors["levels"] = self.law.prior()
        else:
            named["winner"] = named.pop("pinball")
        total = loss + torch.stack(list(priors.values())).sum()
        return Losses(total, {**named, **{name: part.detach() for name, part in priors.items()}})

    def crps(
        self, heads: HeadOutputs, truth: Truth, counts: Counts, fast: bool
    ) -> Float[Tensor, ""]:
        """The contribution of a block of buses to the mean CRPS of ordered scenarios.

        2 Σ w_m ρ(z − x_m) at the levels F_m − w_m / 2, with F_m the cumulative weight.
        """
        weight = self.law.weights()
        pinball_weight = (2 * weight / (KINDS * counts.points)).expand(KINDS, -1)
        scale = torch.ones_like(truth.target[:, :, 0])
        factors, nearest = scale.new_ones(5), scale.new_zeros(3, dtype=torch.long)
        level = weight.cumsum(0) - weight / 2
        terms = LossTerms(factors, level, pinball_weight, nearest, scale)
        return pinball_loss(heads, truth, terms, fast)

    def distances(
        self,
        scenarios: list[Float[Tensor, "B M H N"]],
        target: Float[Tensor, "4 B H N"],
        counts: Counts,
    ) -> Float[Tensor, "B M"]:
        """A block's contribution to each scenario's mean absolute error, weighted by ω."""
        pairs = zip(scenarios, target.unsqueeze(2), strict=True)
        by_kind = torch.stack([(z - x).abs().sum((2, 3)) for x, z in pairs], dim=2)  # B M 4
        return (by_kind * self.bounded_type_weight).sum(2) / (KINDS * counts.buses * counts.steps)

    def _terms(
        self,
        target: Float[Tensor, "4 B H N"],
        level: Float[Tensor, " M"],
        weight: Float[Tensor, " 4"],
        counts: Counts,
        winner: Float[Tensor, "B M"] | None,
    ) -> LossTerms:
        # A winner counts once per point; ordered scenarios share that weight among M.
        share = counts.scenarios if self.is_ordered else 1
        count = KINDS * counts.points * share
        pinball_weight = weight[:, None].expand(-1, counts.scenarios) / count
        factors, reference_levels = _constants(self.config, counts, level.device, level.dtype)
        nearest = (level - reference_levels).abs().argmin(1)
        return LossTerms(factors, level, pinball_weight, nearest, self._scale(target), winner)

    def _scale(self, target: Float[Tensor, "4 B H N"]) -> Float[Tensor, "4 B N"]:
        """The standard deviation of each target, by which width and jitter are divided."""
        deviation, floor = target.std(2, correction=0), self.config.deviation_floor
        if self.config.still_channels == "skip":
            # Divided by infinity, their width and jitter are 0, and so are the gradients.
            return deviation.masked_fill(deviation < floor, inf)
        return deviation.clamp(min=floor)


@cache
def _constants(
    config: PowerForgeConfig, counts: Counts, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, " 5"], Float[Tensor, "3 1"]]:
    """The factors of `LossTerms`, and its reference levels; cached on the device."""
    regularised, others = config.quantile_regularisation, max(counts.scenarios - 1, 1)
    values = (
        regularised * config.width_weight / (KINDS * counts.points),
        # The median itself is not counted.
        regularised * config.jitter_weight / (KINDS * counts.ramps * others),
        config.physics * config.angle_weight / (counts.ramps * counts.scenarios),
        config.physics * config.voltage_weight / (counts.points * counts.scenarios),
        config.width_cap,
    )
    reference_levels = [[level] for level in (*config.width_levels, 0.5)]
    factors = torch.tensor(values, device=device, dtype=dtype)
    return factors, torch.tensor(reference_levels, device=device, dtype=dtype)
