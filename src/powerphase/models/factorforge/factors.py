"""Factors: the few slow series that a whole grid moves with.

A randomised SVD finds the directions in which the channels vary most. Much of that is noise which
forgets itself within a step, shared by whole regions. So the directions are turned until each is
as slow as possible (min/max autocorrelation factors), and only the slow ones are kept: what can be
forecast. All else that a channel does is its noise. The record is read four times, in blocks, and
never held as a whole.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from powerphase.axes import KINDS, P
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.scenarios import READ_STEPS, Training
from powerphase.seeds import stream

PASSES = 4
"""How often the record is read."""

LEAST_NOISE = 0.15
"""Of a channel's mean noise: what it never falls below, however the line through it runs."""

NEGLIGIBLE = 1e-9
"""Of the largest variance: directions below it are rounding."""

DEVIATION = sqrt(pi / 2)
"""A Gaussian's standard deviation over its mean absolute one."""

OnBlock = Callable[[int, int], None]
"""Called with the number of steps read and that of all to be read."""


@dataclass(frozen=True, eq=False)
class Factors:
    """How factors are read from states, and states from factors."""

    mean: Float32[Tensor, " C"]
    readout: Float32[Tensor, "C K"]
    """Weights that make factors of deviations from the mean."""
    loading: Float32[Tensor, "K C"]
    """What a factor of 1 does to each channel."""
    noise: Float32[Tensor, "K+1 C"]
    """Each channel's mean absolute noise, as a line in the factors: level first, then slopes."""
    restless: Float32[Tensor, "R C"]
    """What all other directions of large variance do to each channel: noise that is shared."""
    persistence: Float64[Tensor, " K"]
    """Each factor's correlation with itself a step earlier."""
    share: Float64[Tensor, " K"]
    """The part of the variance that follows each factor, all four variables weighted alike."""

    def __len__(self) -> int:
        return len(self.persistence)

    def of(self, states: Float[Tensor, "*B C"]) -> Float32[Tensor, "*B K"]:
        """The factors of these states."""
        return (states - self.mean.to(states)) @ self.readout.to(states)

    def states(self, factors: Float32[Tensor, "*B K"]) -> Float32[Tensor, "*B C"]:
        """What the channels do when the factors are these, without noise."""
        return self.mean.to(factors) + factors @ self.loading.to(factors)

    def deviation(self, factors: Float32[Tensor, "*B K"]) -> Float32[Tensor, "*B C"]:
        """The standard deviation of the channels' noise when the factors are these."""
        level, slopes = self.noise.to(factors).split([1, len(self)])
        least = LEAST_NOISE * level[0]
        return DEVIATION * torch.maximum(level[0] + factors @ slopes, least)


def find_factors(
    train: Training, config: FactorForgeConfig, seed: int, on_block: OnBlock | None = None
) -> tuple[Factors, Float64[np.ndarray, "S K"]]:
    """The factors of a training record, and their series."""
    record = Blocks(train, on_block)
    mean, scale, variance = _moments(record)
    basis = scale[:, None] * _directions(record, mean, scale, config, seed)
    directions, cross = _projected(record, mean, basis)
    slow, restless = _by_persistence(directions, config)
    # Both have mean 0, variance 1 and no correlation: a regression on them is a mean of products.
    products = scale[:, None].numpy() * cross / len(directions)
    slow, share = _by_weight(slow, products, _consumption(mean))
    turn, left = np.split(slow, [config.factors], axis=1)
    others = np.concatenate([left, restless], axis=1)
    loading, shared = ((cross @ part).T / len(directions) for part in (turn, others))
    series = (directions - directions.mean(0)) @ turn
    found = Factors(
        mean,
        basis @ torch.from_numpy(turn).float(),
        torch.from_numpy(loading).float(),
        _noise(record, mean, loading, series),
        torch.from_numpy(shared).float(),
        torch.from_numpy((series[1:] * series[:-1]).mean(0)),
        torch.from_numpy(share[: config.factors] / max(variance, np.finfo(float).tiny)),
    )
    return found, series


