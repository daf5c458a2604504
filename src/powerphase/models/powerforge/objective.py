"""The objective: what the scenarios of a batch are punished for, part by part.

Buses may come in blocks: what each block contributes is added up, and `Objective.losses` adds what
is not of single buses.
"""

from dataclasses import dataclass
from functools import cache
from math import expm1, log
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
from powerphase.models.powerforge.kernels.bridge_inputs import Views, hear, power_slopes, trajectory
from powerphase.models.powerforge.kernels.pinball import Sums, Terms, gate_fans, opening, power_fans

NODES = 24
"""Of Gauss and Legendre, between two neighbours of the grid."""

CROWDING = 8
"""Power by which they crowd at 0 and 1, where the density of a Beta law may be infinite."""


class QuantileLaw(nn.Module):
    """τ_m = F(u_m): F is the distribution function of Beta(α, β), u is even.

    It begins with α = β = 1, where τ = u. The integral is a sum of Gauss-Legendre pieces between
    neighbours of the grid, so that τ ascends whatever α and β are. With x = sin²φ the density is
    2 sin^(2α−1)φ cos^(2β−1)φ; with φ ∝ s⁸ in the first piece, and likewise in the last, it is
    smooth.
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
        whole = piece.cumsum(0)
        return (whole[:-1] / whole[-1]).to(self.raw.dtype)

    def weights(self) -> Float[Tensor, " M"]:
        """Of the scenarios: each stands for the levels that are nearest to its own."""
        level = self.levels().double()
        between = (level[1:] + level[:-1]) / 2
        border = torch.cat([level.new_zeros(1), between, level.new_ones(1)])
        return border.diff().to(self.raw.dtype)

    def prior(self) -> Float[Tensor, ""]:
        """The price of moving mean and concentration away from where they began."""
        alpha, beta = self.shape
        mean, concentration = alpha / (alpha + beta), alpha + beta
        return (
            self._mean_weight * (mean - 0.5).square()
            + self._concentration_weight * (concentration / 2).log().square()
        )


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


@dataclass(frozen=True)
class Counts:
    """The size of a whole batch, by which sums over its blocks are divided."""

    windows: int
    buses: int
    scenarios: int
    steps: int

    @property
    def points(self) -> int:
        """Of one kind: windows × buses × steps."""
        return self.windows * self.buses * self.steps

    @property
    def ramps(self) -> int:
        """Of one kind: windows × buses × pairs of neighbouring steps."""
        return self.windows * self.buses * max(self.steps - 1, 1)


class Objective(nn.Module):
    """Ordered quantiles (or the winner takes all), physics, and what keeps the fan in shape."""

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        self.config = config
        self.type_weight = nn.Parameter(torch.ones(KINDS))
        self.is_ordered = config.objective == "ordered-quantile"
        if self.is_ordered:
            self.law = QuantileLaw(config)

    @property
    def bounded_type_weight(self) -> Float[Tensor, " 4"]:
        """ω: how much each kind counts."""
        return self.type_weight.clamp(*self.config.type_weight_range)

    @torch.no_grad()
    def calibrate(self, volatility: Float[Tensor, " 4"]) -> None:
        """Begin with ω inverse to how much each kind moves, at a mean of 1."""
        inverse = 1 / volatility.clamp(min=self.config.deviation_floor)
        weight = inverse / inverse.mean()
        self.type_weight.copy_(weight.clamp(*self.config.type_weight_range))

    def of_block(
        self,
        views: Views,
        truth: Truth,
        counts: Counts,
        chosen: Float[Tensor, "B M"] | None,
        fast: bool,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
        """What the channels of some buses contribute, and its parts."""
        weight = self.bounded_type_weight
        level = self.law.levels() if self.is_ordered else weight.new_zeros(counts.scenarios)
        terms = self._terms(truth.target, level.detach(), weight.detach(), counts, chosen)
        return judged(views, level, weight, truth, terms, fast)

    def losses(self, loss: Float[Tensor, ""], parts: Float[Tensor, " 5"]) -> Losses:
        """The loss and its parts, from what all blocks contribute."""
        config, shaped = self.config, self.config.quantile_regularisation and self.is_ordered
        used = (True, shaped, shaped, config.physics, config.physics)
        found = {name: part for name, part, use in zip(PARTS, parts, used, strict=True) if use}
        own = {"types": config.type_weight_penalty * (self.type_weight - 1).square().sum()}
        if self.is_ordered:
            own["levels"] = self.law.prior()
        else:
            found["winner"] = found.pop("pinball")
        total = loss + torch.stack(list(own.values())).sum()
        return Losses(total, {**found, **{name: part.detach() for name, part in own.items()}})

    def crps(self, views: Views, truth: Truth, counts: Counts, fast: bool) -> Float[Tensor, ""]:
        """What some buses contribute to the mean CRPS of ordered scenarios.

        2 Σ w_m ρ(z − x_m) at the levels F_m − w_m / 2, F the sum of the weights w so far.
        """
        weight = self.law.weights()
        worth = (2 * weight / (KINDS * counts.points)).expand(KINDS, -1)
        scale = torch.ones_like(truth.target[:, :, 0])
        factors, nearest = scale.new_ones(5), scale.new_zeros(3, dtype=torch.long)
        level = weight.cumsum(0) - weight / 2
        return pinball(views, truth, Terms(factors, level, worth, nearest, scale), fast)

    def distances(
        self, made: list[Float[Tensor, "B M H N"]], target: Float[Tensor, "4 B H N"], counts: Counts
    ) -> Float[Tensor, "B M"]:
        """What some buses contribute to each scenario's mean absolute error, kinds weighed."""
        pairs = zip(made, target.unsqueeze(2), strict=True)
        by_kind = torch.stack([(z - x).abs().sum((2, 3)) for x, z in pairs], dim=2)  # B M 4
        return (by_kind * self.bounded_type_weight).sum(2) / (KINDS * counts.buses * counts.steps)

    def _terms(
        self,
        target: Float[Tensor, "4 B H N"],
        level: Float[Tensor, " M"],
        weight: Float[Tensor, " 4"],
        counts: Counts,
        chosen: Float[Tensor, "B M"] | None,
    ) -> Terms:
        # Of a winner, every point counts once; of a fan, M times a little.
        share = counts.scenarios if self.is_ordered else 1
        worth = weight[:, None].expand(-1, counts.scenarios) / (KINDS * counts.points * share)
        scale = target.std(2, correction=0).clamp(min=self.config.deviation_floor)
        factors, wanted = _constants(self.config, counts, level.device, level.dtype)
        nearest = (level - wanted).abs().argmin(1)
        return Terms(factors, level, worth, nearest, scale, chosen)


@cache
def _constants(
    config: PowerForgeConfig, counts: Counts, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, " 5"], Float[Tensor, "3 1"]]:
    """The factors of `Terms` and the levels that it looks for; kept on the device, at hand."""
    shaped, others = config.quantile_regularisation, max(counts.scenarios - 1, 1)
    values = (
        shaped * config.width_weight / (KINDS * counts.points),
        # The median itself does not count.
        shaped * config.jitter_weight / (KINDS * counts.ramps * others),
        config.physics * config.angle_weight / (counts.ramps * counts.scenarios),
        config.physics * config.voltage_weight / (counts.points * counts.scenarios),
        config.width_cap,
    )
    wanted = [[level] for level in (*config.width_levels, 0.5)]
    factors = torch.tensor(values, device=device, dtype=dtype)
    return factors, torch.tensor(wanted, device=device, dtype=dtype)
