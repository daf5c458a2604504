"""Scenarios from past days of the training record, whose noise belongs together as it happened.

Noise that is drawn for every channel by itself separates the voltages at both ends of a line, and
the flow in the line with them. A past day is a solution of the AC equations; moved to other factors
by the loadings, it nearly remains one.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float32, Int, Shaped
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.models.factorforge.factor_forecaster import typical_windows, window_origins
from powerphase.models.factorforge.factors import Blocks, Factors
from powerphase.models.factorforge.fitted import FittedFactorForge
from powerphase.scenarios import READ_STEPS, Scenarios, Training
from powerphase.seeds import stream

CHANNELS_AT_ONCE = 1024
"""Channels whose days are read together; a multiple of the channels of a stored chunk."""


class HeldOutDays:
    """The days that were held out from the regressions of a fit, and what was forecast for them.

    Args:
        fitted: the fit.
        train: the record that it was fitted to.
    """

    def __init__(self, fitted: FittedFactorForge, train: Training) -> None:
        errors, self._factors, self._train = fitted.forecaster.errors, fitted.factors, train
        windows, config = train.validation, fitted.forecaster.config
        size = (windows.context_steps, windows.horizon)
        starts = window_origins(train.time, *size, config, train.origin_s)
        ahead = None
        if fitted.forecaster.known is not None:
            ahead = train.record.known_at(starts, *size, complete=False)
        self._starts = starts[typical_windows(ahead, len(starts))]
        if len(self._starts) != len(errors):
            raise ForecastError(
                f"factorforge was fitted to {len(errors)} days, and the record has "
                f"{len(self._starts)}; give the record that it was fitted to"
            )
        series = torch.cat([fitted.factors.of(states) for _, states in Blocks(train)])
        happened = series[self._starts[:, None] + np.arange(windows.horizon)]
        self._forecast = happened - torch.from_numpy(errors).to(happened)

    def scenarios(
        self,
        future: Float32[Tensor, "B H K"],
        start: Shaped[np.ndarray, " B"],
        count: int,
        seed: int,
    ) -> Iterator[tuple[slice, Scenarios]]:
        """Random days, each moved by how much this forecast differs from that of the day.

        A scenario has the error of its day and the noise of its day. No day comes twice, unless
        there are too few.
        """
        chosen = [
            np.resize(stream(seed, "days", str(moment)).permutation(len(self._starts)), count)
            for moment in start
        ]
        moves = [
            window - self._forecast[days].to(window)
            for window, days in zip(future, chosen, strict=True)
        ]
        starts = self._starts[np.stack(chosen)]
        return moved_days(self._factors, self._train, torch.stack(moves), starts)


def moved_days(
    factors: Factors,
    train: Training,
    moves: Float32[Tensor, "B M H K"],
    starts: Int[np.ndarray, "B M"],
) -> Iterator[tuple[slice, Scenarios]]:
    """Joint scenarios: past days with their factors moved, in blocks of channels.

    Args:
        factors: their loadings say how channels move with factors.
        train: the record that has the days.
        moves: the difference of the factors at every step.
        starts: the first step of the past day for each scenario.
    """
    n_channels = len(factors.mean)
    for first in range(0, n_channels, CHANNELS_AT_ONCE):
        channels = slice(first, min(first + CHANNELS_AT_ONCE, n_channels))
        loading, values = factors.loading[:, channels], []
        for move, days in zip(moves, starts, strict=True):
            past = read_days(train, days, moves.shape[2], channels).to(move)
            values.append(past.add_(move @ loading.to(move)))
        yield channels, Scenarios.equal(torch.stack(values))


def read_days(
    train: Training, starts: Int[np.ndarray, " M"], horizon: int, channels: slice
) -> Float32[Tensor, "M H C"]:
    """Days of the record from these steps on, of some channels."""
    width = channels.stop - channels.start
    days = torch.empty((len(starts), horizon, width))
    block = starts // READ_STEPS
    for number in np.unique(block):  # a stored block is unpacked once for all of its days
        members = np.flatnonzero(block == number)
        first, stop = int(starts[members].min()), int(starts[members].max()) + horizon
        steps = torch.from_numpy(starts[members, None] - first + np.arange(horizon))
        days[members] = train.read(slice(first, stop), channels)[steps]
    return days
