"""TimePrism as a forecaster: what ties the network to training, prediction and memory."""

from collections.abc import Iterator
from math import ceil
from typing import ClassVar

import torch
from torch import nn

from powerphase.models.framework.device import team_size
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Place
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.memory import memory_gib
from powerphase.models.timeprism.network import TimePrismNetwork
from powerphase.scenarios import Context, Scenarios, Training

ANSWER_BYTES = 256 * 2**20
"""Of the scenarios that are made at a time: those of a large grid are 9 GB a window."""


class TimePrism(NeuralForecaster):
    """Every channel by itself, in hundreds of weighted hypotheses."""

    name = "timeprism"
    config_type = TimePrismConfig
    batch_sizes: ClassVar[tuple[int, ...]] = (100, 64, 32, 16, 8)

    def make_network(self, place: Place) -> nn.Module:
        """The network for these windows; the grid does not matter to it."""
        return TimePrismNetwork(self.config, place.context, place.horizon, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
        windows = train.validation
        return memory_gib(
            self.config,
            ceil((self.config.training.batch_size or self.batch_sizes[0]) / team_size()),
            train.layout.n_channels,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            self.is_recorded(self.outline(train)),
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
            yield here, self.network.scenarios(context, here, folded)
