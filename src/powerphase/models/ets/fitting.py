"""Smoothing parameters by maximum likelihood, of many channels at once.

With Gaussian errors that is the least sum of squared errors over α, β, γ and the states before the
first step. The states are always brought to their best, so that a search in three dimensions is
left: BFGS, in which every channel has its own steps and ends when it is done. Parameters are looked
for as logits, which keeps 0 < α < 1, 0 ≤ β ≤ 1 and 0 ≤ γ ≤ 1 − α.

The valley may have several bottoms: trend and season may follow the errors, or stay as they are.
So starts of either kind of trend are compared on the first part of the record, and from the best of
each a search begins, with a season that nearly stays; where it ends, others are tried.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from powerphase.models.ets.states import guess, settle

LEVELS, TRENDS, SHARE = (0.05, 0.3, 0.8), ((0.001,), (0.05, 0.4)), 0.005
"""Starts: of trends that stay, and of such that follow; with seasons that nearly stay."""

SHARES = (0.02, 0.1, 0.4)
"""Seasons that follow, to be tried afterwards."""

PART, FEW_SEASONS = 8, 40
"""Starts are compared on an eighth of the record, and no less than so many seasons."""

NEAR, HOPE = 0.01, 1.005
"""What counts as nearly 0, and from how much larger an error a search for a lower one begins."""

FEW_TURNS, TURNS = 2, 6
"""Of conjugate gradients: for a start, and at each place of a search, at most."""

ROUGH, FINE = 1e-4, 1e-8
"""How little the logarithm of the error still falls where a search ends."""

STEPS, STRIDE = 60, 1.5
"""A search has so many steps at most, and no logit moves further in one."""

ENOUGH, SHORTER = 1e-4, 0.3
"""The share of the fall to be hoped for that a step must bring; else it is taken shorter."""

NOTHING = 1e-28
"""Of a channel's sum of squares: what rounding leaves of errors that are 0."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Where every channel is, or ends."""

    logits: Float64[Tensor, "3 C"]
    """Of α, of β and of γ/(1 − α)."""
    states: Float64[Tensor, "K C"]
    """Before the first step."""
    sse: Float64[Tensor, " C"]

    def where(self, better: Bool[Tensor, " C"], other: "Fit") -> "Fit":
        """This one, but the other where that is better."""
        pairs = zip(vars(other).values(), vars(self).values(), strict=True)
        return Fit(*(torch.where(better, new, old) for new, old in pairs))

    def of(self, chosen: Bool[Tensor, " C"]) -> "Fit":
        """Some channels alone."""
        return Fit(*(part[..., chosen] for part in vars(self).values()))

    def put(self, channels: Int[Tensor, " some"], other: "Fit") -> None:
        """Let some channels be where another fit has them."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine[..., channels] = theirs

    @property
    def smoothing(self) -> Float64[Tensor, "3 C"]:
        """α, β and γ."""
        alpha, beta, share = torch.sigmoid(self.logits)
        return torch.stack([alpha, beta, (1 - alpha) * share])

    @property
    def gains(self) -> Float64[Tensor, "3 C"]:
        """What an error does to level, trend and season."""
        return gains_of(self.smoothing)


def gains_of(smoothing: Float64[Tensor, "3 C"]) -> Float64[Tensor, "3 C"]:
    """α, αβ and γ."""
    alpha, beta, gamma = smoothing
    return torch.stack([alpha, alpha * beta, gamma])


def fit(record: Float[Tensor, "S C"], season: int) -> Fit:
    """The most likely parameters and states; channels that never move have none."""
    part = record[: max(len(record) // PART, FEW_SEASONS * season)]
    best = _lowest(descend(record, start, ROUGH) for start in _starts(part, season))
    best = _lifted(record, _pinned(record, best))
    return descend(record, best, FINE)


def descend(record: Float[Tensor, "S C"], start: Fit, tolerance: float) -> Fit:
    """Where the error falls no more; channels that are there are left out of the work."""
    search = _Search(record, start, tolerance)
    channels = torch.arange(len(start.sse), device=record.device)
    found = search.place.where(search.place.sse < 0, search.place)  # a copy
    for _ in range(STEPS):
        search.step()
        going = search.is_going
        n_going = int(going.sum())
        if 2 * n_going <= len(going):
            found.put(channels, search.place)
            if n_going == 0:
                break
            channels, search = channels[going], search.of(going)
    found.put(channels, search.place)
    return found


class _Search:
    """One BFGS for each channel, all in step."""

    def __init__(self, record: Tensor, start: Fit, tolerance: float) -> None:
        self.record, self.tolerance = record, tolerance
        self.errors = torch.empty(record.shape, dtype=torch.float64, device=record.device)
        self.floor = NOTHING * _squares(record)
        self.place, self.slope = self._look(start.logits, start.states, TURNS)
        self.inverse = torch.eye(3).to(self.slope)[..., None].repeat(1, 1, len(self.floor))
        self.is_fresh = torch.ones_like(self.floor, dtype=torch.bool)
        self.length = torch.ones_like(self.floor)
        self.quiet = torch.zeros_like(self.floor)

    def of(self, chosen: Bool[Tensor, " C"]) -> "_Search":
        """The search of some channels alone."""
        part = object.__new__(_Search)
        for name, value in vars(self).items():
            is_tensor = isinstance(value, Tensor) and name != "errors"
            setattr(part, name, value[..., chosen].contiguous() if is_tensor else value)
        part.place = self.place.of(chosen)
        part.errors = torch.empty_like(part.record, dtype=torch.float64)
        return part

    @property
    def is_going(self) -> Bool[Tensor, " C"]:
        """Which channels are not done."""
        return (self.quiet < 2) & (self.place.sse > self.floor)

    def step(self) -> None:
        """Try a step, take it where the error falls enough, and learn from it."""
        move = self._direction()
        hoped = -(self.slope * move).sum(0)
        place, slope = self._look(self.place.logits + move, self.place.states, TURNS)
        fall = (self.place.sse / place.sse).log() / 2
        better = fall >= ENOUGH * hoped  # what overflows is not
        self._learn(move, slope - self.slope, better)
        small = torch.where(better, fall, hoped) < self.tolerance
        self.quiet = torch.where(small, self.quiet + 1, torch.where(better, 0.0, self.quiet))
        self.place = self.place.where(better, place)
        self.slope = torch.where(better, slope, self.slope)
        self.length = torch.where(better, 1.0, SHORTER * self.length)

    def _look(self, logits: Tensor, states: Tensor, turns: int) -> tuple[Fit, Tensor]:
        """A place, at its best states, and the slope of the error's logarithm there."""
        there = Fit(logits, states, self.floor)
        options = (self.errors, turns, self.tolerance / 10)
        found = settle(self.record, there.gains, states, *options)
        alpha, beta, share = torch.sigmoid(logits)
        of_alpha, of_drift, of_gamma = found.slopes / found.sse
        slope = torch.stack(
            [
                (of_alpha + beta * of_drift - share * of_gamma) * alpha * (1 - alpha),
                alpha * of_drift * beta * (1 - beta),
                (1 - alpha) * of_gamma * share * (1 - share),
            ]
        )
        return Fit(logits, found.states, found.sse), slope

    def _direction(self) -> Tensor:
        """Down by Newton's rule, as far as BFGS knows it; parameters at a bound stay there."""
        ahead = -torch.einsum("ijc,jc->ic", self.inverse, self.slope)
        ahead = torch.where((ahead * self.slope).sum(0) < 0, ahead, -self.slope)
        ahead = torch.where(self.place.logits.isinf(), 0.0, ahead)
        largest = ahead.abs().amax(0)
        return ahead * self.length * torch.where(largest > STRIDE, STRIDE / largest, 1.0)

    def _learn(self, move: Tensor, turn: Tensor, better: Tensor) -> None:
        """BFGS's update of the inverse Hessian, where the slope turned upwards along the move."""
        along = (move * turn).sum(0)
        turns = better & (along > 1e-12 * move.norm(dim=0) * turn.norm(dim=0))
        one = torch.eye(3).to(move)[..., None]
        first = one * (along / turn.square().sum(0))
        inverse = torch.where(self.is_fresh & turns, first, self.inverse)
        left = one - torch.einsum("ic,jc->ijc", move, turn) / along
        inverse = torch.einsum("ijc,jkc,lkc->ilc", left, inverse, left)
        inverse = inverse + torch.einsum("ic,jc->ijc", move, move) / along
        self.inverse = torch.where(turns, inverse, self.inverse)
        self.is_fresh = self.is_fresh & ~turns


