"""The head: what each hypothesis expects of every channel, and how likely it is."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Hypotheses(nn.Module):
    """From K numbers to M values of each channel, and M scores.

    Args:
        width: the K numbers.
        n_channels: channels, C.
        count: hypotheses, M.
    """

    def __init__(self, width: int, n_channels: int, count: int) -> None:
        super().__init__()
        bound = 1 / sqrt(width)  # as linear layers begin
        size = (count, n_channels)
        self.weight = nn.Parameter(torch.empty(*size, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*size, 1).uniform_(-bound, bound))
        self.score = nn.Linear(width, count)

    def of_paths(self, known: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P C"]:
        """The values of some hypotheses, each from what is known on its own path."""
        by_path = torch.bmm(known.movedim(1, 0), self.weight[paths].mT)
        return (by_path + self.bias[paths].mT).movedim(0, 1)

    def scores_of_paths(self, known: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P"]:
        """The scores of some hypotheses, each from what is known on its own path."""
        scores = (known * self.score.weight[paths]).sum(2) + self.score.bias[paths]
        return torch.sigmoid(scores)
