"""What is expected from states on, and how paths with errors leave it."""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from powerphase.models.ets.scans import SEASON


def expected(states: Float64[Tensor, "K C"], horizon: int) -> Float64[Tensor, "H C"]:
    """The path without errors: level, trend and season go on as they are."""
    ahead = torch.arange(1, horizon + 1, device=states.device)
    season = states[SEASON + (ahead - 1) % (len(states) - SEASON)]
    return states[0] + ahead[:, None] * states[1] + season


def departures(
    errors: Float[Tensor, "M H C"], gains: Float[Tensor, "3 C"], season: int
) -> Float[Tensor, "M H C"]:
    """How far errors lead each path away: e_h + Σᵢ cᵢ e_{h−i}, cᵢ = α + i αβ + γ [m divides i].

    The sums over α and over αβ are the errors' cumulative sums, once and twice.
    """
    alpha, drift, gamma = gains
    earlier = errors.cumsum(1) - errors
    found = torch.addcmul(errors, earlier, alpha).addcmul_(earlier.cumsum(1), drift)
    for back in range(season, errors.shape[1], season):
        found[:, back:].addcmul_(errors[:, :-back], gamma)
    return found
