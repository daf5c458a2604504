"""Dynamic factors: a reduced-rank vector autoregression of days, with a Kalman filter.

The deviation of the factors from the calendar is a curve for each day. A few modes of these curves
are the states of a linear Gaussian state space: the modes of a day follow from those of the day
before, and what the modes leave of a curve is observation noise. The filter reads the days of the
context; joint scenarios are draws of the state space, moved on for as many days as the horizon has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int
from torch import Tensor

from powerphase.errors import ConfigError
from powerphase.models.anchors.factor_record import (
    FactorAnchor,
    fitted,
    scenario_blocks,
)
from powerphase.models.anchors.kalman import StateSpace
from powerphase.models.factorforge import fill_ranks
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.seeds import stream

SMALLEST = 1e-6
"""The least variance of a mode or of an observation, as a share of the mean variance."""


@dataclass(frozen=True)
class DynamicFactorsConfig:
    """The rank of the autoregression, its ridge, and the number of scenarios."""

    modes: int = 16
    """Modes of a day's curve; a short record has at most a quarter as many as days."""
    strength: float = 0.05
    """Ridge strength of the autoregression, per sample and for modes of unit variance."""
    scenarios: int = 100

    def __post_init__(self) -> None:
        if self.modes < 1 or self.scenarios < 1:
            raise ConfigError(
                f"modes and scenarios must be 1 or more, found {self.modes} and {self.scenarios}"
            )
        if self.strength <= 0:
            raise ConfigError(f"strength must be above 0, found {self.strength}")


class DynamicFactors(FactorAnchor[DynamicFactorsConfig]):
    """Draws joint scenarios from a state space of daily curves of the factors."""

    name = "dynamic-factors"
    config_type = DynamicFactorsConfig

    def __init__(self, config: DynamicFactorsConfig | None = None, *, seed: int = 42) -> None:
        super().__init__(config, seed=seed)
        self._space: StateSpace | None = None

    @property
    def n_parameters(self) -> int | None:
        """Size of the state space's matrices."""
        return (
            None if self._space is None else sum(part.size for part in vars(self._space).values())
        )

    def fit(self, train: Training) -> None:
        """Find the factors, then the modes of their days and the autoregression of the modes."""
        record = self._fit_record(train)
        first = record.origins[0] % record.per_day  # days begin as windows do
        curves = self._curves(record.deviation[None, first:])[0]
        self._space = fit_state_space(curves, self.config.modes, self.config.strength)

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """Joint scenarios, in blocks of channels."""
        record = self.record
        record.check(context)
        future = context.future_time
        paths = [
            self.draw_paths(curves, str(time[0]))
            for curves, time in zip(
                self._curves(record.past_deviation(context)), future, strict=True
            )
        ]
        expected = torch.from_numpy(record.forecaster.expected(future))[:, None]
        factors = (torch.stack(paths) + expected).to(context.past)
        days = [self._draw_days(str(time[0])) for time in future]
        return scenario_blocks(record, self.train, factors, np.stack(days))

    def _draw_days(self, name: str) -> Int[np.ndarray, " M"]:
        """First steps of random past days, all different if there are enough."""
        origins = self.record.origins
        order = stream(self.seed, self.name, "days", name).permutation(len(origins))
        return origins[np.resize(order, self.config.scenarios)]

    def draw_paths(self, curves: Float64[np.ndarray, "D Y"], name: str) -> Float32[Tensor, "M H K"]:
        """Draws of the factors' deviation after these days, with a random stream of that name.

        At each step they take every quantile of the forecast's distribution once, in the rank order
        of the draws.
        """
        record, space = self.record, fitted(self._space, self.name)
        random, count = stream(self.seed, self.name, name), self.config.scenarios
        mean, covariance = space.filter(curves[None])
        states = mean + random.standard_normal((count, len(covariance))) @ _root(covariance).T
        drawn, means, deviations = [], [], []
        for _ in range(-(-record.horizon // record.per_day)):
            mean, covariance = space.predict(mean, covariance)
            shocks = random.standard_normal(states.shape) @ _root(space.state_noise).T
            states = states @ space.transition.T + shocks
            noise = random.standard_normal((count, len(space.noise))) * np.sqrt(space.noise)
            variance = np.einsum("yr,rs,ys->y", space.loading, covariance, space.loading)
            drawn.append(states @ space.loading.T + noise)
            means.append(mean @ space.loading.T)
            deviations.append(np.sqrt(variance + space.noise)[None])
        steps = [torch.from_numpy(self._steps(part)).float() for part in (drawn, means, deviations)]
        return fill_ranks(steps[0], steps[1][0], steps[2][0])

    def _curves(self, deviation: Float64[np.ndarray, "B T K"]) -> Float64[np.ndarray, "B D Y"]:
        """The last whole days as curves, in which a factor counts by the variance it explains."""
        n_windows, n_steps, n_factors = deviation.shape
        per_day = self.record.per_day
        days = n_steps // per_day
        whole = deviation[:, n_steps - days * per_day :] * self._scale
        return whole.reshape(n_windows, days, per_day * n_factors)

    def _steps(self, curves: list[Float64[np.ndarray, "M Y"]]) -> Float64[np.ndarray, "M H K"]:
        """Curves of consecutive days as factors of consecutive steps."""
        horizon = self.record.horizon
        series = np.stack(curves, axis=1).reshape(len(curves[0]), -1, len(self._scale))
        return series[:, :horizon] / self._scale

    @property
    def _scale(self) -> Float64[np.ndarray, " K"]:
        share = self.record.factors.share.numpy()
        return np.sqrt(np.maximum(share, SMALLEST * share.sum()))


def fit_state_space(curves: Float64[np.ndarray, "D Y"], modes: int, strength: float) -> StateSpace:
    """The state space of consecutive days, in two steps: principal modes, then ridge regression.

    Reference: Doz, Giannone and Reichlin (2011), doi:10.1016/j.jeconom.2011.02.012.
    """
    rank = max(1, min(modes, len(curves) // 4, curves.shape[1]))
    _, _, directions = np.linalg.svd(curves, full_matrices=False)
    loading = directions[:rank].T
    states = curves @ loading
    before, after = states[:-1], states[1:]
    variance = states.var(0)
    variance = np.maximum(variance, max(SMALLEST * variance.mean(), np.finfo(float).tiny))
    gram = before.T @ before + strength * len(before) * np.diag(variance)
    transition = np.linalg.solve(gram, before.T @ after).T
    shocks = after - before @ transition.T
    rest = ((curves - states @ loading.T) ** 2).mean(0)
    lowest = SMALLEST * variance.sum() / curves.shape[1]
    floor = lowest * np.eye(rank)
    return StateSpace(
        transition=transition,
        state_noise=shocks.T @ shocks / len(shocks) + floor,
        loading=loading,
        noise=np.maximum(rest, lowest),
        start=states.T @ states / len(states) + floor,
    )


def _root(matrix: Float64[np.ndarray, "R R"]) -> Float64[np.ndarray, "R R"]:
    return np.linalg.cholesky(matrix)
