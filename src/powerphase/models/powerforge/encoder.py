"""The encoder: one vector for each channel, from a week of deviations and from what it is.

A linear layer reads a channel's week four times: as it is, and smoothed by filters of 5, 25 and 97
steps. Filters and layer are both linear, so together they are one matrix on the week as it is. It
is made anew in each step, from the filters and the layer that are trained; the smoothed weeks, four
times the data, never exist.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.kernels.encoder_output import settled
from powerphase.models.powerforge.kernels.gating import gated

DAY_S, WEEK_S = 86_400, 7 * 86_400


class ChannelEncoder(nn.Module):
    """From deviations to one vector of K numbers for each channel."""

    def __init__(self, config: PowerForgeConfig, n_buses: int, context_steps: int) -> None:
        super().__init__()
        hidden, n_views = config.hidden, 1 + len(config.kernels)
        self.gates = nn.Parameter(torch.zeros(2, 2))
        """What V (first row) and θ see of their own bus's P and Q."""
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
        self.calendar = nn.Linear(4, hidden)

    def forward(
        self,
        residual: Float[Tensor, "B 4 T W"],
        size: Float[Tensor, "B 4 N"],
        calendar: Float[Tensor, "B 4"],
        fast: bool = False,
    ) -> Float[Tensor, "B 4 N K"]:
        """The vectors of all channels, by kind; `fast` by kernels, which need Triton and a GPU."""
        with torch.autocast(residual.device.type, enabled=False):
            weight, bias = self.folded()
        weeks = residual.flatten(0, 1).mT
        seen = torch.bmm(weeks, weight.T.expand(len(weeks), -1, -1)).unflatten(0, (-1, KINDS))
        inner, _, outer = self.scale
        read = gated(seen, size, self.gates, bias, inner.weight, inner.bias, fast)
        # The token of the size is added to the refined week: one layer of both.
        refined = F.linear(read, torch.cat([self.refine.weight, outer.weight], dim=1))
        return settled(
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

    def folded(self) -> tuple[Float[Tensor, "K T"], Float[Tensor, " K"]]:
        """Filters and first layer as one linear map of the week as it is."""
        views = self.project.weight.unflatten(1, (1 + len(self.filters), -1))
        weight, bias = views[:, 0], self.project.bias
        for view, smooth in zip(views.unbind(1)[1:], self.filters, strict=True):
            weight = weight + _filtered_back(view, smooth.weight[0, 0])
            bias = bias + view.sum(1) * smooth.bias
        return weight, bias

    def _identity(self) -> Float[Tensor, "4 N K"]:
        """Which bus, and which variable."""
        n_node = self.node.shape[1]
        weight = self.identity.weight
        of_node = self.node @ weight[:, :n_node].T
        of_kind = self.kind @ weight[:, n_node:].T + self.identity.bias
        return of_node + of_kind[:, None]


def _filtered_back(
    view: Float[Tensor, "K T"], taps: Float[Tensor, " taps"]
) -> Float[Tensor, "K T"]:
    """What a linear map of a filtered week is on the week itself: the transposed filter.

    As a matrix product, whose gradient is the same in every run; that of a convolution on a GPU
    need not be.
    """
    reach = len(taps) // 2
    shifted = F.pad(view, (reach, reach)).unfold(1, len(taps), 1)  # K T taps
    return shifted @ taps.flip(0)


def mean_calendar(time: Shaped[np.ndarray, "B T"]) -> Float[Tensor, "B 4"]:
    """Sine and cosine of the times of day and of week (UTC), averaged over each context.

    Over exactly seven days both are constant, as the paper has it; other contexts tell more.
    """
    second = time.astype("datetime64[s]").astype(np.int64)
    angles = [2 * np.pi * (second % period) / period for period in (DAY_S, WEEK_S)]
    waves = [wave(angle).mean(1) for angle in angles for wave in (np.sin, np.cos)]
    return torch.from_numpy(np.stack(waves, axis=1))


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
