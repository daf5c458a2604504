"""States: the best ones before the first step of a record, and the paths that start from states.

Given the gains, errors are linear in the states before the first step, so the best states solve a
least squares problem. It is solved by conjugate gradients: each iteration is three passes over the
record, and no matrix is built. A season that is a wave leaves the filter as a wave, so the matrix
is nearly diagonal in the frequencies of the season. With that diagonal as a preconditioner, five
iterations do what would otherwise take hundreds.
"""

from math import inf, tau
from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex128, Float, Float64
from torch import Tensor

from powerphase.models.ets.scans import SEASON, backward, forward, response

FIRST_SEASONS = 8
"""Seasons at the start of a record from which states are guessed."""


class StateFit(NamedTuple):
    """States before the first step, and the error and its gradient at these states."""

    states: Float64[Tensor, "K C"]
    sse: Float64[Tensor, " C"]
    gradient: Float64[Tensor, "3 C"]
    """The gradient of half the sum of squared errors with respect to the gains."""

    def where(self, better: Bool[Tensor, " C"], other: "StateFit") -> "StateFit":
        """This fit, with the channels of the other where it is better."""
        return StateFit(*(torch.where(better, *pair) for pair in zip(other, self, strict=True)))


def initial_states(record: Float[Tensor, "S C"], season: int) -> Float64[Tensor, "K C"]:
    """A guess: the mean of the first seasons, no trend, and the mean shape of these seasons."""
    n_seasons = min(len(record) // season, FIRST_SEASONS)
    cycles = record[: n_seasons * season].double().unflatten(0, (n_seasons, season))
    level = cycles.mean((0, 1))
    return torch.cat([level[None], torch.zeros_like(level)[None], cycles.mean(0) - level])


def fit_states(
    record: Float[Tensor, "S C"],
    gains: Float64[Tensor, "3 C"],
    states: Float64[Tensor, "K C"],
    errors: Float64[Tensor, "S C"],
    iterations: int,
    tolerance: float,
) -> StateFit:
    """The states of least squared error, by conjugate gradients.

    Args:
        record: the measured values.
        gains: α, αβ and γ of every channel.
        states: where to start.
        errors: a buffer.
        iterations: the maximum number of iterations.
        tolerance: the share of the squared error that may remain to be gained.
    """
    steps, season = len(record), len(states) - SEASON
    preconditioner = Preconditioner(gains, season, steps)
    direction, previous = torch.zeros_like(states), torch.ones_like(states[0])
    best, active = StateFit(states, torch.full_like(previous, inf), gains), previous > 0
    for iteration in range(iterations + 1):
        sse = forward(record, gains, states, errors).sse
        gradient = backward(errors, gains, season)
        # Beyond its minimum, rounding would worsen a channel that iterates on with the others.
        active = active & ~(sse >= best.sse)
        best = best.where(active, StateFit(states, sse, gradient.gains))
        downhill = preconditioner.apply(gradient.states)
        remaining = (gradient.states * downhill).sum(0)
        active = active & (remaining > tolerance * sse)
        if iteration == iterations or not active.any():
            break
        direction = direction * (remaining / previous) - downhill
        previous = torch.where(remaining > 0, remaining, 1.0)
        length = remaining / response(gains, direction, steps)
        states = best.states + torch.where(active, direction * length, 0.0)
    return best


class Preconditioner:
    """The approximate diagonal of the least squares matrix, by the frequencies of the season.

    Without a season, errors are (1 − B)²/P(B) of the values, where B is a step back and
    P = 1 − (2 − α − αβ)B + (1 − α)B². A wave of the season passes this filter, and decays by
    1 − γ times its response with each season. Level and trend contribute the energies of
    (1 − B)/P and 1/P.
    """

    def __init__(self, gains: Float64[Tensor, "3 C"], season: int, steps: int) -> None:
        alpha, drift, gamma = gains
        self.season = season
        response = _filter_response(alpha, drift, season)
        decay = (1 - gamma * response).abs().square()
        self.waves = response.abs().square() / (1 - decay).clamp(min=season / steps)
        rest = 4 - 2 * alpha - drift
        self.level = (2 / (alpha * rest)).clamp(max=steps)
        lasting = steps / alpha.square()
        fading = (2 - alpha) / (alpha * drift * rest)
        self.trend = torch.minimum(fading, lasting).clamp(max=steps**3 / 3)
        # The mean of the season is equivalent to a level.
        self.waves[0] = self.level / season

    def apply(self, gradient: Float64[Tensor, "K C"]) -> Float64[Tensor, "K C"]:
        """The gradient divided by the diagonal."""
        waves = torch.fft.rfft(gradient[SEASON:], dim=0) / self.waves
        season = torch.fft.irfft(waves, n=self.season, dim=0)
        ends = torch.stack([gradient[0] / self.level, gradient[1] / self.trend])
        return torch.cat([ends, season])


def _filter_response(
    alpha: Float64[Tensor, " C"], drift: Float64[Tensor, " C"], season: int
) -> Complex128[Tensor, "waves C"]:
    """The response of level and trend to each wave of the season; that of its mean is unused."""
    turn = tau * torch.arange(season // 2 + 1, device=alpha.device, dtype=alpha.dtype) / season
    back = torch.polar(torch.ones_like(turn), -turn)[:, None]
    denominator = 1 - (2 - alpha - drift) * back + (1 - alpha) * back.square()
    denominator[0] = 1
    return (1 - back).square() / denominator


def expected_path(states: Float64[Tensor, "K C"], horizon: int) -> Float64[Tensor, "H C"]:
    """The path without errors: level, trend and season continue unchanged."""
    ahead = torch.arange(1, horizon + 1, device=states.device)
    season = states[SEASON + (ahead - 1) % (len(states) - SEASON)]
    return states[0] + ahead[:, None] * states[1] + season


def path_deviations(
    errors: Float[Tensor, "M H C"], gains: Float[Tensor, "3 C"], season: int
) -> Float[Tensor, "M H C"]:
    """The deviation of paths with errors: e_h + Σᵢ cᵢ e_{h−i}, cᵢ = α + i αβ + γ [m divides i].

    The sums over α and over αβ are the errors' cumulative sums, once and twice.
    """
    alpha, drift, gamma = gains
    earlier = errors.cumsum(1) - errors
    deviations = torch.addcmul(errors, earlier, alpha).addcmul_(earlier.cumsum(1), drift)
    for back in range(season, errors.shape[1], season):
        deviations[:, back:].addcmul_(errors[:, :-back], gamma)
    return deviations
