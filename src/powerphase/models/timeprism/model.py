"""TimePrism as a forecaster: what ties the network to training, prediction and memory."""

from collections.abc import Iterator
from math import ceil
from typing import ClassVar

import torch

from powerphase.models.framework.device import world_size
from powerphase.models.framework.memory import gib, peak_numbers
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Domain
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.network import TimePrismNetwork, channels_at_once
from powerphase.scenarios import Context, Scenarios, Training

HEADS = 10.0
"""Copies of the heads: themselves, gradient, Adam's two moments, and what folds them and back."""

ALWAYS_GIB = 0.55
"""Whatever the size: torch, the reader of data sets, work space of matrix products."""


def memory_gib(
    config: TimePrismConfig,
    batch: int,
    n_channels: int,
    record_steps: int,
    validation_windows: int,
    windows: tuple[int, int],
    channel_block: int | None,
    captured: bool,
) -> float:
    """About the peak on one process's device, with the record and the network itself.

    Args:
        config: of the network.
        batch: windows that a process trains on at a time.
        n_channels: channels of the grid.
        record_steps: steps of the training record, which is kept on the device.
        validation_windows: windows that are kept there too.
        windows: steps of context and horizon.
        channel_block: channels that are judged at a time, or None for the default.
        captured: whether steps are, which keep a copy of their batch.
    """
    context, horizon = windows
    made = (config.trends + config.seasons) * horizon + config.hypotheses
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    gathered = (2 if captured else 1) * batch * n_channels * (context + horizon)
    rows = batch * min(channels_at_once(channel_block, batch), n_channels)
    # Of a row: what goes in, what the heads make of it, the seasons' slopes, and all hypotheses'
    # distances, shares and weights.
    row = context + horizon + made + config.seasons * horizon + 3 * config.hypotheses
    block, heads = float(rows * row), made * (context + 1)
    peak = peak_numbers(block, block, heads, captured)
    return ALWAYS_GIB + gib(kept + gathered + peak + HEADS * heads)


ANSWER_BYTES = 256 * 2**20
"""Of the scenarios that are made at a time: those of a large grid are 9 GB a window."""


class TimePrism(NeuralForecaster):
    """Every channel by itself, in hundreds of weighted hypotheses."""

    name = "timeprism"
    config_type = TimePrismConfig
    batch_sizes: ClassVar[tuple[int, ...]] = (100, 64, 32, 16, 8)

    def make_network(self, domain: Domain) -> Network:
        """The network for these windows; the grid does not matter to it."""
        return TimePrismNetwork(self.config, domain.context, domain.horizon, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
        windows = train.validation
        return memory_gib(
            self.config,
            ceil((self.config.training.batch_size or self.batch_sizes[0]) / world_size()),
            train.layout.n_channels,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            self.is_captured(self.outline(train)),
        )

    def answer(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """All hypotheses of one block of channels after another."""
        assert isinstance(self.network, TimePrismNetwork)
        windows, _, n_channels = context.past.shape
        one = windows * self.config.hypotheses * context.horizon * context.past.element_size()
        at_once = min(self.channel_block or n_channels, max(1, ANSWER_BYTES // one))
        with torch.no_grad():
            folded = self.network.heads.folded()
        for first in range(0, n_channels, at_once):
            here = slice(first, min(first + at_once, n_channels))
            yield here, self.network.scenarios(context, channels=here, folded=folded)
