"""The attentional copula, and the bags of channels that it joins.

The copula is the joint distribution of the tokens' levels in their marginals. Tokens are ordered at
random. Each attends to the context and to the tokens before it, whose levels are known by then, and
predicts in which of several equal bins of (0, 1) its level lies.

Training takes random bags. A forecast draws the first bag by itself. Some of its channels, the
links, are then part of every other bag, whose other channels are drawn given the links. So the bags
are independent of each other given the history and the links, and together they are one joint
distribution of all channels.
"""

from collections.abc import Iterator
from math import log, sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from powerphase.models.framework.ops import attend
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import Encoder
from powerphase.models.tactis.margins import perceptron


class Bags(NamedTuple):
    """Bags of a forecast that are drawn in the same way, independently of each other."""

    known: Int[Tensor, "G known"]
    """Channels of each bag that are drawn before it."""
    new: Int[Tensor, "G new"]
    """Channels that the bag draws."""

    @property
    def channels(self) -> Int[Tensor, "G K"]:
        """All channels of each bag, the known ones first."""
        return torch.cat([self.known, self.new], dim=1)

    def split(self, at_once: int) -> Iterator["Bags"]:
        """So many bags at a time."""
        return map(Bags, self.known.split(at_once), self.new.split(at_once))


class BagNoise(NamedTuple):
    """What is random in the draw of some bags."""

    order: Int[Tensor, "G tokens"]
    """The tokens, counted channel by channel, in the order of drawing: the known ones first."""
    uniform: Float[Tensor, "G new M"]
    """A number for each new token, in the order of drawing, and each path."""


def draw_bags(
    n_windows: int, n_channels: int, size: int, device: torch.device
) -> Int[Tensor, "B K"]:
    """`size` different channels for each window; all sets of channels are equally likely.

    R. Floyd's algorithm, which draws only `size` numbers: the k-th is one of the first
    `n_channels − size + k + 1`, and is replaced by the last of these if it was drawn before.
    """
    size = min(size, n_channels)
    chosen = torch.empty((n_windows, 0), dtype=torch.int64, device=device)
    for last in range(n_channels - size, n_channels):
        candidate = torch.randint(last + 1, (n_windows, 1), device=device)
        repeated = (chosen == candidate).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(repeated, last, candidate)], dim=1)
    return chosen


def forecast_bags(n_channels: int, size: int, links: int, generator: torch.Generator) -> list[Bags]:
    """A random partition of the channels into bags: the first one, and those that are linked to it.

    If too few channels are left for the last bag, it has more links instead.

    Args:
        n_channels: channels of the grid, C.
        size: channels of a bag, K.
        links: channels of the first bag that are in every other bag.
        generator: on the device of the result.
    """
    order = torch.randperm(n_channels, generator=generator, device=generator.device)
    first, rest = order[None, :size], order[size:]
    whole = len(rest) - len(rest) % (size - links)
    groups = (rest[:whole].view(-1, size - links), rest[None, whole:])
    linked = (Bags(first[:, : size - new.shape[1]].expand(len(new), -1), new) for new in groups)
    return [Bags(first[:, :0], first), *(bags for bags in linked if bags.new.numel())]


