"""Factors: the few slow series that drive a whole grid.

A randomised SVD finds the directions in which the channels vary most. Much of that variance is
noise without memory that whole regions share. The directions are therefore rotated until each is as
slow as possible (min/max autocorrelation factors), and only the slow ones, which can be forecast,
are kept as factors. The rest of a channel's variance is its noise. The record is read four times,
in blocks, and is never in memory as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import pi, sqrt

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from powerphase.axes import KINDS, P
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.resolution import rescale_steps
from powerphase.scenarios import READ_STEPS, Training
from powerphase.seeds import stream

PASSES = 4
"""How many times the record is read."""

MIN_NOISE = 0.15
"""The lower bound of a channel's noise, as a share of its mean noise."""

NEGLIGIBLE = 1e-9
"""Directions with less than this share of the largest variance are rounding errors."""

DEVIATION = sqrt(pi / 2)
"""A Gaussian's standard deviation divided by its mean absolute deviation."""

BY_CHANNEL = ("mean", "loading", "noise", "restless")
"""The arrays of `Factors` whose last axis is that of channels."""

OnBlock = Callable[[int, int], None]
"""Called with the number of steps read and the number of all steps to read."""


@dataclass(frozen=True, eq=False)
class Factors:
    """The maps from states to factors and from factors to states, and the noise."""

    mean: Float32[Tensor, " C"]
    readout: Float32[Tensor, "C K"]
    """Weights that turn deviations from the mean into factors."""
    loading: Float32[Tensor, "K C"]
    """The change of each channel per unit of each factor."""
    noise: Float32[Tensor, "K+1 C"]
    """Each channel's mean absolute noise, linear in the factors: intercept, then coefficients."""
    restless: Float32[Tensor, "R C"]
    """The change of each channel per unit of each other direction: noise that channels share."""
    persistence: Float64[Tensor, " K"]
    """Each factor's correlation with itself a step earlier."""
    share: Float64[Tensor, " K"]
    """The share of variance that each factor explains; all four variables count equally."""

    def __len__(self) -> int:
        return len(self.persistence)

    def of_channels(self, channels: slice) -> "Factors":
        """The same factors, of only some channels."""
        parts = {name: getattr(self, name)[..., channels] for name in BY_CHANNEL}
        return replace(self, readout=self.readout[channels], **parts)

    def of(self, states: Float[Tensor, "*B C"]) -> Float32[Tensor, "*B K"]:
        """The factors of these states."""
        return (states - self.mean.to(states)) @ self.readout.to(states)

    def states(self, factors: Float32[Tensor, "*B K"]) -> Float32[Tensor, "*B C"]:
        """The states that these factors imply, without noise."""
        return self.mean.to(factors) + factors @ self.loading.to(factors)

    def deviation(self, factors: Float32[Tensor, "*B K"]) -> Float32[Tensor, "*B C"]:
        """The standard deviation of the channels' noise at these factors."""
        level, coefficients = self.noise.to(factors).split([1, len(self)])
        lower_bound = MIN_NOISE * level[0]
        return DEVIATION * torch.maximum(level[0] + factors @ coefficients, lower_bound)


def find_factors(
    train: Training, config: FactorForgeConfig, seed: int, on_block: OnBlock | None = None
) -> tuple[Factors, Float64[np.ndarray, "S K"]]:
    """The factors of a training record, and their series."""
    record = Blocks(train, on_block)
    mean, scale, variance = _moments(record)
    basis = scale[:, None] * _directions(record, mean, scale, config, seed)
    directions, cross = _project(record, mean, basis)
    slow, restless = _split_by_persistence(directions, config, train.step_s)
    # Both have mean 0, variance 1 and no correlation: a regression on them is a mean of products.
    products = scale[:, None].numpy() * cross / len(directions)
    slow, share = _order_by_variance(slow, products, _consumption(mean))
    rotation, surplus = np.split(slow, [config.factors], axis=1)
    others = _fix_signs(np.concatenate([surplus, restless], axis=1), products)
    loading, shared = ((cross @ part).T / len(directions) for part in (rotation, others))
    series = (directions - directions.mean(0)) @ rotation
    factors = Factors(
        mean,
        basis @ torch.from_numpy(rotation).float(),
        torch.from_numpy(loading).float(),
        _fit_noise(record, mean, loading, series),
        torch.from_numpy(shared).float(),
        torch.from_numpy((series[1:] * series[:-1]).mean(0)),
        torch.from_numpy(share[: config.factors] / max(variance, np.finfo(float).tiny)),
    )
    return factors, series


class Blocks:
    """The training record in blocks; every iteration reads it once.

    Args:
        train: holds the record.
        on_block: called with the number of steps read so far and in all passes.
    """

    def __init__(self, train: Training, on_block: OnBlock | None = None) -> None:
        self.n_channels = train.layout.n_channels
        self._train, self._on_block, self._read = train, on_block, 0

    def __len__(self) -> int:
        return len(self._train.time)

    def __iter__(self) -> Iterator[tuple[slice, Float32[Tensor, "S C"]]]:
        for first in range(0, len(self), READ_STEPS):
            steps = slice(first, min(first + READ_STEPS, len(self)))
            yield steps, self._train.read(steps)
            self._read += steps.stop - first
            if self._on_block is not None:
                self._on_block(self._read, PASSES * len(self))


