"""The Transformer: contexts are encoded in one pass, the steps ahead decoded one after the other.

Layers are normalised after each residual sum, and a decoder can continue from cached keys and
values. Names of parameters are keys of saved checkpoints: in a layer, `own` is self-attention,
`cross` cross-attention, `inner` the feed-forward network and `after` the residual sums.
"""

from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.flows.config import TransformerTempFlowConfig
from powerphase.models.framework.ops import attend
from powerphase.models.recurrent.config import CLOCK_FEATURES
from powerphase.models.recurrent.encoder import (
    EncodedContext,
    LagProjection,
    Window,
)


class KeyValues(NamedTuple):
    """Keys and values of the steps that can be attended to."""

    keys: Float[Tensor, "N heads S size"]
    values: Float[Tensor, "N heads S size"]

    def append(self, later: "KeyValues") -> "KeyValues":
        """These steps followed by later ones."""
        keys, values = (torch.cat(pair, dim=2) for pair in zip(self, later, strict=True))
        return KeyValues(keys, values)


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        # One matrix for queries, keys and values: its initialisation depends on its shape.
        self.into = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * width, width)))
        self.into_bias = nn.Parameter(torch.zeros(3 * width))
        self.out = _linear(width, width)
        nn.init.zeros_(self.out.bias)

    def forward(
        self, steps: Float[Tensor, "N steps width"], cache: KeyValues, causal: bool = False
    ) -> Float[Tensor, "N steps width"]:
        """Attend from these steps to cached ones; if causal, not to later ones."""
        width = steps.shape[2]
        queries = self._by_head(F.linear(steps, self.into[:width], self.into_bias[:width]))
        dropout = self.dropout if self.training else 0.0
        values = attend(queries, *cache, dropout=dropout, causal=causal)
        return self.out(values.movedim(1, 2).flatten(2))

    def keys_and_values(self, steps: Float[Tensor, "N steps width"]) -> KeyValues:
        """Keys and values of these steps."""
        width = steps.shape[2]
        both = F.linear(steps, self.into[width:], self.into_bias[width:])
        return KeyValues(*(self._by_head(part) for part in both.chunk(2, dim=2)))

    def _by_head(
        self, steps: Float[Tensor, "N steps width"]
    ) -> Float[Tensor, "N heads steps size"]:
        return steps.unflatten(2, (self.heads, -1)).movedim(2, 1)


class ResidualNorm(nn.Module):
    """A residual sum with dropout, then layer normalisation."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(dropout), nn.LayerNorm(width)

    def forward(
        self, steps: Float[Tensor, "N steps width"], residual: Float[Tensor, "N steps width"]
    ) -> Float[Tensor, "N steps width"]:
        """The normalised sum."""
        return self.norm(steps + self.dropout(residual))


class EncoderLayer(nn.Module):
    """Self-attention between all steps, then a feed-forward network."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.own = Attention(width, heads, dropout)
        self.inner = _feed_forward(width, feed_forward, dropout)
        self.after = nn.ModuleList(ResidualNorm(width, dropout) for _ in range(2))

    def forward(self, steps: Float[Tensor, "N steps width"]) -> Float[Tensor, "N steps width"]:
        """The steps after the layer."""
        steps = self.after[0](steps, self.own(steps, self.own.keys_and_values(steps)))
        return self.after[1](steps, self.inner(steps))


