"""Smoothing parameters and states by maximum likelihood, for many channels at once.

With Gaussian errors, maximum likelihood is the least sum of squared errors over α, β, γ and the
states before the first step.

Given the gains, errors are linear in these states, so the best states solve a least squares
problem. It is solved by conjugate gradients: each iteration is three passes over the record, and no
matrix is built. A season that is a wave leaves the filter as a wave, so the matrix is nearly
diagonal in the frequencies of the season. With that diagonal as a preconditioner, five iterations
do what would otherwise take hundreds.

States are always fitted exactly, so that a search in three dimensions remains: one BFGS per
channel, each with its own step lengths and its own end. Parameters are searched as logits, which
keeps 0 < α < 1, 0 ≤ β ≤ 1 and 0 ≤ γ ≤ 1 − α.

The error may have several minima: trend and season may follow the errors or stay fixed. Starting
points with either kind of trend are compared on the first part of the record, and a search starts
from the best of each kind, with a season that is almost fixed; afterwards, searches with other
seasons follow.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf, tau
from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex128, Float, Float64, Int
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


START_ALPHAS, START_BETAS, START_SHARE = (0.05, 0.3, 0.8), ((0.001,), (0.05, 0.4)), 0.005
"""Starting values: α; β of fixed and of following trends; γ/(1 − α) of an almost fixed season."""

LATER_SHARES = (0.02, 0.1, 0.4)
"""γ/(1 − α) of seasons that follow the errors, for later searches."""

PART, FEW_SEASONS = 8, 40
"""Starting points are compared on an eighth of the record, but on at least so many seasons."""

NEARLY_ZERO, PROMISING = 0.01, 1.005
"""What counts as nearly 0, and the relative error from which another search may end lower."""

FEW_ITERATIONS, ITERATIONS = 2, 6
"""Maximum iterations of conjugate gradients: for a starting point, and for a step of a search."""

ROUGH_TOLERANCE, FINE_TOLERANCE = 1e-4, 1e-8
"""The decrease of the error's logarithm at which a search ends."""

MAX_STEPS, MAX_LOGIT_STEP = 60, 1.5
"""The maximum number of steps of a search, and the largest change of a logit in one step."""

MIN_DECREASE, SHORTER = 1e-4, 0.3
"""The share of the expected decrease that a step must reach; otherwise the next is shortened."""

ROUNDING = 1e-28
"""The squared error that rounding leaves of zero errors, relative to a channel's sum of squares."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Parameters and states of every channel, and their error."""

    logits: Float64[Tensor, "3 C"]
    """Logits of α, of β and of γ/(1 − α)."""
    states: Float64[Tensor, "K C"]
    """States before the first step."""
    sse: Float64[Tensor, " C"]

    def where(self, better: Bool[Tensor, " C"], other: "Fit") -> "Fit":
        """This fit, with the channels of the other where it is better."""
        pairs = zip(vars(other).values(), vars(self).values(), strict=True)
        return Fit(*(torch.where(better, new, old) for new, old in pairs))

    def of(self, channels: Bool[Tensor, " C"]) -> "Fit":
        """The fit of some channels."""
        return Fit(*(part[..., channels] for part in vars(self).values()))

    def assign(self, channels: Int[Tensor, " some"], other: "Fit") -> None:
        """Replace some channels by those of another fit."""
        for old, new in zip(vars(self).values(), vars(other).values(), strict=True):
            old[..., channels] = new

    @property
    def smoothing(self) -> Float64[Tensor, "3 C"]:
        """α, β and γ."""
        alpha, beta, share = torch.sigmoid(self.logits)
        return torch.stack([alpha, beta, (1 - alpha) * share])

    @property
    def gains(self) -> Float64[Tensor, "3 C"]:
        """The change of level, trend and season per unit of error."""
        return gains_of(self.smoothing)


def gains_of(smoothing: Float64[Tensor, "3 C"]) -> Float64[Tensor, "3 C"]:
    """α, αβ and γ."""
    alpha, beta, gamma = smoothing
    return torch.stack([alpha, alpha * beta, gamma])


