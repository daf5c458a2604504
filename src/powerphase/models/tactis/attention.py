"""Attention: tokens look at others, over time or over series, some sequences at a time."""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.attention import attended

FEW = 32
"""Up to so many keys, plain matrix products are faster than a kernel made for many."""

PART_NUMBERS = 2**26
"""In the queries, keys and values of the sequences that are worked on together: 256 MiB. It also
keeps their number below the 65,535 that a GPU's kernel takes when sequences are long."""


class AttentionLayer(nn.Module):
    """One head of attention and a small network on each token, both added and normalised after.

    Args:
        width: numbers of a token.
        hidden: of the small network.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        nn.init.zeros_(self.attended.bias)

    def forward(
        self, tokens: Float[Tensor, "N L width"], asked: int
    ) -> Float[Tensor, "N asked width"]:
        """What the last tokens of each sequence become, so many; they look at all of it."""
        weight, bias = self.project.weight, self.project.bias
        # Of a strided tensor, PyTorch rounds the product by whether the weights are being learned.
        own = tokens[:, tokens.shape[1] - asked :].contiguous()
        query = F.linear(own, weight[: self.width], bias[: self.width])
        pair = F.linear(tokens, weight[self.width :], bias[self.width :])
        key, value = pair.split(self.width, dim=2)
        own = self.norms[0](own + self.attended(attend(query, key, value)))
        return self.norms[1](own + self.second(self.first(own).relu()))


def attend(
    query: Float[Tensor, "N asked width"],
    key: Float[Tensor, "N L width"],
    value: Float[Tensor, "N L width"],
) -> Float[Tensor, "N asked width"]:
    """The values by how well their keys fit the query."""
    if key.shape[1] <= FEW:
        fit = torch.bmm(query, key.mT) / sqrt(query.shape[2])
        return torch.bmm(fit.softmax(2), value)
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return attended(query, key, value).squeeze(1)


def over_time(
    layer: nn.Module,
    tokens: Float[Tensor, "B K steps width"],
    asked: int,
    at_once: int | None = None,
) -> Float[Tensor, "B K asked width"]:
    """Each channel's tokens look at its own; of the last steps, so many."""
    found = _in_parts(layer, tokens.flatten(0, 1), asked, at_once)
    return found.unflatten(0, tokens.shape[:2])


def over_series(
    layer: nn.Module, tokens: Float[Tensor, "B K steps width"], at_once: int | None = None
) -> Float[Tensor, "B K steps width"]:
    """The tokens of each step look at each other."""
    by_step = tokens.transpose(1, 2)
    found = _in_parts(layer, by_step.flatten(0, 1), tokens.shape[1], at_once)
    return found.unflatten(0, by_step.shape[:2]).transpose(1, 2)


def _in_parts(
    layer: nn.Module,
    tokens: Float[Tensor, "N L width"],
    asked: int,
    at_once: int | None,
) -> Float[Tensor, "N asked width"]:
    """All sequences, so many at a time: they do not meet."""
    per_sequence = 3 * tokens.shape[1] * tokens.shape[2]
    bound = max(1, PART_NUMBERS // per_sequence)
    at_once = min(at_once or bound, bound)
    if at_once >= len(tokens):
        return layer(tokens, asked)
    return torch.cat([layer(part, asked) for part in tokens.split(at_once)])
