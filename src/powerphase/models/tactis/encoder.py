"""The encoder: what each token knows after it has looked at all others."""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.attention import attended
from powerphase.models.tactis.config import TactisConfig

SLOWEST = 10_000.0
"""Steps over 2π of the slowest wave that tells the time, about."""


class Scale(NamedTuple):
    """By what the channels of windows are shifted and divided."""

    mean: Float[Tensor, "B K"]
    deviation: Float[Tensor, "B K"]

    def normalised(self, values: Float[Tensor, "B steps K"]) -> Float[Tensor, "B K steps"]:
        """The values by their own context, channel by channel."""
        return ((values - self.mean[:, None]) / self.deviation[:, None]).mT


def scale_of(past: Float[Tensor, "B T K"], least: float) -> Scale:
    """Mean and unbiased standard deviation of each channel's context, the latter with a floor."""
    mean = past.mean(1)
    size = torch.linalg.vector_norm(past - mean[:, None], dim=1) / sqrt(past.shape[1] - 1)
    return Scale(mean, size.clamp(min=least))


def draw_bags(
    n_windows: int, n_channels: int, size: int, device: torch.device
) -> Int[Tensor, "B K"]:
    """For each window as many different channels, any set of them as likely as any other.

    By R. Floyd's way, which draws only so many numbers: the k-th is among the first `n_channels −
    size + k + 1`; where it was drawn before, the last of these is taken.
    """
    size = min(size, n_channels)
    chosen = torch.empty((n_windows, 0), dtype=torch.int64, device=device)
    for last in range(n_channels - size, n_channels):
        drawn = torch.randint(last + 1, (n_windows, 1), device=device)
        taken = (chosen == drawn).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(taken, last, drawn)], dim=1)
    return chosen


class Tokens(nn.Module):
    """Makes a vector of each token: its value, whose it is, whether it is known, and when it is.

    Args:
        config: widths.
        n_channels: channels of the grid, C.
        context_steps: steps that are known, T.
        horizon: steps that are asked for, H.
    """

    known: Tensor
    waves: Tensor

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.series = nn.Embedding(n_channels, config.series_embedding)
        self.first = nn.Linear(1 + config.series_embedding + 1, config.width)
        self.second = nn.Linear(config.width, config.width)
        steps = torch.arange(context_steps + horizon)
        self.register_buffer("known", (steps < context_steps).float(), persistent=False)
        self.register_buffer("waves", _waves(len(steps), config.width), persistent=False)

    def forward(
        self, past: Float[Tensor, "B K T"], series: Int[Tensor, "B K"]
    ) -> Float[Tensor, "B K steps width"]:
        """The tokens of normalised contexts and of the horizons after them."""
        n_steps = len(self.known)
        value = nn.functional.pad(past, (0, n_steps - past.shape[2]))
        whose = self.series(series)[:, :, None].expand(-1, -1, n_steps, -1)
        known = self.known.expand_as(value)
        told = torch.cat([value[..., None], whose, known[..., None]], dim=3)
        made = self.second(self.first(told).relu()).relu()
        return sqrt(made.shape[3]) * made + self.waves


def _waves(n_steps: int, width: int) -> Float[Tensor, "steps width"]:
    """Sines and cosines of the step, the fastest first."""
    speed = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-log(SLOWEST) / width))
    turned = torch.arange(n_steps, dtype=torch.float64)[:, None] * speed
    return torch.stack([turned.sin(), turned.cos()], dim=2).flatten(1).float()


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


class Encoder(nn.Module):
    """Tokens, then attention over time and over series in turn.

    Args:
        config: widths and number of layers.
        n_channels: channels of the grid, C.
        context_steps: steps that are known, T.
        horizon: steps that are asked for, H.
    """

    def __init__(
        self, config: TactisConfig, n_channels: int, context_steps: int, horizon: int
    ) -> None:
        super().__init__()
        self.tokens = Tokens(config, n_channels, context_steps, horizon)
        sizes = (config.width, config.feed_forward)
        count = config.encoder_layers
        self.in_time = nn.ModuleList(AttentionLayer(*sizes) for _ in range(count))
        self.in_series = nn.ModuleList(AttentionLayer(*sizes) for _ in range(count))

    def forward(
        self,
        past: Float[Tensor, "B K T"],
        series: Int[Tensor, "B K"],
        asked: int,
        at_once: int | None = None,
    ) -> Float[Tensor, "B K asked width"]:
        """What the tokens of the last steps know, so many of them.

        The last layers are made for these alone: what others would know then, nobody asks.

        Args:
            past: normalised contexts.
            series: which channels they are of.
            asked: steps.
            at_once: sequences that are worked on together; None for as many as keep memory small.
        """
        found: Tensor = self.tokens(past, series)
        left = len(self.in_time)
        for in_time, in_series in zip(self.in_time, self.in_series, strict=True):
            left -= 1
            found = over_time(in_time, found, found.shape[2] if left else asked, at_once)
            found = over_series(in_series, found, at_once)
        return found
