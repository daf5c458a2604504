"""The channel encoder, and the global token mixer.

The encoder's first layer reads a channel's residuals four times: raw, and filtered by kernels of 5,
25 and 97 steps. Filters and layer are linear, so together they are one matrix on the raw residuals,
which every step computes from the trained weights. The filtered residuals, four times the data, are
never stored.

The mixer lets all channels exchange information through a few global tokens. Channels read from the
tokens, the tokens read from the channels (write), and the channels read once more: attention at a
cost linear in the number of channels. All projections of channels are applied to the few tokens
instead: q·k = (W_q h)·(W_k g) = h·(W_qᵀ W_k g), and the value of a mean is the mean of the values.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.kernels.encoder_output import normalise_and_embed
from powerphase.models.powerforge.kernels.gating import gated_features

DAY_S, WEEK_S = 86_400, 7 * 86_400

CALENDAR = 4
"""Features of `mean_calendar`."""


class ChannelEncoder(nn.Module):
    """From residuals to a state of K numbers for each channel."""

    def __init__(
        self, config: PowerForgeConfig, n_buses: int, context_steps: int, n_known: int = 0
    ) -> None:
        super().__init__()
        hidden, n_views = config.hidden, 1 + len(config.kernels)
        self.gates = nn.Parameter(torch.zeros(2, 2))
        """The context gates: how much of their bus's P and Q is added to V (first row) and θ."""
        self.filters: Any = nn.ModuleList(
            nn.Conv1d(1, 1, width, padding=width // 2) for width in config.kernels
        )
        self.project = nn.Linear(n_views * context_steps, hidden)
        self.refine = nn.Linear(hidden, hidden)
        self.scale: Any = nn.Sequential(
            nn.Linear(1, config.scale_hidden), nn.GELU(), nn.Linear(config.scale_hidden, hidden)
        )
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.node = nn.Parameter(torch.randn(n_buses, config.node_embedding))
        self.kind = nn.Parameter(torch.randn(KINDS, config.type_embedding))
        self.identity = nn.Linear(config.node_embedding + config.type_embedding, hidden)
        self.calendar = nn.Linear(CALENDAR + n_known, hidden)

    def forward(
        self,
        residual: Float[Tensor, "B 4 T W"],
        size: Float[Tensor, "B 4 N"],
        calendar: Float[Tensor, "B F"],
        fast: bool = False,
    ) -> Float[Tensor, "B 4 N K"]:
        """The states of all channels by kind; `fast` runs Triton kernels, which need a GPU."""
        with torch.autocast(residual.device.type, enabled=False):
            weight, bias = self.linear_map()
        series = residual.flatten(0, 1).mT
        projected = torch.bmm(series, weight.T.expand(len(series), -1, -1))
        inner, _, outer = self.scale
        features = gated_features(
            projected.unflatten(0, (-1, KINDS)),
            size,
            self.gates,
            bias,
            inner.weight,
            inner.bias,
            fast,
        )
        # The scale token is added to the second layer's output: together they are one layer.
        refined = F.linear(features, torch.cat([self.refine.weight, outer.weight], dim=1))
        return normalise_and_embed(
            refined,
            self.refine.bias + outer.bias,
            self.norm.weight,
            self.norm.bias,
            self._identity(),
            self.calendar(calendar),
            self.norm.eps,
            self.dropout.p if self.training else 0.0,
            fast,
        )

    def linear_map(self) -> tuple[Float[Tensor, "K T"], Float[Tensor, " K"]]:
        """Filters and first layer as one linear map of the raw residuals."""
        views = self.project.weight.unflatten(1, (1 + len(self.filters), -1))
        weight, bias = views[:, 0], self.project.bias
        for view, conv in zip(views.unbind(1)[1:], self.filters, strict=True):
            weight = weight + _transpose_filter(view, conv.weight[0, 0])
            bias = bias + view.sum(1) * conv.bias
        return weight, bias

    def _identity(self) -> Float[Tensor, "4 N K"]:
        """The embeddings of bus and kind, projected."""
        n_node = self.node.shape[1]
        weight = self.identity.weight
        of_node = self.node @ weight[:, :n_node].T
        of_kind = self.kind @ weight[:, n_node:].T + self.identity.bias
        return of_node + of_kind[:, None]


def _transpose_filter(
    view: Float[Tensor, "K T"], taps: Float[Tensor, " taps"]
) -> Float[Tensor, "K T"]:
    """The linear map on the raw series that equals `view` on the filtered series.

    A matrix product, because its gradient is deterministic; that of a convolution on a GPU need not
    be.
    """
    reach = len(taps) // 2
    shifted = F.pad(view, (reach, reach)).unfold(1, len(taps), 1)  # K T taps
    return shifted @ taps.flip(0)


def mean_calendar(time: Shaped[np.ndarray, "B T"]) -> Float[Tensor, "B 4"]:
    """Sine and cosine of the times of day and of week (UTC), averaged over each context.

    Over exactly seven days both are constant, as in the paper; over other contexts they vary.
    """
    second = time.astype("datetime64[s]").astype(np.int64)
    angles = [2 * np.pi * (second % period) / period for period in (DAY_S, WEEK_S)]
    waves = [wave(angle).mean(1) for angle in angles for wave in (np.sin, np.cos)]
    return torch.from_numpy(np.stack(waves, axis=1))


class TokenMixer(nn.Module):
    """Single-head attention between channels and global tokens, with residual connections."""

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.tokens = nn.Parameter(torch.randn(config.tokens, hidden) / hidden**0.5)
        self.read = Attention(hidden)
        self.write = Attention(hidden)

    def forward(self, state: Float[Tensor, "B C K"]) -> Float[Tensor, "B C K"]:
        """The states after the channels have exchanged information."""
        state = self.read.few_to_many(state, self.tokens.expand(len(state), -1, -1))
        tokens = self.tokens + self.write.many_to_few(self.tokens, state)
        return self.read.few_to_many(state, tokens)


class Attention(nn.Module):
    """Scaled dot-product attention whose projections are applied to the smaller side."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden, bias=False)

    def few_to_many(
        self, many: Float[Tensor, "B C K"], few: Float[Tensor, "B G K"]
    ) -> Float[Tensor, "B C K"]:
        """The many, plus their attention to the few."""
        directions = self._divide_by_root(self.key(few)) @ self.query.weight  # B G K
        attention = torch.softmax(torch.bmm(many, directions.mT), dim=-1)
        return torch.baddbmm(many, attention, self.value(few))

    def many_to_few(
        self, few: Float[Tensor, "G K"], many: Float[Tensor, "B C K"]
    ) -> Float[Tensor, "B G K"]:
        """The attention of each of the few to the many."""
        directions = self._divide_by_root(self.query(few)) @ self.key.weight  # G K
        attention = torch.softmax(directions @ many.mT, dim=-1)
        return self.value(attention @ many)

    def _divide_by_root(self, vectors: Float[Tensor, "*B G K"]) -> Float[Tensor, "*B G K"]:
        return vectors / vectors.shape[-1] ** 0.5
