"""Scores of whole windows, which need all channels or all steps, and the daily slope.

The energy score is proper: in expectation, no forecast beats the true distribution. The daily slope
says how much of the daily cycle a forecast contains. It is no score: a forecast may have a good
slope and a bad CRPS. It says why a CRPS is bad: a model that knows neither the hour nor the last
value forecasts a flat line, whose slope is 0.
"""

from collections.abc import Mapping
from functools import partial
from math import sqrt

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS
from powerphase.metrics.kernels import spreads
from powerphase.scenarios import Scenarios
from powerphase.seeds import stream

N_PROJECTIONS = 64
PAIRS_AT_ONCE = 4_000_000
"""Distances between scenarios held at a time, which bounds the memory for many scenarios."""


def projections(n_channels: int) -> Float64[Tensor, "C R"]:
    """The fixed random directions onto which states are projected, the same in every evaluation.

    Scaled so that the length of a projected state estimates the root mean square of its channels.
    """
    normal = stream(0, "projections").standard_normal((n_channels, N_PROJECTIONS))
    return torch.from_numpy(normal) / sqrt(N_PROJECTIONS * n_channels)


def energy_score(
    errors: Float64[Tensor, "M H R"], weights: Float64[Tensor, " M"]
) -> Float64[Tensor, " H"]:
    """Energy score of each step: Σ w ‖x‖ − ½ Σ Σ w w' ‖x − x'‖, x a scenario minus the target.

    It uses R projections instead of all channels: their lengths are estimates, but the score of the
    projected states is exact and proper.

    Reference: doi:10.1198/016214506000001437
    """
    error = torch.einsum("MH,M->H", errors.norm(dim=-1), weights)
    return error - (spreads if errors.device.type == "cpu" else torch_spreads)(errors, weights)