def fit(record: Float[Tensor, "S C"], season: int) -> Fit:
    """The most likely parameters and states; constant channels must be left out."""
    part = record[: max(len(record) // PART, FEW_SEASONS * season)]
    starts = _starting_points(part, season)
    best = _best_of(descend(record, start, ROUGH_TOLERANCE) for start in starts)
    best = _try_following_seasons(record, _try_zeros(record, best))
    return descend(record, best, FINE_TOLERANCE)


def descend(record: Float[Tensor, "S C"], start: Fit, tolerance: float) -> Fit:
    """Search from a starting point until the error no longer falls; finished channels drop out."""
    search = _Search(record, start, tolerance)
    channels = torch.arange(len(start.sse), device=record.device)
    result = search.point.where(search.point.sse < 0, search.point)  # a copy
    for _ in range(MAX_STEPS):
        search.step()
        active = search.is_active
        n_active = int(active.sum())
        if 2 * n_active <= len(active):
            result.assign(channels, search.point)
            if n_active == 0:
                break
            channels, search = channels[active], search.of(active)
    result.assign(channels, search.point)
    return result


class _Search:
    """One BFGS for each channel, all of which step together."""

    def __init__(self, record: Tensor, start: Fit, tolerance: float) -> None:
        self.record, self.tolerance = record, tolerance
        self.errors = torch.empty(record.shape, dtype=torch.float64, device=record.device)
        self.floor = ROUNDING * _sum_of_squares(record)
        self.point, self.gradient = self._evaluate(start.logits, start.states, ITERATIONS)
        self.inverse = torch.eye(3).to(self.gradient)[..., None].repeat(1, 1, len(self.floor))
        self.is_fresh = torch.ones_like(self.floor, dtype=torch.bool)
        self.length = torch.ones_like(self.floor)
        self.n_small_steps = torch.zeros_like(self.floor)

    def of(self, channels: Bool[Tensor, " C"]) -> "_Search":
        """The search of some channels."""
        part = object.__new__(_Search)
        for name, value in vars(self).items():
            is_tensor = isinstance(value, Tensor) and name != "errors"
            setattr(part, name, value[..., channels].contiguous() if is_tensor else value)
        part.point = self.point.of(channels)
        part.errors = torch.empty_like(part.record, dtype=torch.float64)
        return part

    @property
    def is_active(self) -> Bool[Tensor, " C"]:
        """Which channels are not finished."""
        return (self.n_small_steps < 2) & (self.point.sse > self.floor)

    def step(self) -> None:
        """Try a step, accept it where the error falls enough, and update the inverse Hessian."""
        move = self._direction()
        expected = -(self.gradient * move).sum(0)
        point, gradient = self._evaluate(self.point.logits + move, self.point.states, ITERATIONS)
        decrease = (self.point.sse / point.sse).log() / 2
        better = decrease >= MIN_DECREASE * expected  # False for NaN, so an overflow is rejected
        self._update_inverse(move, gradient - self.gradient, better)
        small = torch.where(better, decrease, expected) < self.tolerance
        count = self.n_small_steps
        self.n_small_steps = torch.where(small, count + 1, torch.where(better, 0.0, count))
        self.point = self.point.where(better, point)
        self.gradient = torch.where(better, gradient, self.gradient)
        self.length = torch.where(better, 1.0, SHORTER * self.length)

    def _evaluate(self, logits: Tensor, states: Tensor, iterations: int) -> tuple[Fit, Tensor]:
        """A point with its best states, and the gradient of the error's logarithm."""
        gains = Fit(logits, states, self.floor).gains
        options = (self.errors, iterations, self.tolerance / 10)
        best = fit_states(self.record, gains, states, *options)
        alpha, beta, share = torch.sigmoid(logits)
        by_alpha, by_drift, by_gamma = best.gradient / best.sse
        gradient = torch.stack(
            [
                (by_alpha + beta * by_drift - share * by_gamma) * alpha * (1 - alpha),
                alpha * by_drift * beta * (1 - beta),
                (1 - alpha) * by_gamma * share * (1 - share),
            ]
        )
        return Fit(logits, best.states, best.sse), gradient

    def _direction(self) -> Tensor:
        """The quasi-Newton step; parameters at a bound stay there."""
        ahead = -torch.einsum("ijc,jc->ic", self.inverse, self.gradient)
        ahead = torch.where((ahead * self.gradient).sum(0) < 0, ahead, -self.gradient)
        ahead = torch.where(self.point.logits.isinf(), 0.0, ahead)
        largest = ahead.abs().amax(0)
        limit = torch.where(largest > MAX_LOGIT_STEP, MAX_LOGIT_STEP / largest, 1.0)
        return ahead * self.length * limit

    def _update_inverse(self, move: Tensor, change: Tensor, better: Tensor) -> None:
        """BFGS's update of the inverse Hessian, where the curvature along the move is positive."""
        curvature = (move * change).sum(0)
        valid = better & (curvature > 1e-12 * move.norm(dim=0) * change.norm(dim=0))
        identity = torch.eye(3).to(move)[..., None]
        first = identity * (curvature / change.square().sum(0))
        inverse = torch.where(self.is_fresh & valid, first, self.inverse)
        left = identity - torch.einsum("ic,jc->ijc", move, change) / curvature
        inverse = torch.einsum("ijc,jkc,lkc->ilc", left, inverse, left)
        inverse = inverse + torch.einsum("ic,jc->ijc", move, move) / curvature
        self.inverse = torch.where(valid, inverse, self.inverse)
        self.is_fresh = self.is_fresh & ~valid


def _starting_points(record: Tensor, season: int) -> Iterator[Fit]:
    """The best starting point of each kind of trend."""
    states = initial_states(record, season)
    for betas in START_BETAS:
        choices = product(START_ALPHAS, betas, [START_SHARE])
        logits = (torch.tensor(choice).logit().to(states)[:, None] for choice in choices)
        points = (column.expand(3, states.shape[1]) for column in logits)
        yield _best_of(_with_states(record, point, states, FEW_ITERATIONS) for point in points)


def _best_of(fits: Iterable[Fit]) -> Fit:
    """The fit of least error for every channel; NaN counts as infinite."""
    best, *others = fits
    for other in others:
        best = best.where((other.sse < best.sse) | best.sse.isnan(), other)
    return best


def _with_states(record: Tensor, logits: Tensor, states: Tensor, iterations: int) -> Fit:
    """The fit of these parameters, with states improved by some iterations."""
    errors = torch.empty_like(record, dtype=torch.float64)
    gains = Fit(logits, states, states[0]).gains
    best = fit_states(record, gains, states, errors, iterations, FINE_TOLERANCE)
    return Fit(logits, best.states, best.sse)


def _try_zeros(record: Tensor, best: Fit) -> Fit:
    """Set γ, β or both to 0 where that is no worse; a search over logits never reaches 0.

    It also shortens the following search.
    """
    for row in (2, 1):
        logits = best.logits.clone()
        logits[row] = -inf
        at_zero = _with_states(record, logits, best.states, ITERATIONS)
        near = best.logits[row].sigmoid() < NEARLY_ZERO
        best = best.where(near & (at_zero.sse <= best.sse), at_zero)
    return best


def _try_following_seasons(record: Tensor, best: Fit) -> Fit:
    """Use a season that follows the errors where a search from there ends lower.

    Near γ = 0 the gradient of the logit vanishes, even if there is a better minimum further on.
    """
    candidates = []
    for share in LATER_SHARES:
        logits = best.logits.clone()
        logits[2] = torch.tensor(share).logit()
        candidates.append(_with_states(record, logits, best.states, ITERATIONS))
    other = _best_of(candidates)
    promising = other.sse < PROMISING * best.sse
    if promising.any():
        part = record[:, promising].contiguous()
        result = descend(part, other.of(promising), ROUGH_TOLERANCE)
        other.assign(promising.nonzero()[:, 0], result)
    return _best_of([best, other])


def _sum_of_squares(record: Tensor) -> Float64[Tensor, " C"]:
    """Every channel's sum of squares, without a copy in double precision."""
    return torch.linalg.vector_norm(record, dim=0, dtype=torch.float64).square()
