"""Scores of whole scenarios, which need all channels of a window before they can be told."""

from collections.abc import Mapping
from functools import partial
from math import sqrt

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS
from powerphase.metrics.proper import N_PROJECTIONS, energy_score
from powerphase.scenarios import Scenarios


class OpenWindow:
    """One window until its last channel has arrived: what Distortion and energy score need.

    Args:
        n_scenarios: scenarios, M.
        horizon: steps, H.
        directions: the projections of all channels.
    """

    def __init__(self, n_scenarios: int, horizon: int, directions: Float64[Tensor, "C R"]) -> None:
        self._directions = directions
        zeros = partial(torch.zeros, dtype=torch.float64, device=directions.device)
        self._squares = zeros((n_scenarios, horizon, KINDS))
        self._errors = zeros((KINDS, n_scenarios, horizon, N_PROJECTIONS))
        self._weights = zeros((n_scenarios, KINDS))
        self.channel_distortion = zeros(len(directions))
        self.arrived: Bool[np.ndarray, " C"] = np.zeros(len(directions), dtype=bool)

    def add(self, first: int, scenarios: Scenarios, target: Float[Tensor, "1 H C"]) -> None:
        """Take in the channels from `first` on."""
        here = slice(first, first + target.shape[-1])
        directions, best = self._directions[here], self.channel_distortion[here]
        weights = scenarios.shares[0].double()
        for kind in range(KINDS):
            chosen = slice((kind - first) % KINDS, None, KINDS)
            error = (scenarios.values[0, ..., chosen] - target[..., chosen]).double()
            square = error.square()
            self._squares[..., kind] += square.sum(-1)
            best[chosen] = square.mean(1).amin(0).sqrt()
            self._errors[kind] += error @ directions[chosen]
            self._weights[:, kind] += weights[:, chosen].sum(-1)
        self.arrived[here] = True

    def distortion(self) -> Mapping[str, Float64[Tensor, "..."]]:
        """RMSE of the best scenario: of the window, of each type, of each step and type."""
        n_buses, horizon = len(self._directions) // KINDS, self._squares.shape[1]
        whole = self._squares.sum(dim=(1, 2)).amin().sqrt() / sqrt(KINDS * n_buses * horizon)
        kinds = self._squares.sum(1).amin(0).sqrt() / sqrt(n_buses * horizon)
        return {
            "window": whole,
            "type": kinds,
            "step": self._squares.amin(0).sqrt() / sqrt(n_buses),
        }

    def energy(self) -> Mapping[str, Float64[Tensor, "..."]]:
        """Energy score: of the window, of each type, of each step and type."""
        n_buses = len(self._directions) // KINDS
        whole = energy_score(self._errors.sum(0), self._weights.sum(1) / (KINDS * n_buses))
        # One type has a quarter of the channels, so its root mean square is twice as long.
        by_kind = [
            energy_score(sqrt(KINDS) * self._errors[kind], self._weights[:, kind] / n_buses)
            for kind in range(KINDS)
        ]
        step = torch.stack(by_kind, dim=1)
        return {"window": whole.mean(), "type": step.mean(0), "step": step}
