"""Multiple choice: of several hypotheses, how much each has to learn from a truth.

With `relaxed` shares all but the winner have a small one; `annealed` ones go by the distance, at a
temperature that falls from epoch to epoch until the winner has it all; with `plain` it has it all
from the beginning.
"""

from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.models.framework.training_config import TrainingConfig

Objective = Literal["relaxed", "annealed", "plain"]


@runtime_checkable
class Choosing(Protocol):
    """What a config says of it."""

    @property
    def objective(self) -> Objective:
        """How much of the loss is the winner's: nearly all, ever more, or all."""

    @property
    def slack(self) -> float:
        """Of the relaxed loss, the share of all hypotheses but the winner."""

    @property
    def temperature(self) -> float:
        """At which annealing begins."""

    @property
    def cooling(self) -> float:
        """What an epoch does to the temperature."""

    @property
    def least_temperature(self) -> float:
        """Below it, the winner takes all."""

    @property
    def training(self) -> TrainingConfig:
        """Says how long an epoch is."""


def temperature(steps: Int[Tensor, ""], config: Choosing) -> Float[Tensor, ""]:
    """That of the epoch in which the next step is, after so many, on the device."""
    epoch = steps.div(config.training.batches_per_epoch, rounding_mode="floor")
    return config.temperature * torch.pow(config.cooling, epoch.double())


def shares(
    distance: Float[Tensor, "R M"],
    winner: Int[Tensor, "R 1"],
    temperature: Float[Tensor, ""],
    config: Choosing,
) -> Float[Tensor, "R M"]:
    """The weight of each hypothesis in the loss; no gradient goes through it."""
    distance = distance.detach()
    lost = config.slack if config.objective == "relaxed" else 0.0
    each = torch.full_like(distance, lost / (distance.shape[1] - 1))
    each.scatter_(1, winner, 1 - lost)
    if config.objective != "annealed":
        return each
    found = temperature.to(distance)
    soft = torch.softmax(-distance / found, dim=1)
    return torch.where(found < config.least_temperature, each, soft)
