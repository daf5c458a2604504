"""What is kept of one window: the choice of scenarios, their weights, and what that costs.

A window is read block by block of channels into sums, from which the distances of its scenarios
follow. The choice is compared with random ones of as many scenarios.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from powerphase.errors import ForecastError
from powerphase.evaluation.distances import (
    ChannelSpace,
    Distance,
    FactorSpace,
    ScoredStates,
    Space,
)
from powerphase.evaluation.selection import METHODS, energy_distance, kantorovich
from powerphase.metrics.streaming import channels_at_once
from powerphase.models.factorforge.factors import Factors
from powerphase.scenarios import Scenarios
from powerphase.seeds import stream
from powerphase.task.windows import Task

RANDOM_CHOICES = 100
"""How many random choices of scenarios the comparison averages."""

SAME_WEIGHT = 1e-4
"""The largest relative difference of a scenario's weights that is due to rounding."""

BLOCK_BYTES = 16 * 2**20
"""Size of the scenarios that are added up at a time."""


@dataclass(frozen=True)
class Choice:
    """How scenarios are chosen."""

    count: int
    method: str
    factors: Factors | None
    """Of FactorForge, to compare scenarios by; None to compare them by channels."""
    task: Task | None
    """Has what happened, if energy scores shall be compared."""

    def space(self, n_scenarios: int, horizon: int) -> Space:
        """A new space for the scenarios of a window."""
        if self.factors is None:
            return ChannelSpace(n_scenarios)
        return FactorSpace(self.factors, n_scenarios, horizon)

    def of(self, window: "WindowSums") -> "KeptScenarios":
        """The scenarios of this window to keep."""
        distance = window.space.distance(window.weights)
        method = METHODS[self.method]
        kept = method.choose(distance, window.weights, self.count)
        weights = method.weigh(distance, window.weights, kept)
        ruler = _Ruler(distance, window, self.task)
        everything = ruler.costs(np.arange(len(window.weights)), window.weights)
        random = [ruler.costs(*part) for part in _random_choices(window, self.count)]
        costs = np.stack([everything, ruler.costs(kept, weights), np.mean(random, axis=0)])
        return KeptScenarios(kept, weights, costs)


@dataclass(frozen=True)
class KeptScenarios:
    """The scenarios of a window to keep, and their weights."""

    numbers: Int64[np.ndarray, " k"]
    weights: Float64[np.ndarray, " k"]
    costs: Float64[np.ndarray, "3 3"]
    """Of all scenarios, of the kept ones and of random ones: Kantorovich distance, energy distance
    and energy score."""

    def of(self, scenarios: Scenarios) -> Scenarios:
        """The kept scenarios of a block of channels."""
        values = scenarios.values[:, torch.from_numpy(self.numbers)]
        weights = torch.from_numpy(self.weights).to(values)[None, :, None]
        return Scenarios(values, weights.expand(1, -1, values.shape[-1]))


class WindowSums:
    """All scenarios of one window, as sums over their blocks of channels."""

    def __init__(self, number: int, first: Scenarios, n_channels: int, choice: Choice) -> None:
        _, n_scenarios, horizon, _ = first.values.shape
        self.number = number
        self.weights = _common_weights(first)
        self.space = choice.space(n_scenarios, horizon)
        self.scored = ScoredStates(n_scenarios, horizon, n_channels)

    def add(self, channels: slice, scenarios: Scenarios) -> None:
        """Add a block of channels; raise unless its weights are those of the other channels."""
        n_scenarios = scenarios.values.shape[1]
        if n_scenarios != len(self.weights):
            raise ForecastError(
                f"{n_scenarios} scenarios, but other channels have {len(self.weights)}",
                window=self.number,
                channel=channels.start,
            )
        self._check_weights(channels, scenarios)
        width = channels_at_once(BLOCK_BYTES, scenarios)
        for first in range(0, channels.stop - channels.start, width):
            part = scenarios.of_channels(slice(first, first + width)).values[0].cpu()
            start = channels.start + first
            for sums in (self.space, self.scored):
                sums.add(slice(start, start + part.shape[-1]), part)

    def _check_weights(self, channels: slice, scenarios: Scenarios) -> None:
        weights = scenarios.weights[0].double().cpu().numpy()
        expected = self.weights[:, None]
        differs = np.abs(weights - expected) > SAME_WEIGHT * expected
        if differs.any():
            scenario, channel = (int(k) for k in np.argwhere(differs)[0])
            raise ForecastError(
                f"scenario {scenario} has the weight {weights[scenario, channel]:.4g}, and "
                f"{self.weights[scenario]:.4g} in other channels; only scenarios with one weight "
                "for all channels are states of the whole grid, of which some can be kept",
                window=self.number,
                channel=channels.start + channel,
            )


class _Ruler:
    """Measures what it costs to keep only some scenarios of a window.

    Args:
        distance: between the scenarios, as they are chosen by.
        window: the scenarios.
        task: has what happened; without it, there is no energy score.
    """

    def __init__(self, distance: Distance, window: WindowSums, task: Task | None) -> None:
        self._distance, self._weights = distance, window.weights
        self._scored = window.scored.distance()
        self._errors = np.full(len(distance), np.nan)
        if task is not None:
            self._errors = window.scored.errors(task.test.target(window.number)[0])

    def costs(
        self, kept: Int64[np.ndarray, " k"], weights: Float64[np.ndarray, " k"]
    ) -> Float64[np.ndarray, "3"]:
        """Kantorovich distance, energy distance and energy score."""
        spread = weights @ self._scored[np.ix_(kept, kept)] @ weights / 2
        return np.array(
            [
                kantorovich(self._distance, self._weights, kept),
                energy_distance(self._scored, self._weights, kept, weights),
                weights @ self._errors[kept] - spread,
            ]
        )


def _common_weights(scenarios: Scenarios) -> Float64[np.ndarray, " M"]:
    """The weights of the first channel, which sum to 1."""
    weights = scenarios.weights[0, :, 0].double().cpu().numpy()
    return np.asarray(weights / weights.sum())


def _random_choices(
    window: WindowSums, count: int
) -> Iterator[tuple[Int64[np.ndarray, " k"], Float64[np.ndarray, " k"]]]:
    """Random choices of scenarios, the same in every call, and their weights."""
    random, weights = stream(0, "random choices", window.number), window.weights
    for _ in range(RANDOM_CHOICES):
        kept = np.sort(random.choice(len(weights), count, replace=False))
        # Equal weights, if none of the scenarios has any.
        part = weights[kept] + np.finfo(float).tiny
        yield kept, part / part.sum()
