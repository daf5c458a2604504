"""The Transformer: contexts are encoded whole, the steps ahead decoded one after the other."""

from math import sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.flows.transformer.layers import DecoderLayer, EncoderLayer, Memory
from powerphase.models.recurrent.inputs import CLOCK_FEATURES, Window
from powerphase.models.recurrent.lags import LagProjection
from powerphase.models.recurrent.rollout import Seen


class State(NamedTuple):
    """What a path may attend to, by layer."""

    contexts: tuple[Memory, ...]
    """Of each window: its paths share it."""
    before: tuple[Memory | None, ...]
    """Of each path: the steps that it has taken."""


class Transformer(nn.Module):
    """From windows to one vector of K numbers for each step ahead.

    Args:
        config: all constants.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        channel_block: how many channels to project at a time.
        condition: width of the linear layer on top, K.
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
        bound = 1 / sqrt(len(config.lags) * n_channels + CLOCK_FEATURES)  # as linear layers begin
        size = (n_channels, context_steps, width, bound, channel_block)
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
        """Steps that the longest lag looks back."""
        return self.past.reach

    def forward(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> Float[Tensor, "B H K"]:
        """What is known before each step of the target, from the context and the steps before."""
        steps = self._inputs(window, clock)
        for layer, context in zip(self.decoder, self._contexts(window, clock), strict=True):
            steps = layer(steps, layer.own.remember(steps), context, causal=True)
        return self.condition(self.decoded_norm(steps))

    def see(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> Seen:
        """Encode contexts once, for all paths."""
        state = State(self._contexts(window, clock), (None,) * len(self.decoder))
        return Seen(state, self._inputs(window, clock), window.scale)

    def spread(self, state: State, n_paths: int) -> State:
        """The same: no path has taken a step yet, and contexts are shared."""
        return state

    def run(
        self, inputs: Float[Tensor, "N 1 width"], state: State
    ) -> tuple[Float[Tensor, "N 1 K"], State]:
        """What each path knows before its next step, and what it may attend to after it."""
        steps, taken = inputs, []
        for layer, context, before in zip(self.decoder, *state, strict=True):
            now = layer.own.remember(steps)
            taken.append(now if before is None else before.extended(now))
            steps = layer(steps, taken[-1], context, causal=False)
        after = state._replace(before=tuple(taken)) if self.decoding == "prefix" else state
        return self.condition(self.decoded_norm(steps)), after

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add to the inputs of the steps ahead, in place, what these values of a step tell them."""
        self.ahead.feed(values, ahead, step)

    def _inputs(
        self, window: Window, clock: Float[Tensor, "B steps 6"]
    ) -> Float[Tensor, "B H width"]:
        """Those of the decoder. They look back no further than the lags do."""
        encoded = window.past.shape[1] - self.reach
        recent = window._replace(past=window.past[:, encoded:])
        return self.ahead.shifted(recent, clock[:, encoded:]) + self.ahead_bias

    def _contexts(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> tuple[Memory, ...]:
        """What each layer of the decoder is told of contexts."""
        encoded = window.past.shape[1] - self.reach
        known = window._replace(target=None)
        steps = self.past.shifted(known, clock[:, :encoded]) + self.past_bias
        for layer in self.encoder:
            steps = layer(steps)
        steps = self.encoded_norm(steps)
        return tuple(layer.cross.remember(steps) for layer in self.decoder)
