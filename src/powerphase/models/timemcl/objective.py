"""The objective: how much each hypothesis of a window has to learn from it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timemcl.config import TimeMCLConfig


def shares(
    errors: Float[Tensor, "B M"], steps: Int[Tensor, ""], config: TimeMCLConfig
) -> Float[Tensor, "B M"]:
    """The weight of each hypothesis in the loss, by how far it is from the truth.

    Args:
        errors: of all channels; no gradient goes through the shares.
        steps: of training that were taken before, which fix the temperature.
        config: says how much the winner takes.
    """
    errors = errors.detach()
    winner = F.one_hot(errors.argmin(1), errors.shape[1]).to(errors)
    if config.objective == "relaxed":
        others = config.slack / (errors.shape[1] - 1)
        return others + (1 - config.slack - others) * winner
    if config.objective == "annealed":
        found = temperature(steps, config).to(errors)
        soft = torch.softmax(-errors / found, dim=1)
        return torch.where(found < config.least_temperature, winner, soft)
    return winner


def temperature(steps: Int[Tensor, ""], config: TimeMCLConfig) -> Float[Tensor, ""]:
    """That of the epoch in which the next step is, on the device."""
    epoch = steps.div(config.training.batches_per_epoch, rounding_mode="floor")
    return config.temperature * torch.pow(config.cooling, epoch.double())


def cross_entropy(likely: Float[Tensor, "B M"], won: Float[Tensor, "B M"]) -> Float[Tensor, ""]:
    """Binary cross-entropy of how likely each hypothesis was to win, mean over all.

    As PyTorch's own, but for one thing: numbers that are none are handed on to whoever checks the
    loss, where that one ends the process of a GPU.
    """
    certain = likely.log().clamp(min=-100), (-likely).log1p().clamp(min=-100)
    return -(won * certain[0] + (1 - won) * certain[1]).mean()
