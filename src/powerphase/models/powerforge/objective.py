"""The objective: what the scenarios of a batch are punished for, part by part.

Buses may come in blocks: what each block contributes is added up, and `Objective.losses` adds what
is not of single buses.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from powerphase.axes import KINDS, THETA
from powerphase.models.powerforge.anchor import wrap
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import Deviations
from powerphase.models.powerforge.fans import FanTerms, H, M, fan_loss
from powerphase.models.powerforge.quantiles import QuantileLaw
from powerphase.models.training import Losses

Sums = dict[str, Tensor]
"""`loss`, with gradients; its parts, for reading; and `distance`, where the winner takes all."""


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

    def trajectories(
        self, deviations: Deviations, reference: Float[Tensor, "4 B N H"]
    ) -> list[Float[Tensor, "B N M H"]]:
        """The scenarios themselves by kind, as the decoder numbers them."""
        made = [part + day.unsqueeze(M) for part, day in zip(deviations, reference, strict=True)]
        made[THETA] = wrap(made[THETA])
        return made

    def ordered(self, made: list[Float[Tensor, "B N M H"]]) -> list[Float[Tensor, "B N M H"]]:
        """The scenarios in ascending order at every point, where the objective wants them so."""
        return [part.sort(M).values for part in made] if self.is_ordered else made

    def of_block(
        self,
        deviations: Deviations,
        voltage_bound: Float[Tensor, ""],
        reference: Float[Tensor, "4 B N H"],
        target: Float[Tensor, "4 B N H"],
        counts: Counts,
    ) -> Sums:
        """What the channels of some buses contribute."""
        made = self.trajectories(deviations, reference)
        if self.is_ordered:
            found = self._fans(made, target, counts)
        else:
            found = self._distances(made, target, counts)
        if self.config.physics:
            factor = self.config.voltage_weight / (counts.points * counts.scenarios)
            # Smooth L1 of v / Δ: since |tanh| ≤ 1, only its parabola is ever reached.
            gate = deviations.v.square().sum() / voltage_bound.detach().square() / 2
            found["loss"] = found["loss"] + factor * gate
            found["voltage"] = (factor * gate).detach()
        return found

    def losses(self, sums: Sums) -> Losses:
        """The loss and its parts, from what all blocks contribute."""
        parts = {name: part for name, part in sums.items() if name not in ("loss", "distance")}
        own = {"types": self.config.type_weight_penalty * (self.type_weight - 1).square().sum()}
        if self.is_ordered:
            own["levels"] = self.law.prior()
        else:
            own["winner"] = sums["distance"].amin(1).mean()
        total = sums["loss"] + torch.stack(list(own.values())).sum()
        return Losses(total, {**parts, **{name: part.detach() for name, part in own.items()}})

    def _fans(
        self,
        made: list[Float[Tensor, "B N M H"]],
        target: Float[Tensor, "4 B N H"],
        counts: Counts,
    ) -> Sums:
        level, weight = self.law.levels(), self.bounded_type_weight
        found = [
            fan_loss(made[kind], target[kind], level, weight[kind], terms)
            for kind, terms in enumerate(self._terms(target, level, counts))
        ]
        parts = torch.stack([parts for _, parts in found]).sum(0)
        names = ("pinball", "width", "jitter", "angle")
        used = [True, *[self.config.quantile_regularisation] * 2, self.config.physics]
        kept = {name: part for name, part, use in zip(names, parts, used, strict=True) if use}
        return {"loss": torch.stack([loss for loss, _ in found]).sum(), **kept}

    def _terms(
        self, target: Float[Tensor, "4 B N H"], level: Float[Tensor, " M"], counts: Counts
    ) -> list[FanTerms]:
        """The four kinds' terms; only angles have a ramp."""
        config, others = self.config, max(counts.scenarios - 1, 1)
        shaped = config.quantile_regularisation
        spread = target.std(H, correction=0).clamp(min=config.deviation_floor)
        low, high = (_nearest(level, wanted) for wanted in config.width_levels)
        ramp = self._ramp_factor(counts)
        return [
            FanTerms(
                pinball=1 / (KINDS * counts.points * counts.scenarios),
                width=shaped * config.width_weight / (KINDS * counts.points),
                # The median itself does not count.
                jitter=shaped * config.jitter_weight / (KINDS * counts.ramps * others),
                ramp=ramp if kind == THETA else 0.0,
                scale=spread[kind, :, :, None, None],
                width_cap=config.width_cap,
                low=low,
                high=high,
                middle=_nearest(level, 0.5),
            )
            for kind in range(KINDS)
        ]

    def _distances(
        self,
        made: list[Float[Tensor, "B N M H"]],
        target: Float[Tensor, "4 B N H"],
        counts: Counts,
    ) -> Sums:
        """Mean absolute error of each scenario over all channels, kinds weighed."""
        pairs = zip(made, target.unsqueeze(M), strict=True)
        by_kind = torch.stack([(z - x).abs().sum((1, H)) for x, z in pairs], dim=2)  # B M 4
        scale = KINDS * counts.buses * counts.steps
        found = {"distance": (by_kind * self.bounded_type_weight).sum(2) / scale}
        ramp = by_kind.new_zeros(())
        if self.config.physics:
            ramp = self._ramp_factor(counts) * wrap(made[THETA].diff(dim=H)).abs().sum()
            found["angle"] = ramp.detach()
        return {**found, "loss": ramp}

    def _ramp_factor(self, counts: Counts) -> float:
        if not self.config.physics:
            return 0.0
        return self.config.angle_weight / (counts.ramps * counts.scenarios)


def _nearest(level: Float[Tensor, " M"], wanted: float) -> Int[Tensor, " 1"]:
    return (level.detach() - wanted).abs().argmin().reshape(1)
