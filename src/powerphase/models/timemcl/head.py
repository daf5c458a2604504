"""The head: what each hypothesis expects of every channel, and how likely it is."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


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


def squared_errors(
    known: Float[Tensor, "B steps K"],
    values: Float[Tensor, "B steps C"],
    weight: Float[Tensor, "M C K"],
    bias: Float[Tensor, "M C 1"],
) -> Float[Tensor, "B M"]:
    """How far each hypothesis is from some channels: squared, their sum, mean over steps."""
    made = F.linear(known, weight.flatten(0, 1), bias.flatten())
    error = made.unflatten(2, weight.shape[:2]).to(values.dtype).sub_(values.unsqueeze(2))
    # As a norm: squares of their own would be one more tensor of this size.
    return torch.linalg.vector_norm(error, dim=(1, 3)).square() / values.shape[1]
