"""Distances between the scenarios of a window, from one block of channels after another.

A space adds up what it needs of each block, and has the distances once all have arrived. It keeps
no block: the sums are M × M numbers, or each step of each scenario in a few directions, whatever
the number of channels.
"""

from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from powerphase.axes import KINDS
from powerphase.metrics.joint import projections
from powerphase.models.factorforge.factors import Factors

Distance = Float64[np.ndarray, "M M"]


class Space(Protocol):
    """Collects the scenarios of a window, and measures their distances."""

    def add(self, channels: slice, values: Float[Tensor, "M H C"]) -> None:
        """Add a block of channels, in any order; each channel once."""

    def distance(self, weights: Float64[np.ndarray, " M"]) -> Distance:
        """The distance between each two scenarios, for scenarios of these weights."""


class ChannelSpace:
    """The root mean square difference over all steps and rescaled channels.

    The unit of each variable is its standard deviation among the scenarios, so that P, Q, V and θ
    count equally; one that is the same in all scenarios does not count.
    """

    def __init__(self, n_scenarios: int) -> None:
        self._products = np.zeros((KINDS, n_scenarios, n_scenarios))

    def add(self, channels: slice, values: Float[Tensor, "M H C"]) -> None:
        """Add a block of channels."""
        # Centred, since the difference of large products would lose digits.
        deviation = values - values.mean(0)
        for kind in range(KINDS):
            part = deviation[..., (kind - channels.start) % KINDS :: KINDS].flatten(1)
            self._products[kind] += (part @ part.T).numpy()

    def distance(self, weights: Float64[np.ndarray, " M"]) -> Distance:
        """The root mean square differences."""
        total = np.zeros(self._products.shape[1:])
        for products in self._products:
            squares = _squares(products)
            variance = weights @ squares @ weights / 2
            if variance > 0:
                total += squares / variance
        return np.sqrt(total / KINDS)


class FactorSpace:
    """The root mean square difference over all steps of what FactorForge's factors explain.

    A factor counts by the share of variance that it explains. Noise does not count, which channels
    do not share and no choice of a few scenarios can follow. The unit is the standard deviation
    among the scenarios.
    """

    def __init__(self, factors: Factors, n_scenarios: int, horizon: int) -> None:
        self._factors = factors
        self._series = torch.zeros((n_scenarios, horizon, len(factors)), dtype=torch.float64)

    def add(self, channels: slice, values: Float[Tensor, "M H C"]) -> None:
        """Add a block of channels."""
        deviation = values - self._factors.mean[channels]
        self._series += deviation @ self._factors.readout[channels]

    def distance(self, weights: Float64[np.ndarray, " M"]) -> Distance:
        """The root mean square differences."""
        explained = (self._series * self._factors.share.sqrt()).flatten(1)
        explained -= explained.mean(0)
        squares = _squares((explained @ explained.T).numpy())
        variance = weights @ squares @ weights / 2
        return np.sqrt(squares / variance) if variance > 0 else squares


def _squares(products: Float64[np.ndarray, "M M"]) -> Float64[np.ndarray, "M M"]:
    """The squares of the distances, from the products of all pairs."""
    length = np.diagonal(products)
    squares = (length[:, None] + length - products - products.T).clip(min=0)
    np.fill_diagonal(squares, 0.0)
    return squares


class ScoredStates:
    """States in the directions by which the energy score is computed, and that score.

    The distance of two scenarios is the mean over steps of the distance of their states. Then the
    energy score and the energy distance are means over steps as well.
    """

    def __init__(self, n_scenarios: int, horizon: int, n_channels: int) -> None:
        self._directions = projections(n_channels)
        n_directions = self._directions.shape[1]
        self._states = torch.zeros((n_scenarios, horizon, n_directions), dtype=torch.float64)

    def add(self, channels: slice, values: Float[Tensor, "M H C"]) -> None:
        """Add a block of channels."""
        self._states += values.double() @ self._directions[channels]

    def distance(self, weights: Float64[np.ndarray, " M"] | None = None) -> Distance:
        """The mean distance of the states of each two scenarios."""
        n_scenarios, horizon, _ = self._states.shape
        total = torch.zeros((n_scenarios, n_scenarios), dtype=torch.float64)
        for states in self._states.movedim(1, 0):
            # The faster form by matrix products would not give 0 between a scenario and its copy.
            total += torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
        return np.asarray(total.numpy() / horizon)

    def errors(self, target: Float[Tensor, "H C"]) -> Float64[np.ndarray, " M"]:
        """The mean distance of each scenario's states to what happened."""
        happened = target.double() @ self._directions
        return np.asarray((self._states - happened).norm(dim=-1).mean(1).numpy())
