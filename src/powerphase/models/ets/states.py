"""The states before the first step: given the gains, errors are linear in them.

So they solve a least squares problem, by conjugate gradients: each turn is three passes over the
record, and no matrix is ever made. A season that is a wave leaves the filter as a wave, which makes
the matrix nearly diagonal in the season's frequencies. Divided by that diagonal, five turns do what
would take hundreds.
"""

from math import inf, tau
from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex128, Float, Float64
from torch import Tensor

from powerphase.models.ets.scans import SEASON, backward, forward, response

FIRST_SEASONS = 8
"""Of which a guess at the states is made."""


class Settled(NamedTuple):
    """States that leave small errors, and what more is known where they are."""

    states: Float64[Tensor, "K C"]
    sse: Float64[Tensor, " C"]
    slopes: Float64[Tensor, "3 C"]
    """The gradient of half the sum of squared errors by the gains."""

    def where(self, better: Bool[Tensor, " C"], other: "Settled") -> "Settled":
        """These, but the others where they are better."""
        return Settled(*(torch.where(better, *pair) for pair in zip(other, self, strict=True)))


def guess(record: Float[Tensor, "S C"], season: int) -> Float64[Tensor, "K C"]:
    """States to begin with: the first seasons' mean, and how its steps differ from it."""
    n_seasons = min(len(record) // season, FIRST_SEASONS)
    cycles = record[: n_seasons * season].double().unflatten(0, (n_seasons, season))
    level = cycles.mean((0, 1))
    return torch.cat([level[None], torch.zeros_like(level)[None], cycles.mean(0) - level])


def settle(
    record: Float[Tensor, "S C"],
    gains: Float64[Tensor, "3 C"],
    states: Float64[Tensor, "K C"],
    errors: Float64[Tensor, "S C"],
    turns: int,
    tolerance: float,
) -> Settled:
    """Bring states to the least squared error, from where they are.

    Args:
        record: what was measured.
        gains: α, αβ and γ of every channel.
        states: to begin with.
        errors: room for them.
        turns: of conjugate gradients, at most.
        tolerance: the share of the squared errors that may be left to gain.
    """
    steps, season = len(record), len(states) - SEASON
    diagonal = Diagonal(gains, season, steps)
    along, before = torch.zeros_like(states), torch.ones_like(states[0])
    found, going = Settled(states, torch.full_like(before, inf), gains), before > 0
    for turn in range(turns + 1):
        sse = forward(record, gains, states, errors).sse
        slopes = backward(errors, gains, season)
        # Beyond its best, rounding leads a channel away that turns on for the sake of others.
        going = going & ~(sse >= found.sse)
        found = found.where(going, Settled(states, sse, slopes.gains))
        downhill = diagonal.divide(slopes.states)
        left = (slopes.states * downhill).sum(0)
        going = going & (left > tolerance * sse)
        if turn == turns or not going.any():
            break
        along = along * (left / before) - downhill
        before = torch.where(left > 0, left, 1.0)
        length = left / response(gains, along, steps)
        states = found.states + torch.where(going, along * length, 0.0)
    return found


class Diagonal:
    """About how much each state alone adds to the squared errors, by the season's frequencies.

    Without a season, errors are (1 − B)²/P(B) of the values, where B is a step back and
    P = 1 − (2 − α − αβ)B + (1 − α)B². A wave that the season holds passes that filter, and decays
    by 1 − γ times its response with each season. Level and trend leave the energies of (1 − B)/P
    and 1/P.
    """

    def __init__(self, gains: Float64[Tensor, "3 C"], season: int, steps: int) -> None:
        alpha, drift, gamma = gains
        self.season = season
        passed = _passed(alpha, drift, season)
        decay = (1 - gamma * passed).abs().square()
        self.waves = passed.abs().square() / (1 - decay).clamp(min=season / steps)
        rest = 4 - 2 * alpha - drift
        self.level = (2 / (alpha * rest)).clamp(max=steps)
        lasting = steps / alpha.square()
        fading = (2 - alpha) / (alpha * drift * rest)
        self.trend = torch.minimum(fading, lasting).clamp(max=steps**3 / 3)
        # The mean of the season is a level by another name.
        self.waves[0] = self.level / season

    def divide(self, slopes: Float64[Tensor, "K C"]) -> Float64[Tensor, "K C"]:
        """The slopes by this diagonal."""
        waves = torch.fft.rfft(slopes[SEASON:], dim=0) / self.waves
        season = torch.fft.irfft(waves, n=self.season, dim=0)
        ends = torch.stack([slopes[0] / self.level, slopes[1] / self.trend])
        return torch.cat([ends, season])


def _passed(
    alpha: Float64[Tensor, " C"], drift: Float64[Tensor, " C"], season: int
) -> Complex128[Tensor, "waves C"]:
    """What level and trend leave of each of the season's waves; of its mean, nothing is asked."""
    turn = tau * torch.arange(season // 2 + 1, device=alpha.device, dtype=alpha.dtype) / season
    back = torch.polar(torch.ones_like(turn), -turn)[:, None]
    below = 1 - (2 - alpha - drift) * back + (1 - alpha) * back.square()
    below[0] = 1
    return (1 - back).square() / below
