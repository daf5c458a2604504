"""The objective: what the scenarios of a batch are punished for, part by part.

Buses may come in blocks: what each block contributes is added up, and `Objective.losses` adds what
is not of single buses.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.axes import KINDS
from powerphase.models.framework.training import Losses
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.judge import PARTS, Truth, judged, pinball
from powerphase.models.powerforge.kernels.fans import Terms
from powerphase.models.powerforge.kernels.powers import Views
from powerphase.models.powerforge.quantiles import QuantileLaw


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
