"""The attentional copula: the joint distribution of the tokens' levels in their marginals.

Tokens are ordered at random. Each attends to the context and to the tokens before it, whose levels
are known by then, and predicts in which of several equal bins of (0, 1) its level lies.
"""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from powerphase.models.framework.ops import attend
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import Encoder
from powerphase.models.tactis.margins import perceptron

SCORE_NUMBERS = 2**26
"""Attention scores between drawn tokens and tokens of the context in one tensor: 256 MiB."""


class KeysAndValues(NamedTuple):
    """Of tokens whose levels are known."""

    key: Float[Tensor, "B heads N w"]
    value: Float[Tensor, "B heads N w"]


class Copula(nn.Module):
    """A second encoder, and one layer of attention from tokens to the levels before them.

    Args:
        config: widths.
        n_channels: channels of the grid, C.
        context_steps: observed steps, T.
        horizon: steps to forecast, H.
    """

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.horizon, self.n_bins, self.width = horizon, config.copula_bins, config.copula_width
        heads, hidden = range(config.copula_heads), config.copula_hidden
        inner, token = config.copula_heads * config.copula_width, config.width + 1
        self.encoder = Encoder(config, n_channels, context_steps, horizon)
        self.shift = nn.Linear(config.width, inner)
        self.keys = nn.ModuleList(perceptron(token, hidden, self.width) for _ in heads)
        self.values = nn.ModuleList(perceptron(token, hidden, self.width) for _ in heads)
        self.feed = perceptron(inner, hidden, inner)
        self.norms = nn.ModuleList(nn.LayerNorm(inner) for _ in range(2))
        self.bins = perceptron(inner, hidden, self.n_bins)

    def forward(
        self,
        past: Float[Tensor, "B K T"],
        series: Int[Tensor, "B K"],
        u: Float[Tensor, "B K steps"],
        order: Int[Tensor, "B N"],
    ) -> Float[Tensor, " B"]:
        """The log-density of the horizon's levels; the first token of the order is uniform."""
        encoded = self.encoder(past, series, u.shape[2])
        context, (horizon, level) = self._context(encoded, u), self._horizon(encoded, u)
        horizon = horizon.gather(1, order[..., None].expand(-1, -1, horizon.shape[2]))
        level = level.gather(1, order)
        earlier = self.keys_and_values(horizon, level)
        key, value = (torch.cat(pair, dim=2) for pair in zip(context, earlier, strict=True))
        visible = _visibility_mask(order.shape[1], context.key.shape[2], order.device)
        attention = attend(self._queries(horizon), key, value, visible)
        log_probability = self.log_probabilities(horizon, attention.transpose(1, 2).flatten(2))
        bins = (level * self.n_bins).long().clamp(0, self.n_bins - 1)
        of_level = log_probability.gather(2, bins[..., None])[..., 0]
        return (of_level + log(self.n_bins))[:, 1:].sum(1)

    @torch.no_grad()
    def draw(
        self,
        past: Float[Tensor, "1 K T"],
        u: Float[Tensor, "1 K T"],
        order: Int[Tensor, " N"],
        noise: Float[Tensor, "N M"],
    ) -> Float[Tensor, "N M"]:
        """Levels of the horizon's tokens, channel by channel, drawn one after the other.

        Args:
            past: normalised contexts of all channels.
            u: levels of the contexts.
            order: the order in which tokens are drawn.
            noise: uniform, for each token in the order of drawing.
        """
        series = torch.arange(past.shape[1], device=past.device)[None]
        encoded = self.encoder(past, series, past.shape[2] + self.horizon)
        horizon = encoded[:, :, -self.horizon :].flatten(1, 2)[:, order]
        query = self._queries(horizon)[0]
        score, summary = self._summarise_context(query, self._context(encoded, u))
        size = (query.shape[0], noise.shape[1], *query.shape[1:])
        key, value = query.new_empty(size), query.new_empty(size)
        level = noise.clone()
        for k in range(len(order)):
            token = horizon[:, k : k + 1].repeat(1, noise.shape[1], 1)
            if k > 0:
                attention = _attend_to_earlier(
                    query[:, k], score[:, k], summary[:, k], key[:, :, :k], value[:, :, :k]
                )
                probability = self.log_probabilities(token, attention[None])[0].exp()
                level[k] = _quantile(probability, noise[k])
            latest = self.keys_and_values(token, level[None, k])
            key[:, :, k], value[:, :, k] = latest.key[0], latest.value[0]
        by_channel = torch.empty_like(level)
        by_channel[order] = level
        return by_channel

    def keys_and_values(
        self, encoded: Float[Tensor, "B N width"], u: Float[Tensor, "B N"]
    ) -> KeysAndValues:
        """Keys and values of tokens with these levels."""
        tokens = torch.cat([encoded, u[..., None]], dim=2)
        networks = (self.keys, self.values)
        return KeysAndValues(
            *(torch.stack([head(tokens) for head in heads], 1) for heads in networks)
        )

    def log_probabilities(
        self, encoded: Float[Tensor, "B N width"], attention: Float[Tensor, "B N inner"]
    ) -> Float[Tensor, "B N bins"]:
        """The log-probability of each bin, from a token's encoding and its attention output."""
        inner = self.norms[0](self.shift(encoded) + attention)
        inner = self.norms[1](inner + self.feed(inner))
        logits: Tensor = self.bins(inner)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(2)

    def _queries(self, encoded: Float[Tensor, "B N width"]) -> Float[Tensor, "B heads N w"]:
        return self.shift(encoded).unflatten(2, (-1, self.width)).transpose(1, 2)

    def _context(
        self, encoded: Float[Tensor, "B K steps width"], u: Float[Tensor, "B K n"]
    ) -> KeysAndValues:
        steps = encoded.shape[2] - self.horizon
        return self.keys_and_values(encoded[:, :, :steps].flatten(1, 2), u[:, :, :steps].flatten(1))

    def _horizon(
        self, encoded: Float[Tensor, "B K steps width"], u: Float[Tensor, "B K steps"]
    ) -> tuple[Float[Tensor, "B N width"], Float[Tensor, "B N"]]:
        return encoded[:, :, -self.horizon :].flatten(1, 2), u[:, :, -self.horizon :].flatten(1)

    def _summarise_context(
        self, query: Float[Tensor, "heads N w"], context: KeysAndValues
    ) -> tuple[Float[Tensor, "heads N"], Float[Tensor, "heads N w"]]:
        """The whole context as one token for each query: its score and its value.

        The context is the same for all paths, so a draw attends to this summary and to the tokens
        drawn before it.
        """
        key, value = context.key[0], context.value[0]
        scores, values = [], []
        at_once = max(1, SCORE_NUMBERS // (key.shape[0] * key.shape[1]))
        for part in query.split(at_once, dim=1):
            score = part @ key.mT / sqrt(self.width)
            scores.append(score.logsumexp(2))
            values.append(score.softmax(2) @ value)
        return torch.cat(scores, dim=1), torch.cat(values, dim=1)


def _visibility_mask(n_tokens: int, n_context: int, device: torch.device) -> Bool[Tensor, "N L"]:
    """Each token sees the context and the tokens earlier in the order."""
    context = torch.ones((n_tokens, n_context), dtype=torch.bool, device=device)
    earlier = torch.ones((n_tokens, n_tokens), dtype=torch.bool, device=device).tril(-1)
    return torch.cat([context, earlier], dim=1)


def _attend_to_earlier(
    query: Float[Tensor, "heads w"],
    score: Float[Tensor, " heads"],
    summary: Float[Tensor, "heads w"],
    key: Float[Tensor, "heads M k w"],
    value: Float[Tensor, "heads M k w"],
) -> Float[Tensor, "M inner"]:
    """Attention of each path's token to the context's summary and to the tokens before it."""
    earlier = (key @ query[:, None, :, None])[..., 0] / sqrt(query.shape[1])
    context = score[:, None, None].expand(-1, earlier.shape[1], 1)
    weight = torch.cat([context, earlier], dim=2).softmax(2)
    of_earlier = (weight[:, :, None, 1:] @ value)[:, :, 0]
    return (weight[..., :1] * summary[:, None] + of_earlier).transpose(0, 1).flatten(1)


def _quantile(
    probability: Float[Tensor, "M bins"], noise: Float[Tensor, " M"]
) -> Float[Tensor, " M"]:
    """The quantile at the noise's level, of the density that is constant within equal bins."""
    n_bins = probability.shape[1]
    ends = probability.cumsum(1)
    bins = torch.searchsorted(ends, noise[:, None]).clamp(max=n_bins - 1)
    width = probability.gather(1, bins).clamp(min=torch.finfo(probability.dtype).tiny)
    inside = 1 - (ends.gather(1, bins) - noise[:, None]) / width
    return ((bins + inside.clamp(0, 1)) / n_bins)[:, 0]