def torch_spreads(
    errors: Float64[Tensor, "M H R"],
    weights: Float64[Tensor, " M"],
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> Float64[Tensor, " H"]:
    """The second sum of the energy score in plain torch; `kernels.spreads` is its CPU form."""
    n_scenarios, horizon, _ = errors.shape
    spread = errors.new_empty(horizon)
    steps_at_once = max(1, pairs_at_once // n_scenarios**2)
    for first in range(0, horizon, steps_at_once):
        steps = slice(first, first + steps_at_once)
        points = errors[:, steps].movedim(0, 1)
        # The faster form by matrix products would not give 0 between a scenario and its copy.
        pairs = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        spread[steps] = torch.einsum("HMm,M,m->H", pairs, weights, weights) / 2
    return spread


class OpenWindow:
    """The sums for Distortion and energy score of one window, until its last channel has arrived.

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
        self._counts = zeros((horizon, KINDS))
        """The points that count, by step and variable: all, or those that are observed."""
        self.channel_distortion = zeros(len(directions))
        self.arrived: Bool[np.ndarray, " C"] = np.zeros(len(directions), dtype=bool)

    def add(
        self,
        first: int,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        observed: Bool[Tensor, "1 H C"] | None = None,
    ) -> None:
        """Add the channels from `first` on; only observed values of the target count."""
        channels = slice(first, first + target.shape[-1])
        directions, best = self._directions[channels], self.channel_distortion[channels]
        weights = scenarios.normalised_weights[0].double()
        for kind in range(KINDS):
            of_kind = slice((kind - first) % KINDS, None, KINDS)
            error = (scenarios.values[0, ..., of_kind] - target[..., of_kind]).double()
            if observed is not None:
                error = error * observed[..., of_kind]
            square = error.square()
            self._squares[..., kind] += square.sum(-1)
            seen = None if observed is None else observed[0, :, of_kind]
            self._add_channels(best[of_kind], square, kind, seen)
            self._errors[kind] += error @ directions[of_kind]
            self._weights[:, kind] += weights[:, of_kind].sum(-1)
        self.arrived[channels] = True

    def _add_channels(
        self,
        best: Float64[Tensor, " C"],
        square: Float64[Tensor, "M H C"],
        kind: int,
        seen: Bool[Tensor, "H C"] | None,
    ) -> None:
        """Enter the best scenario of each channel, and count the points of one variable."""
        if seen is None:
            best[:] = square.mean(1).amin(0).sqrt()
            self._counts[:, kind] += square.shape[-1]
            return
        best[:] = (square.sum(1) / seen.sum(0)).amin(0).sqrt()  # NaN where nothing is observed
        self._counts[:, kind] += seen.sum(-1)

    @property
    def weights(self) -> Float64[Tensor, " M"]:
        """The weight of each scenario: its mean over the channels."""
        return self._weights.sum(1) / len(self._directions)

    def distortion(self) -> Mapping[str, Float64[Tensor, "..."]]:
        """RMSE of the best scenario: of the window, of each type, of each step and type."""
        counts = self._counts
        window = self._squares.sum(dim=(1, 2)).amin().sqrt() / counts.sum().sqrt()
        by_type = self._squares.sum(1).amin(0).sqrt() / counts.sum(0).sqrt()
        return {
            "window": window,
            "type": by_type,
            "step": self._squares.amin(0).sqrt() / counts.sqrt(),
        }

    def energy(self) -> Mapping[str, Float64[Tensor, "..."]]:
        """Energy score: of the window, of each type, of each step and type.

        It is that of the observed part of each state, which is proper for it, as a root mean square
        over the channels that are observed. Steps in which none is do not count.
        """
        n_channels = len(self._directions)
        n_buses = n_channels // KINDS
        window = energy_score(self._errors.sum(0), self.weights)
        # One type has a quarter of the channels, so its root mean square is twice as long.
        by_type = [
            energy_score(sqrt(KINDS) * self._errors[kind], self._weights[:, kind] / n_buses)
            for kind in range(KINDS)
        ]
        step = torch.stack(by_type, dim=1)
        if bool((self._counts == n_buses).all()):
            return {"window": window.mean(), "type": step.mean(0), "step": step}
        total = self._counts.sum(1)
        window = (window * (n_channels / total).sqrt()).where(total > 0, torch.nan)
        step = (step * (n_buses / self._counts).sqrt()).where(self._counts > 0, torch.nan)
        return {"window": window.nanmean(), "type": step.nanmean(0), "step": step}


def daily_slope(
    mean: Float[Tensor, "B H C"], target: Float[Tensor, "B H C"], day_steps: int = 96
) -> Float64[Tensor, " 4"]:
    """The slope of the forecast mean on the truth within the day, of P, Q, V and θ.

    1 for the whole daily cycle, 0 for a flat line, NaN if the truth of a kind is constant. Each
    channel's mean over each day of the horizon is subtracted from forecast and truth; the slope is
    then that of one regression over all windows, steps and channels of a kind, so channels count by
    the size of their cycle.
    """
    return slope_of(daily_products(mean, target, day_steps))


def slope_of(products: Float64[Tensor, "2 C"]) -> Float64[Tensor, " 4"]:
    """The slope of P, Q, V and θ from the sums of `daily_products` over all channels."""
    cross, square = products.unflatten(1, (-1, KINDS)).sum(1)
    return cross / square


def daily_products(
    mean: Float[Tensor, "B H C"],
    target: Float[Tensor, "B H C"],
    day_steps: int = 96,
    observed: Bool[Tensor, "B H C"] | None = None,
) -> Float64[Tensor, "2 C"]:
    """The sums behind `daily_slope` by channel: forecast times truth, and truth times truth.

    Sums of several blocks of windows or channels can be added or joined. Only the observed part of
    the truth counts.
    """
    if observed is not None:
        return _observed_products(mean, target, day_steps, observed)
    products = torch.zeros((2, target.shape[2]), dtype=torch.float64, device=target.device)
    pairs = zip(mean.split(day_steps, 1), target.split(day_steps, 1), strict=True)
    for day in pairs:
        forecast, truth = (part.double() - part.double().mean(1, keepdim=True) for part in day)
        products += torch.stack([forecast * truth, truth.square()]).sum((1, 2))
    return products


def _observed_products(
    mean: Float[Tensor, "B H C"],
    target: Float[Tensor, "B H C"],
    day_steps: int,
    observed: Bool[Tensor, "B H C"],
) -> Float64[Tensor, "2 C"]:
    """The same sums over the steps of each day that are observed."""
    products = torch.zeros((2, target.shape[2]), dtype=torch.float64, device=target.device)
    parts = (part.split(day_steps, 1) for part in (mean.double(), target.double(), observed))
    for forecast, truth, seen in zip(*parts, strict=True):
        count = seen.sum(1, keepdim=True).clamp(min=1)
        centred = [
            (part - (part * seen).sum(1, keepdim=True) / count) * seen for part in (forecast, truth)
        ]
        products += torch.stack([centred[0] * centred[1], centred[1].square()]).sum((1, 2))
    return products
