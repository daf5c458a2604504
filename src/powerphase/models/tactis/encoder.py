"""The encoder: one token for each channel and step of a window, and attention between tokens.

Attention runs over time within each channel and over series within each step, in turn, on a limited
number of sequences at a time.
"""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework import ops
from powerphase.models.tactis.config import TactisConfig

SLOWEST = 10_000.0
"""Period of the slowest wave of the time encoding [steps / 2π], approximately."""

FEW_KEYS = 32
"""Up to this many keys, plain matrix products are faster than a fused attention kernel."""

PART_NUMBERS = 2**26
"""Numbers in the queries, keys and values of the sequences of one part: 256 MiB. The limit also
keeps the number of long sequences below the 65,535 that a GPU's kernel accepts."""


class Scale(NamedTuple):
    """Offset and divisor of each channel of each window."""

    mean: Float[Tensor, "B K"]
    deviation: Float[Tensor, "B K"]

    def normalise(self, values: Float[Tensor, "B steps K"]) -> Float[Tensor, "B K steps"]:
        """The values less the mean, divided by the deviation, channel by channel."""
        return ((values - self.mean[:, None]) / self.deviation[:, None]).mT


def context_scale(past: Float[Tensor, "B T K"], least: float) -> Scale:
    """Mean and unbiased standard deviation of each channel's context; `least` bounds the latter."""
    mean = past.mean(1)
    size = torch.linalg.vector_norm(past - mean[:, None], dim=1) / sqrt(past.shape[1] - 1)
    return Scale(mean, size.clamp(min=least))


class Tokens(nn.Module):
    """Embeds each token: its value, its series, whether it is observed, and its time.

    Args:
        config: widths.
        n_channels: channels of the grid, C.
        context_steps: observed steps, T.
        horizon: steps to forecast, H.
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
        self.register_buffer("waves", _time_encoding(len(steps), config.width), persistent=False)

    def forward(
        self, past: Float[Tensor, "B K T"], series: Int[Tensor, "B K"]
    ) -> Float[Tensor, "B K steps width"]:
        """The tokens of normalised contexts and of the horizons that follow them."""
        n_steps = len(self.known)
        value = nn.functional.pad(past, (0, n_steps - past.shape[2]))
        embedding = self.series(series)[:, :, None].expand(-1, -1, n_steps, -1)
        known = self.known.expand_as(value)
        features = torch.cat([value[..., None], embedding, known[..., None]], dim=3)
        tokens = self.second(self.first(features).relu()).relu()
        return sqrt(tokens.shape[3]) * tokens + self.waves


def _time_encoding(n_steps: int, width: int) -> Float[Tensor, "steps width"]:
    """Sines and cosines of the step, the fastest first."""
    speed = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-log(SLOWEST) / width))
    angle = torch.arange(n_steps, dtype=torch.float64)[:, None] * speed
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1).float()


class AttentionLayer(nn.Module):
    """A transformer layer: one attention head, then a feed-forward network, each post-normalised.

    Args:
        width: numbers in a token.
        hidden: width of the feed-forward network.
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
        self, tokens: Float[Tensor, "N L width"], n_queries: int
    ) -> Float[Tensor, "N queries width"]:
        """The layer's output for the last `n_queries` tokens, which attend to all of them."""
        weight, bias = self.project.weight, self.project.bias
        # For a strided tensor, PyTorch's rounding depends on whether the weights need gradients.
        last = tokens[:, tokens.shape[1] - n_queries :].contiguous()
        query = F.linear(last, weight[: self.width], bias[: self.width])
        keys_and_values = F.linear(tokens, weight[self.width :], bias[self.width :])
        key, value = keys_and_values.split(self.width, dim=2)
        last = self.norms[0](last + self.attended(attend(query, key, value)))
        return self.norms[1](last + self.second(self.first(last).relu()))


def attend(
    query: Float[Tensor, "N queries width"],
    key: Float[Tensor, "N L width"],
    value: Float[Tensor, "N L width"],
) -> Float[Tensor, "N queries width"]:
    """Scaled dot-product attention with one head."""
    if key.shape[1] <= FEW_KEYS:
        fit = torch.bmm(query, key.mT) / sqrt(query.shape[2])
        return torch.bmm(fit.softmax(2), value)
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return ops.attend(query, key, value).squeeze(1)


def attend_over_time(
    layer: nn.Module,
    tokens: Float[Tensor, "B K steps width"],
    n_steps: int,
    at_once: int | None = None,
) -> Float[Tensor, "B K n width"]:
    """The layer within each channel, for its last `n_steps` steps."""
    output = _apply_in_parts(layer, tokens.flatten(0, 1), n_steps, at_once)
    return output.unflatten(0, tokens.shape[:2])


def attend_over_series(
    layer: nn.Module, tokens: Float[Tensor, "B K steps width"], at_once: int | None = None
) -> Float[Tensor, "B K steps width"]:
    """The layer within each step, across channels."""
    by_step = tokens.transpose(1, 2)
    output = _apply_in_parts(layer, by_step.flatten(0, 1), tokens.shape[1], at_once)
    return output.unflatten(0, by_step.shape[:2]).transpose(1, 2)


def _apply_in_parts(
    layer: nn.Module,
    tokens: Float[Tensor, "N L width"],
    n_queries: int,
    at_once: int | None,
) -> Float[Tensor, "N queries width"]:
    """The layer on all sequences, a part at a time: sequences are independent of each other."""
    per_sequence = 3 * tokens.shape[1] * tokens.shape[2]
    bound = max(1, PART_NUMBERS // per_sequence)
    at_once = min(at_once or bound, bound)
    if at_once >= len(tokens):
        return layer(tokens, n_queries)
    return torch.cat([layer(part, n_queries) for part in tokens.split(at_once)])


class Encoder(nn.Module):
    """Tokens, then attention over time and over series in turn.

    Args:
        config: widths and number of layers.
        n_channels: channels of the grid, C.
        context_steps: observed steps, T.
        horizon: steps to forecast, H.
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
        n_steps: int,
        at_once: int | None = None,
    ) -> Float[Tensor, "B K n width"]:
        """The encoded tokens of the last `n_steps` steps.

        The last two layers compute only these steps, since nothing reads the others.

        Args:
            past: normalised contexts.
            series: channel numbers of the contexts.
            n_steps: steps to encode, n.
            at_once: sequences per part; None for as many as keep memory small.
        """
        tokens: Tensor = self.tokens(past, series)
        layers_left = len(self.in_time)
        for in_time, in_series in zip(self.in_time, self.in_series, strict=True):
            layers_left -= 1
            steps = tokens.shape[2] if layers_left else n_steps
            tokens = attend_over_time(in_time, tokens, steps, at_once)
            tokens = attend_over_series(in_series, tokens, at_once)
        return tokens
