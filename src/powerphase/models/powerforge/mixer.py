"""The mixer: all channels of a grid speak to each other through a few tokens.

Channels read from the tokens, the tokens read from the channels, and the channels read once more:
attention at a cost linear in the number of channels. All projections of channels are moved to the
side of the tokens, of which there are few: q·k = (W_q h)·(W_k g) = h·(W_qᵀ W_k g), and the value of
a mean is the mean of the values.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.powerforge.config import PowerForgeConfig


class TokenMixer(nn.Module):
    """Single-head attention between channels and tokens, each step added to what was there."""

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.tokens = nn.Parameter(torch.randn(config.tokens, hidden) / hidden**0.5)
        self.read = Attention(hidden)
        self.write = Attention(hidden)

    def forward(self, state: Float[Tensor, "B C K"]) -> Float[Tensor, "B C K"]:
        """Channels that know of each other."""
        state = self.read.from_few(state, self.tokens.expand(len(state), -1, -1))
        tokens = self.tokens + self.write.from_many(self.tokens, state)
        return self.read.from_few(state, tokens)


class Attention(nn.Module):
    """Scaled dot-product attention, folded for the case that one side is small."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)

    def from_few(
        self, many: Float[Tensor, "B C K"], few: Float[Tensor, "B G K"]
    ) -> Float[Tensor, "B C K"]:
        """Many, each with what it takes from a few."""
        directions = self._scaled(self.key(few)) @ self.query.weight  # B G K
        attention = torch.softmax(torch.bmm(many, directions.mT), dim=-1)
        return torch.baddbmm(many, attention, self.value(few))

    def from_many(
        self, few: Float[Tensor, "G K"], many: Float[Tensor, "B C K"]
    ) -> Float[Tensor, "B G K"]:
        """What each of a few takes from many."""
        directions = self._scaled(self.query(few)) @ self.key.weight  # G K
        attention = torch.softmax(directions @ many.mT, dim=-1)
        return self.value(attention @ many)

    def _scaled(self, vectors: Float[Tensor, "*B G K"]) -> Float[Tensor, "*B G K"]:
        return vectors / vectors.shape[-1] ** 0.5
