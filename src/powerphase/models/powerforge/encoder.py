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

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.models.powerforge.config import PowerForgeConfig

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
        self.scale = nn.Sequential(
            nn.Linear(1, config.scale_hidden), nn.GELU(), nn.Linear(config.scale_hidden, hidden)
        )
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.node = nn.Parameter(torch.randn(n_buses, config.node_embedding))
        self.kind = nn.Parameter(torch.randn(KINDS, config.type_embedding))
        self.identity = nn.Linear(config.node_embedding + config.type_embedding, hidden)
        self.calendar = nn.Linear(4, hidden)

    def forward(
        self, residual: Float[Tensor, "B T C"], calendar: Float[Tensor, "B 4"]
    ) -> Float[Tensor, "B N 4 K"]:
        """The vectors of each bus's four channels."""
        weight, bias = self.folded()
        n_windows = len(residual)
        seen = torch.bmm(residual.mT, weight.T.expand(n_windows, -1, -1))
        seen = self._with_own_bus(seen.unflatten(1, (-1, KINDS))) + bias
        state = self.refine(F.gelu(seen)) + self.scale(self._size(residual))
        state = self.dropout(self.norm(state)) + self._identity()
        return state + self.calendar(calendar)[:, None, None]

    def folded(self) -> tuple[Float[Tensor, "K T"], Float[Tensor, " K"]]:
        """Filters and first layer as one linear map of the week as it is."""
        views = self.project.weight.unflatten(1, (1 + len(self.filters), -1))
        weight, bias = views[:, 0], self.project.bias
        for view, smooth in zip(views.unbind(1)[1:], self.filters, strict=True):
            weight = weight + _filtered_back(view, smooth.weight[0, 0])
            bias = bias + view.sum(1) * smooth.bias
        return weight, bias

    def _with_own_bus(self, seen: Float[Tensor, "B N 4 K"]) -> Float[Tensor, "B N 4 K"]:
        """The gates, after the first layer instead of before it, which is linear."""
        p, q, *others = seen.unbind(2)
        gated = [
            kind + row[0] * p + row[1] * q for kind, row in zip(others, self.gates, strict=True)
        ]
        return torch.stack([p, q, *gated], dim=2)

    def _size(self, residual: Float[Tensor, "B T C"]) -> Float[Tensor, "B N 4 1"]:
        """The mean size of each channel's input, gates included."""
        kinds = list(residual.unflatten(2, (-1, KINDS)).unbind(3))  # each B T N
        for row, kind in enumerate((V, THETA)):
            own = self.gates[row, 0] * kinds[P] + self.gates[row, 1] * kinds[Q]
            kinds[kind] = kinds[kind] + own
        return torch.stack([kind.abs().mean(1) for kind in kinds], dim=2).unsqueeze(3)

    def _identity(self) -> Float[Tensor, "N 4 K"]:
        """Which bus, and which variable."""
        n_node = self.node.shape[1]
        weight = self.identity.weight
        of_node = self.node @ weight[:, :n_node].T
        of_kind = self.kind @ weight[:, n_node:].T + self.identity.bias
        return of_node[:, None] + of_kind


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