def _moments(record: Blocks) -> tuple[Float32[Tensor, " C"], Float32[Tensor, " C"], float]:
    """Each channel's mean, the scale that gives its variable unit variance, and the total variance.

    A variable that never changes has the scale 0.
    """
    total = squares = torch.zeros(record.n_channels, dtype=torch.float64)
    start = None
    for _, states in record:
        start = states[0].double() if start is None else start
        shifted = states.double() - start  # squares of nearly constant channels would lose digits
        total, squares = total + shifted.sum(0), squares + shifted.square().sum(0)
    assert start is not None, "a record has steps"
    variance = (squares - total**2 / len(record)).clamp(min=0) / len(record)
    by_kind = variance.view(-1, KINDS).mean(0)
    scale = torch.where(by_kind > 0, by_kind.rsqrt(), 0.0).repeat(record.n_channels // KINDS)
    return (start + total / len(record)).float(), scale.float(), float((variance * scale**2).sum())


def _directions(
    record: Blocks,
    mean: Float32[Tensor, " C"],
    scale: Float32[Tensor, " C"],
    config: FactorForgeConfig,
    seed: int,
) -> Float32[Tensor, "C R"]:
    """Orthonormal directions that span those of largest variance, by one power iteration."""
    size = (record.n_channels, min(config.rank + config.oversampling, record.n_channels))
    random = torch.from_numpy(stream(seed, "directions").standard_normal(size)).float()
    product = torch.zeros(size, dtype=torch.float64)
    for _, states in record:
        scaled = (states - mean) * scale
        product += scaled.T @ (scaled @ random)
    return torch.linalg.qr(product)[0].float()


def _project(
    record: Blocks, mean: Float32[Tensor, " C"], basis: Float32[Tensor, "C R"]
) -> tuple[Float64[np.ndarray, "S R"], Float64[np.ndarray, "C R"]]:
    """The record in these directions, and the sums over steps of its products with the channels."""
    series = torch.empty((len(record), basis.shape[1]), dtype=torch.float64)
    cross = torch.zeros(basis.shape, dtype=torch.float64)
    for steps, states in record:
        deviation = states - mean
        projected = deviation @ basis
        series[steps] = projected.double()
        cross += deviation.T @ projected
    return series.numpy(), cross.numpy()


def _split_by_persistence(
    series: Float64[np.ndarray, "S R"], config: FactorForgeConfig, step_s: int
) -> tuple[Float64[np.ndarray, "R K"], Float64[np.ndarray, "R rest"]]:
    """The rotations of the directions of largest variance to slow ones, and to all others.

    With unit variance in all directions, the correlation of a series with itself a quarter-hour (or
    one longer step) earlier is 1 minus half the variance of its increments, so its extremes are
    eigenvectors of the covariance of the increments.
    """
    lag = rescale_steps(1, step_s)
    centred = series - series.mean(0)
    variance, directions = np.linalg.eigh(centred.T @ centred / len(series))
    large = np.argsort(-variance)[: config.rank]
    large = large[variance[large] > NEGLIGIBLE * variance.max()]
    white = directions[:, large] / np.sqrt(variance[large])
    whitened = centred @ white
    increments = whitened[lag:] - whitened[:-lag]
    speed, rotation = np.linalg.eigh(increments.T @ increments / (2 * max(len(increments), 1)))
    n_slow = max(1, int((1 - speed > config.persistence).sum()))
    slow, restless = np.split(white @ rotation, [n_slow], axis=1)
    return slow, restless


def _order_by_variance(
    slow: Float64[np.ndarray, "R K"],
    products: Float64[np.ndarray, "C R"],
    upward: Float64[np.ndarray, " C"],
) -> tuple[Float64[np.ndarray, "R K"], Float64[np.ndarray, " K"]]:
    """The slow directions, rotated and sorted by the variance that they explain, and that variance.

    Equally slow directions are defined only up to a rotation; this fixes it.
    """
    loading = products @ slow
    variance, rotation = np.linalg.eigh(loading.T @ loading)
    slow = slow @ rotation[:, ::-1]
    # The sign of an eigenvector is arbitrary; here a factor rises with consumption.
    total = upward @ (products @ slow)
    return slow * np.where(total < 0, -1.0, 1.0), variance[::-1].clip(min=0)


def _fix_signs(
    directions: Float64[np.ndarray, "R K"], products: Float64[np.ndarray, "C R"]
) -> Float64[np.ndarray, "R K"]:
    """The directions, each of which raises the channel that it moves most.

    The sign of an eigenvector depends on the processor, and draws of noise on these signs.
    """
    loading = products @ directions
    largest = abs(loading).argmax(0)
    return directions * np.where(loading[largest, np.arange(len(largest))] < 0, -1.0, 1.0)


def _consumption(mean: Float32[Tensor, " C"]) -> Float64[np.ndarray, " C"]:
    """The mean P of every bus (loads positive, generation negative); 0 for all other channels."""
    consumption = np.zeros(len(mean))
    consumption[P::KINDS] = mean[P::KINDS].double().numpy()
    return consumption


def _fit_noise(
    record: Blocks,
    mean: Float32[Tensor, " C"],
    loading: Float64[np.ndarray, "K C"],
    series: Float64[np.ndarray, "S K"],
) -> Float32[Tensor, "K+1 C"]:
    """Each channel's mean absolute residual as a linear function of the factors."""
    factors, loads = torch.from_numpy(series).float(), torch.from_numpy(loading).float()
    line = torch.zeros((1 + len(loads), record.n_channels), dtype=torch.float64)
    for steps, states in record:
        residual = (states - mean - factors[steps] @ loads).abs()
        line[0] += residual.sum(0)
        line[1:] += factors[steps].T @ residual
    return (line / len(record)).float()