def _starts(record: Tensor, season: int) -> Iterator[Fit]:
    """The best start of each kind."""
    first = guess(record, season)
    for trends in TRENDS:
        chosen = product(LEVELS, trends, [SHARE])
        logits = (torch.tensor(one).logit().to(first)[:, None] for one in chosen)
        places = (one.expand(3, first.shape[1]) for one in logits)
        yield _lowest(_settled(record, place, first, FEW_TURNS) for place in places)


def _lowest(fits: Iterable[Fit]) -> Fit:
    """Every channel where its error is least; what overflows counts as infinite."""
    best, *others = fits
    for other in others:
        best = best.where((other.sse < best.sse) | best.sse.isnan(), other)
    return best


def _settled(record: Tensor, logits: Tensor, states: Tensor, turns: int) -> Fit:
    """A place, with states that have turned towards their best."""
    errors = torch.empty_like(record, dtype=torch.float64)
    gains = Fit(logits, states, states[0]).gains
    found = settle(record, gains, states, errors, turns, FINE)
    return Fit(logits, found.states, found.sse)


def _pinned(record: Tensor, found: Fit) -> Fit:
    """With γ or β, or both, at 0 where that is no worse: a logit gets ever nearer and never there.

    What follows is a shorter search too.
    """
    for row in (2, 1):
        logits = found.logits.clone()
        logits[row] = -inf
        pinned = _settled(record, logits, found.states, TURNS)
        near = found.logits[row].sigmoid() < NEAR
        found = found.where(near & (pinned.sse <= found.sse), pinned)
    return found


def _lifted(record: Tensor, found: Fit) -> Fit:
    """With a season that follows, where a search from there ends lower.

    Near γ = 0 a logit feels no slope, even where a better place is further on.
    """
    raised = []
    for share in SHARES:
        logits = found.logits.clone()
        logits[2] = torch.tensor(share).logit()
        raised.append(_settled(record, logits, found.states, TURNS))
    best = _lowest(raised)
    hopeful = best.sse < HOPE * found.sse
    if hopeful.any():
        there = descend(record[:, hopeful].contiguous(), best.of(hopeful), ROUGH)
        best.put(hopeful.nonzero()[:, 0], there)
    return _lowest([found, best])


def _squares(record: Tensor) -> Float64[Tensor, " C"]:
    """Every channel's sum of squares, without a copy in double precision."""
    return torch.linalg.vector_norm(record, dim=0, dtype=torch.float64).square()