def draw_noise(
    bags: Bags, horizon: int, n_paths: int, dtype: torch.dtype, generator: torch.Generator
) -> BagNoise:
    """The noise of some bags, drawn one bag after another.

    So the noise of a bag does not depend on which bags are drawn together with it.
    """
    n_known, n_new = (part.shape[1] * horizon for part in bags)
    options: Any = {"generator": generator, "device": generator.device}
    orders, uniforms = [], []
    for _ in bags.new:
        known, new = (torch.randperm(n, **options) for n in (n_known, n_new))
        orders.append(torch.cat([known, n_known + new]))
        uniforms.append(torch.rand((n_new, n_paths), dtype=dtype, **options))
    return BagNoise(torch.stack(orders), torch.stack(uniforms))


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
        horizon = _take(horizon, order)
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
        past: Float[Tensor, "G K T"],
        series: Int[Tensor, "G K"],
        u: Float[Tensor, "G K T"],
        known: Float[Tensor, "G known M"],
        noise: BagNoise,
    ) -> Float[Tensor, "G new M"]:
        """Levels of the new tokens of each bag's horizon, given those of its known tokens.

        Tokens are counted channel by channel.

        Args:
            past: normalised contexts of each bag's channels, the known ones first.
            series: channel numbers of the contexts.
            u: levels of the contexts.
            known: levels of the known channels' tokens.
            noise: the order of drawing, and a uniform number for each new token.
        """
        n_known, encoded = known.shape[1], self.encoder(past, series, u.shape[2] + self.horizon)
        horizon = _take(encoded[:, :, -self.horizon :].flatten(1, 2), noise.order)
        level = torch.cat([_take(known, noise.order[:, :n_known]), noise.uniform], dim=1)
        self._draw_in_order(horizon, level, self._context(encoded, u), n_known)
        order = noise.order[..., None].expand_as(level)
        return torch.empty_like(level).scatter_(1, order, level)[:, n_known:]

    def _draw_in_order(
        self,
        horizon: Float[Tensor, "G N width"],
        level: Float[Tensor, "G N M"],
        context: KeysAndValues,
        n_known: int,
    ) -> None:
        """Replace the uniform numbers after the known levels by draws, one after the other."""
        query = self._queries(horizon)
        score, summary = self._summarise_context(query, context)
        size = (*query.shape[:2], level.shape[2], *query.shape[2:])
        key, value = query.new_empty(size), query.new_empty(size)
        for k in range(level.shape[1]):
            token = horizon[:, k, None].expand(-1, level.shape[2], -1)
            if k >= max(n_known, 1):  # the first token of all is uniform
                of_token = (part[:, :, k] for part in (query, score, summary))
                earlier = (part[..., :k, :] for part in (key, value))
                attention = _attend_to_earlier(*of_token, *earlier)
                probability = self.log_probabilities(token, attention).exp()
                level[:, k] = _quantile(probability, level[:, k])
            key[..., k, :], value[..., k, :] = self.keys_and_values(token, level[:, k])

    def draw_numbers(self, n_channels: int, n_paths: int) -> int:
        """Numbers in the keys and values of a bag of so many channels while it is drawn."""
        return 2 * len(self.keys) * self.width * n_channels * self.horizon * n_paths

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
        self, query: Float[Tensor, "G heads N w"], context: KeysAndValues
    ) -> tuple[Float[Tensor, "G heads N"], Float[Tensor, "G heads N w"]]:
        """The whole context as one token for each query: its score and its value.

        The context is the same for all paths, so a draw attends to this summary and to the tokens
        drawn before it.
        """
        scores, values = [], []
        at_once = max(1, SCORE_NUMBERS // context.key[..., 0].numel())
        for part in query.split(at_once, dim=2):
            score = part @ context.key.mT / sqrt(self.width)
            scores.append(score.logsumexp(3))
            values.append(score.softmax(3) @ context.value)
        return torch.cat(scores, dim=2), torch.cat(values, dim=2)


def _visibility_mask(n_tokens: int, n_context: int, device: torch.device) -> Bool[Tensor, "N L"]:
    """Each token sees the context and the tokens earlier in the order."""
    context = torch.ones((n_tokens, n_context), dtype=torch.bool, device=device)
    earlier = torch.ones((n_tokens, n_tokens), dtype=torch.bool, device=device).tril(-1)
    return torch.cat([context, earlier], dim=1)


def _take(
    values: Float[Tensor, "G N n"], order: Int[Tensor, "G tokens"]
) -> Float[Tensor, "G tokens n"]:
    """What belongs to these tokens of each bag, in this order."""
    return values.gather(1, order[..., None].expand(-1, -1, values.shape[2]))


def _attend_to_earlier(
    query: Float[Tensor, "G heads w"],
    score: Float[Tensor, "G heads"],
    summary: Float[Tensor, "G heads w"],
    key: Float[Tensor, "G heads M k w"],
    value: Float[Tensor, "G heads M k w"],
) -> Float[Tensor, "G M inner"]:
    """Attention of each path's token to the context's summary and to the tokens before it."""
    earlier = (key @ query[:, :, None, :, None])[..., 0] / sqrt(query.shape[2])
    context = score[..., None, None].expand(-1, -1, earlier.shape[2], 1)
    weight = torch.cat([context, earlier], dim=3).softmax(3)
    of_earlier = (weight[..., None, 1:] @ value)[..., 0, :]
    return (weight[..., :1] * summary[:, :, None] + of_earlier).transpose(1, 2).flatten(2)


def _quantile(
    probability: Float[Tensor, "*N bins"], level: Float[Tensor, "*N"]
) -> Float[Tensor, "*N"]:
    """The quantile at a level, of the density that is constant within equal bins."""
    n_bins, level = probability.shape[-1], level[..., None].contiguous()
    ends = probability.cumsum(-1)
    bins = torch.searchsorted(ends, level).clamp(max=n_bins - 1)
    width = probability.gather(-1, bins).clamp(min=torch.finfo(probability.dtype).tiny)
    inside = 1 - (ends.gather(-1, bins) - level) / width
    return ((bins + inside.clamp(0, 1)) / n_bins)[..., 0]
