"""The Transformer's layers, normalised after each sum, in a form that can go on step by step."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.attention import attended


class Memory(NamedTuple):
    """What can be attended to: keys and values."""

    keys: Float[Tensor, "N heads S size"]
    values: Float[Tensor, "N heads S size"]

    def extended(self, more: "Memory") -> "Memory":
        """With some steps more."""
        keys, values = (torch.cat(pair, dim=2) for pair in zip(self, more, strict=True))
        return Memory(keys, values)


class Attention(nn.Module):
    """Attention with several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        # One matrix for queries, keys and values: how it begins depends on its shape.
        self.into = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * width, width)))
        self.into_bias = nn.Parameter(torch.zeros(3 * width))
        self.out = _linear(width, width)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, asking: Float[Tensor, "N steps width"], memory: Memory, causal: bool = False
    ) -> Float[Tensor, "N steps width"]:
        """What these steps find in a memory; if causal, not in what is later than they are."""
        width = asking.shape[2]
        queries = self._by_head(F.linear(asking, self.into[:width], self.into_bias[:width]))
        dropout = self.dropout if self.training else 0.0
        found = attended(queries, *memory, dropout=dropout, causal=causal)
        return self.out(found.movedim(1, 2).flatten(2))

    def remember(self, steps: Float[Tensor, "N steps width"]) -> Memory:
        """Keys and values of these steps."""
        width = steps.shape[2]
        both = F.linear(steps, self.into[width:], self.into_bias[width:])
        return Memory(*(self._by_head(part) for part in both.chunk(2, dim=2)))

    def _by_head(
        self, steps: Float[Tensor, "N steps width"]
    ) -> Float[Tensor, "N heads steps size"]:
        return steps.unflatten(2, (self.heads, -1)).movedim(2, 1)


class Added(nn.Module):
    """A sum with what was found, normalised."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(dropout), nn.LayerNorm(width)

    def forward(
        self, steps: Float[Tensor, "N steps width"], found: Float[Tensor, "N steps width"]
    ) -> Float[Tensor, "N steps width"]:
        """The sum."""
        return self.norm(steps + self.dropout(found))


class EncoderLayer(nn.Module):
    """All steps attend to all."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.own = Attention(width, heads, dropout)
        self.inner = _feed_forward(width, feed_forward, dropout)
        self.after = nn.ModuleList(Added(width, dropout) for _ in range(2))

    def forward(self, steps: Float[Tensor, "N steps width"]) -> Float[Tensor, "N steps width"]:
        """The steps after it."""
        steps = self.after[0](steps, self.own(steps, self.own.remember(steps)))
        return self.after[1](steps, self.inner(steps))


class DecoderLayer(nn.Module):
    """Steps attend to those before them, and to what was encoded."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.own, self.cross = (Attention(width, heads, dropout) for _ in range(2))
        self.inner = _feed_forward(width, feed_forward, dropout)
        self.after = nn.ModuleList(Added(width, dropout) for _ in range(3))

    def forward(
        self, steps: Float[Tensor, "N steps width"], before: Memory, context: Memory, causal: bool
    ) -> Float[Tensor, "N steps width"]:
        """The steps after it.

        Args:
            steps: of all windows, or one of all paths of all windows.
            before: steps that they attend to, themselves among them.
            context: what was encoded of each window.
            causal: whether some in `before` are later than some of the steps.
        """
        steps = self.after[0](steps, self.own(steps, before, causal))
        # To all paths of a window its context is the same: they ask it as if they were steps.
        asking = steps.reshape(len(context.keys), -1, steps.shape[2])
        found = self.cross(asking, context).reshape(steps.shape)
        steps = self.after[1](steps, found)
        return self.after[2](steps, self.inner(steps))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def _feed_forward(width: int, inner: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        _linear(width, inner), nn.GELU(), nn.Dropout(dropout), _linear(inner, width)
    )
