"""Three linear heads as one: from a scaled context to trends, seasons and logits.

A trend head looks at the moving average of the context, a season head at what is left of it. Both
are linear, so the average can be taken of the weights, once a step, in place of every context.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.timeprism.config import TimePrismConfig

ALIGNED_ROWS = 16
"""What a GPU's matrix products like: results that are whole multiples of so many numbers."""


class Folded(NamedTuple):
    """One linear map in place of all heads: trends, seasons, logits, and zeros that fill it up.

    A hypothesis is the sum of a trend and a season, so what seasons have in common can be the
    trends'. Here it is: distances of sums come from products, which lose digits on what is common.
    """

    weight: Float[Tensor, "J T"]
    bias: Float[Tensor, " J"]


class Heads(nn.Module):
    """The heads that all channels share, and all the parameters that there are.

    Args:
        config: the number of hypotheses, and the steps of the moving average.
        context_steps: steps that the heads see, T.
        horizon: steps that they forecast, H.
    """

    def __init__(self, config: TimePrismConfig, context_steps: int, horizon: int) -> None:
        super().__init__()
        self.average_steps, self.horizon = config.average_steps, horizon
        self.trend = nn.Linear(context_steps, config.trends * horizon)
        self.season = nn.Linear(context_steps, config.seasons * horizon)
        self.logit = nn.Linear(context_steps, config.hypotheses)

    def folded(self) -> Folded:
        """The same as one map of the context itself, with gradients."""
        season = self.season.weight
        weights = [
            averaged_back(self.trend.weight, self.average_steps),
            season - averaged_back(season, self.average_steps),
            self.logit.weight,
        ]
        biases = [head.bias[:, None] for head in (self.trend, self.season, self.logit)]
        weight, bias = (self._centred(parts) for parts in (weights, biases))
        return Folded(weight, bias[:, 0])

    def _centred(self, parts: list[Tensor]) -> Float[Tensor, "J K"]:
        """The rows of all heads, with the mean of all seasons moved to the trends."""
        trend, season = (part.unflatten(0, (-1, self.horizon)) for part in parts[:2])
        common = season.mean(0)
        moved = ((trend + common).flatten(0, 1), (season - common).flatten(0, 1))
        rows = torch.cat([*moved, parts[2]])
        return F.pad(rows, (0, 0, 0, -len(rows) % ALIGNED_ROWS))


def averaged_back(weight: Float[Tensor, "J T"], steps: int) -> Float[Tensor, "J T"]:
    """The weights that do to a series what these do to its moving average.

    That is the mean of so many steps around each; beyond the ends, the last value goes on.
    """
    half, length = steps // 2, weight.shape[1]
    reached = F.avg_pool1d(F.pad(weight, (2 * half, 2 * half)), steps, stride=1)
    first, inner, last = reached.split([half + 1, length - 2, half + 1], dim=1)
    return torch.cat([first.sum(1, keepdim=True), inner, last.sum(1, keepdim=True)], dim=1)