class Blocks:
    """The training record, block after block, as often as it is gone through.

    Args:
        train: holds the record.
        on_block: told how many steps were read, and how many will be in all passes.
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
    """Each channel's mean, the factor that gives its variable unit variance, and the variance then.

    A variable that never moves gets the factor 0.
    """
    total = squares = torch.zeros(record.n_channels, dtype=torch.float64)
    start = None
    for _, states in record:
        start = states[0].double() if start is None else start
        moved = states.double() - start  # squares of what hardly moves would lose their digits
        total, squares = total + moved.sum(0), squares + moved.square().sum(0)
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
    """Orthonormal directions that hold those of largest variance: random ones, drawn to them."""
    size = (record.n_channels, min(config.rank + config.oversampling, record.n_channels))
    drawn = torch.from_numpy(stream(seed, "directions").standard_normal(size)).float()
    pulled = torch.zeros(size, dtype=torch.float64)
    for _, states in record:
        scaled = (states - mean) * scale
        pulled += scaled.T @ (scaled @ drawn)
    return torch.linalg.qr(pulled)[0].float()


def _projected(
    record: Blocks, mean: Float32[Tensor, " C"], basis: Float32[Tensor, "C R"]
) -> tuple[Float64[np.ndarray, "S R"], Float64[np.ndarray, "C R"]]:
    """The record in these directions, and its channels' products with them, summed over steps."""
    series = torch.empty((len(record), basis.shape[1]), dtype=torch.float64)
    cross = torch.zeros(basis.shape, dtype=torch.float64)
    for steps, states in record:
        deviation = states - mean
        found = deviation @ basis
        series[steps] = found.double()
        cross += deviation.T @ found
    return series.numpy(), cross.numpy()


def _by_persistence(
    series: Float64[np.ndarray, "S R"], config: FactorForgeConfig
) -> tuple[Float64[np.ndarray, "R K"], Float64[np.ndarray, "R rest"]]:
    """What turns the directions of largest variance into slow ones, and into all the others.

    With unit variance in all directions, the correlation of a series with itself a step earlier is
    1 less half the variance of its steps: its extremes are eigenvectors of the steps' covariance.
    """
    centred = series - series.mean(0)
    variance, directions = np.linalg.eigh(centred.T @ centred / len(series))
    large = np.argsort(-variance)[: config.rank]
    large = large[variance[large] > NEGLIGIBLE * variance.max()]
    white = directions[:, large] / np.sqrt(variance[large])
    moves = np.diff(centred @ white, axis=0)
    haste, turn = np.linalg.eigh(moves.T @ moves / (2 * max(len(moves), 1)))
    n_slow = max(1, int((1 - haste > config.persistence).sum()))
    slow, restless = np.split(white @ turn, [n_slow], axis=1)
    return slow, restless


def _by_weight(
    slow: Float64[np.ndarray, "R K"],
    products: Float64[np.ndarray, "C R"],
    upward: Float64[np.ndarray, " C"],
) -> tuple[Float64[np.ndarray, "R K"], Float64[np.ndarray, " K"]]:
    """The slow directions turned so that the first moves the channels most, and so on; how much.

    Directions that are equally slow could be turned at will; this fixes them.
    """
    loading = products @ slow
    weight, turn = np.linalg.eigh(loading.T @ loading)
    slow = slow @ turn[:, ::-1]
    # The sign of an eigenvector is nobody's choice; so, a factor rises as power does.
    total = upward @ (products @ slow)
    return slow * np.where(total < 0, -1.0, 1.0), weight[::-1].clip(min=0)


def _consumption(mean: Float32[Tensor, " C"]) -> Float64[np.ndarray, " C"]:
    """The mean P of every bus, in its channel: loads positive, generation negative; else 0."""
    found = np.zeros(len(mean))
    found[P::KINDS] = mean[P::KINDS].double().numpy()
    return found


def _noise(
    record: Blocks,
    mean: Float32[Tensor, " C"],
    loading: Float64[np.ndarray, "K C"],
    series: Float64[np.ndarray, "S K"],
) -> Float32[Tensor, "K+1 C"]:
    """What no factor explains: each channel's mean absolute value, as a line in the factors."""
    factors, loads = torch.from_numpy(series).float(), torch.from_numpy(loading).float()
    line = torch.zeros((1 + len(loads), record.n_channels), dtype=torch.float64)
    for steps, states in record:
        size = (states - mean - factors[steps] @ loads).abs()
        line[0] += size.sum(0)
        line[1:] += factors[steps].T @ size
    return (line / len(record)).float()
