"""The copula: how the levels of tokens in their margins depend on each other.

Tokens are taken in a random order. Each looks at the context and at those before it, all of whose
levels are known by then, and says in which of some equal bins of (0, 1) its own level will be.
"""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from powerphase.models.framework.attention import attended
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import Encoder
from powerphase.models.tactis.margins import perceptron

FIT_NUMBERS = 2**26
"""In a tensor of how well tokens of the context fit those that are drawn: 256 MiB."""


class Seen(NamedTuple):
    """Keys and values of tokens whose levels are known."""

    key: Float[Tensor, "B heads N w"]
    value: Float[Tensor, "B heads N w"]


class Copula(nn.Module):
    """An encoder of its own, and one layer of attention from tokens to levels before them.

    Args:
        config: widths.
        n_channels: channels of the grid, C.
        context_steps: steps that are known, T.
        horizon: steps that are asked for, H.
    """

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.horizon, self.n_bins, self.width = horizon, config.copula_bins, config.copula_width
        heads, hidden = range(config.copula_heads), config.copula_hidden
        inner, told = config.copula_heads * config.copula_width, config.width + 1
        self.encoder = Encoder(config, n_channels, context_steps, horizon)
        self.shift = nn.Linear(config.width, inner)
        self.keys = nn.ModuleList(perceptron(told, hidden, self.width) for _ in heads)
        self.values = nn.ModuleList(perceptron(told, hidden, self.width) for _ in heads)
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
        known = self.encoder(past, series, u.shape[2])
        context, (asked, level) = self._context(known, u), self._asked(known, u)
        asked = asked.gather(1, order[..., None].expand(-1, -1, asked.shape[2]))
        level = level.gather(1, order)
        before = self.seen(asked, level)
        key, value = (torch.cat(pair, dim=2) for pair in zip(context, before, strict=True))
        visible = _visible(order.shape[1], context.key.shape[2], order.device)
        query = self._heads(asked)
        found = attended(query, key, value, visible)
        likely = self.log_share(asked, found.transpose(1, 2).flatten(2))
        bins = (level * self.n_bins).long().clamp(0, self.n_bins - 1)
        chosen = likely.gather(2, bins[..., None])[..., 0]
        return (chosen + log(self.n_bins))[:, 1:].sum(1)

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
            u: their levels.
            order: in which tokens are drawn.
            noise: uniform, for each token in the order of drawing.
        """
        series = torch.arange(past.shape[1], device=past.device)[None]
        known = self.encoder(past, series, past.shape[2] + self.horizon)
        asked = known[:, :, -self.horizon :].flatten(1, 2)[:, order]
        query = self._heads(asked)[0]
        fit, told = self._summary(query, self._context(known, u))
        size = (query.shape[0], noise.shape[1], *query.shape[1:])
        key, value = query.new_empty(size), query.new_empty(size)
        level = noise.clone()
        for k in range(len(order)):
            here = asked[:, k : k + 1].repeat(1, noise.shape[1], 1)
            if k > 0:
                found = _found(query[:, k], fit[:, k], told[:, k], key[:, :, :k], value[:, :, :k])
                level[k] = _level(self.log_share(here, found[None])[0].exp(), noise[k])
            made = self.seen(here, level[None, k])
            key[:, :, k], value[:, :, k] = made.key[0], made.value[0]
        drawn = torch.empty_like(level)
        drawn[order] = level
        return drawn

    def seen(self, known: Float[Tensor, "B N width"], u: Float[Tensor, "B N"]) -> Seen:
        """Keys and values of tokens with these levels."""
        told = torch.cat([known, u[..., None]], dim=2)
        parts = (torch.stack([make(told) for make in each], 1) for each in (self.keys, self.values))
        return Seen(*parts)

    def log_share(
        self, asked: Float[Tensor, "B N width"], found: Float[Tensor, "B N inner"]
    ) -> Float[Tensor, "B N bins"]:
        """How likely each bin is, from what a token knows and what it found at others."""
        inner = self.norms[0](self.shift(asked) + found)
        inner = self.norms[1](inner + self.feed(inner))
        made: Tensor = self.bins(inner)
        return made.to(torch.promote_types(made.dtype, torch.float32)).log_softmax(2)

    def _heads(self, asked: Float[Tensor, "B N width"]) -> Float[Tensor, "B heads N w"]:
        return self.shift(asked).unflatten(2, (-1, self.width)).transpose(1, 2)

    def _context(self, known: Float[Tensor, "B K steps width"], u: Float[Tensor, "B K n"]) -> Seen:
        steps = known.shape[2] - self.horizon
        return self.seen(known[:, :, :steps].flatten(1, 2), u[:, :, :steps].flatten(1))

    def _asked(
        self, known: Float[Tensor, "B K steps width"], u: Float[Tensor, "B K steps"]
    ) -> tuple[Float[Tensor, "B N width"], Float[Tensor, "B N"]]:
        return known[:, :, -self.horizon :].flatten(1, 2), u[:, :, -self.horizon :].flatten(1)

    def _summary(
        self, query: Float[Tensor, "heads N w"], context: Seen
    ) -> tuple[Float[Tensor, "heads N"], Float[Tensor, "heads N w"]]:
        """The whole context as one token for each query: its fit, and its value.

        It is the same for all paths, so that a draw attends to this one and to what was drawn.
        """
        key, value = context.key[0], context.value[0]
        fits, values = [], []
        at_once = max(1, FIT_NUMBERS // (key.shape[0] * key.shape[1]))
        for part in query.split(at_once, dim=1):
            fit = part @ key.mT / sqrt(self.width)
            fits.append(fit.logsumexp(2))
            values.append(fit.softmax(2) @ value)
        return torch.cat(fits, dim=1), torch.cat(values, dim=1)


def _visible(n_asked: int, n_context: int, device: torch.device) -> Bool[Tensor, "N L"]:
    """The context, and what is earlier in the order."""
    context = torch.ones((n_asked, n_context), dtype=torch.bool, device=device)
    before = torch.ones((n_asked, n_asked), dtype=torch.bool, device=device).tril(-1)
    return torch.cat([context, before], dim=1)


def _found(
    query: Float[Tensor, "heads w"],
    fit: Float[Tensor, " heads"],
    told: Float[Tensor, "heads w"],
    key: Float[Tensor, "heads M k w"],
    value: Float[Tensor, "heads M k w"],
) -> Float[Tensor, "M inner"]:
    """What a token of each path finds at the summary of the context and at those before it."""
    before = (key @ query[:, None, :, None])[..., 0] / sqrt(query.shape[1])
    context = fit[:, None, None].expand(-1, before.shape[1], 1)
    share = torch.cat([context, before], dim=2).softmax(2)
    drawn = (share[:, :, None, 1:] @ value)[:, :, 0]
    return (share[..., :1] * told[:, None] + drawn).transpose(0, 1).flatten(1)


def _level(share: Float[Tensor, "M bins"], noise: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Where the distribution with these shares of equal bins has the level of the noise."""
    n_bins = share.shape[1]
    ends = share.cumsum(1)
    bins = torch.searchsorted(ends, noise[:, None]).clamp(max=n_bins - 1)
    width = share.gather(1, bins).clamp(min=torch.finfo(share.dtype).tiny)
    inside = 1 - (ends.gather(1, bins) - noise[:, None]) / width
    return ((bins + inside.clamp(0, 1)) / n_bins)[:, 0]