class DecoderLayer(nn.Module):
    """Self-attention to earlier steps, cross-attention to the context, feed-forward network."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.own, self.cross = (Attention(width, heads, dropout) for _ in range(2))
        self.inner = _feed_forward(width, feed_forward, dropout)
        self.after = nn.ModuleList(ResidualNorm(width, dropout) for _ in range(3))

    def forward(
        self,
        steps: Float[Tensor, "N steps width"],
        cache: KeyValues,
        context: KeyValues,
        causal: bool,
    ) -> Float[Tensor, "N steps width"]:
        """The steps after the layer.

        Args:
            steps: all steps of each window, or one step of all paths of each window.
            cache: steps that they attend to, including themselves.
            context: the encoded context of each window.
            causal: whether `cache` has steps later than some of `steps`.
        """
        steps = self.after[0](steps, self.own(steps, cache, causal))
        # All paths of a window share its context: they attend to it like steps of one sequence.
        queries = steps.reshape(len(context.keys), -1, steps.shape[2])
        attention = self.cross(queries, context).reshape(steps.shape)
        steps = self.after[1](steps, attention)
        return self.after[2](steps, self.inner(steps))


class DecoderState(NamedTuple):
    """What a path may attend to, by layer."""

    contexts: tuple[KeyValues, ...]
    """Of each window, shared by its paths."""
    previous: tuple[KeyValues | None, ...]
    """Of each path: its earlier steps."""


class Transformer(nn.Module):
    """Maps windows to one vector of K numbers for each step ahead.

    Args:
        config: all settings.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        channel_block: channels to project at a time.
        condition: width of the last linear layer, K.
    """

    decoder: Any
    """A list of `DecoderLayer`."""

    def __init__(
        self,
        config: TransformerTempFlowConfig,
        n_channels: int,
        context_steps: int,
        channel_block: int | None = None,
        condition: int = 100,
    ) -> None:
        super().__init__()
        width, self.decoding = config.width, config.decoding
        # As a linear layer of all inputs would be initialised.
        bound = 1 / sqrt(len(config.lags) * n_channels + CLOCK_FEATURES)
        size = (n_channels, context_steps, width, bound, channel_block, config.lag_inputs)
        self.past, self.ahead = (LagProjection(config.lags, *size) for _ in range(2))
        self.past_bias, self.ahead_bias = (
            nn.Parameter(torch.empty(width).uniform_(-bound, bound)) for _ in range(2)
        )
        layer = (width, config.heads, config.feed_forward, config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*layer) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer) for _ in range(config.layers))
        self.encoded_norm, self.decoded_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.condition = nn.Linear(width, condition)

    @property
    def reach(self) -> int:
        """Longest lag in steps."""
        return self.past.reach

    def forward(self, window: Window, clock: Float[Tensor, "B steps F"]) -> Float[Tensor, "B H K"]:
        """The condition of each step of the target, from the context and the earlier steps."""
        steps = self._decoder_inputs(window, clock)
        for layer, context in zip(self.decoder, self._contexts(window, clock), strict=True):
            steps = layer(steps, layer.own.keys_and_values(steps), context, causal=True)
        return self.condition(self.decoded_norm(steps))

    def encode(self, window: Window, clock: Float[Tensor, "B steps F"]) -> EncodedContext:
        """Encode contexts once, for all paths."""
        state = DecoderState(self._contexts(window, clock), (None,) * len(self.decoder))
        return EncodedContext(state, self._decoder_inputs(window, clock), window.scale)

    def repeat_state(self, state: DecoderState, n_paths: int) -> DecoderState:
        """The same state: paths have no steps yet, and share their context."""
        return state

    def run(
        self, inputs: Float[Tensor, "N 1 width"], state: DecoderState
    ) -> tuple[Float[Tensor, "N 1 K"], DecoderState]:
        """The condition of each path's next step, and the state after it."""
        steps, caches = inputs, []
        for layer, context, previous in zip(self.decoder, *state, strict=True):
            current = layer.own.keys_and_values(steps)
            caches.append(current if previous is None else previous.append(current))
            steps = layer(steps, caches[-1], context, causal=False)
        after = state._replace(previous=tuple(caches)) if self.decoding == "prefix" else state
        return self.condition(self.decoded_norm(steps)), after

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add the contribution of these values of a step to the inputs of later steps, in place."""
        self.ahead.feed(values, ahead, step)

    def _decoder_inputs(
        self, window: Window, clock: Float[Tensor, "B steps F"]
    ) -> Float[Tensor, "B H width"]:
        """Inputs of the decoder, which reach back no further than the lags."""
        encoded = window.past.shape[1] - self.reach
        recent = window._replace(past=window.past[:, encoded:])
        return self.ahead.project_window(recent, clock[:, encoded:]) + self.ahead_bias

    def _contexts(self, window: Window, clock: Float[Tensor, "B steps F"]) -> tuple[KeyValues, ...]:
        """Keys and values of the encoded contexts, for each layer of the decoder."""
        encoded = window.past.shape[1] - self.reach
        context = window._replace(target=None)
        steps = self.past.project_window(context, clock[:, :encoded]) + self.past_bias
        for layer in self.encoder:
            steps = layer(steps)
        steps = self.encoded_norm(steps)
        return tuple(layer.cross.keys_and_values(steps) for layer in self.decoder)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def _feed_forward(width: int, inner: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        _linear(width, inner), nn.GELU(), nn.Dropout(dropout), _linear(inner, width)
    )
