"""The head: what each hypothesis expects of every channel, and how likely it is."""

from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Maps(NamedTuple):
    """The linear maps of all hypotheses to some channels."""

    weight: Float[Tensor, "M C K"]
    bias: Float[Tensor, "M C"]


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
        self.bias = nn.Parameter(torch.empty(*size).uniform_(-bound, bound))
        self.score = nn.Linear(width, count)

    def blocks(self, at_once: int) -> list[Maps]:
        """The maps to some channels after others."""
        parts = zip(self.weight.split(at_once, 1), self.bias.split(at_once, 1), strict=True)
        return [Maps(*part) for part in parts]

    def of_paths(self, known: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P C"]:
        """The values of some hypotheses, each from what is known on its own path."""
        by_path = torch.bmm(known.movedim(1, 0), self.weight[paths].mT)
        return (by_path + self.bias[paths, None]).movedim(0, 1)

    def scores_of_paths(self, known: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P"]:
        """The scores of some hypotheses, each from what is known on its own path."""
        scores = (known * self.score.weight[paths]).sum(2) + self.score.bias[paths]
        return torch.sigmoid(scores)


def squared_errors(
    known: Float[Tensor, "B steps K"], values: Float[Tensor, "B steps C"], maps: Maps
) -> Float[Tensor, "B M"]:
    """How far each hypothesis is from some channels: squared, their sum, mean over steps."""
    made = F.linear(known, maps.weight.flatten(0, 1), maps.bias.flatten())
    error = made.unflatten(2, maps.bias.shape).sub_(values.unsqueeze(2))
    # As a norm: squares of their own would be one more tensor of this size.
    return torch.linalg.vector_norm(error, dim=(1, 3)).square() / values.shape[1]
