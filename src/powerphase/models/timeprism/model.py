"""TimePrism as a forecaster, and the memory that its training takes.

The constants of the estimate were fitted to steps on a CPU, and met them within 5 %: 40 to 400
channels with 625 hypotheses and 800 channels with 16, in batches of 8 and 100 and blocks of 1,600
to 32,700 rows. Training ACTIVSg 500 with a batch of 100 then took 3.0 GiB, as estimated. Nothing
was measured on a GPU.
"""

from collections.abc import Iterator
from math import ceil

import torch

from powerphase.models.framework.device import world_size
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster, gib, peak_numbers
from powerphase.models.framework.run import Domain
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.network import TimePrismNetwork, channels_at_once
from powerphase.scenarios import Context, Scenarios, Training

HEADS = 10.0
"""Copies of the heads: weights, gradient, Adam's two moments, and the linear map twice."""

ALWAYS_GIB = 0.55
"""At any size: torch, the data reader, workspace of matrix products."""


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
    """The estimated peak on the device of one process, training record and network included.

    Args:
        config: the network's settings.
        batch: windows of a process's batch.
        n_channels: channels of the grid.
        record_steps: steps of the training record, which stays on the device.
        validation_windows: windows that stay there too.
        windows: steps of context and horizon.
        channel_block: channels that are computed at a time; None for the default.
        captured: whether a CUDA graph replays the steps, which keeps a copy of their batch.
    """
    context, horizon = windows
    outputs = (config.trends + config.seasons) * horizon + config.hypotheses
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    gathered = (2 if captured else 1) * batch * n_channels * (context + horizon)
    rows = batch * min(channels_at_once(channel_block, batch), n_channels)
    # Of a row: inputs, the heads' outputs, the seasons' gradients, and the distances, shares and
    # weights of all hypotheses.
    row = context + horizon + outputs + config.seasons * horizon + 3 * config.hypotheses
    block, heads = float(rows * row), outputs * (context + 1)
    peak = peak_numbers(block, block, heads, captured)
    return ALWAYS_GIB + gib(kept + gathered + peak + HEADS * heads)


ANSWER_BYTES = 256 * 2**20
"""Scenarios that are computed at a time; those of a large grid are 9 GB a window."""


class TimePrism(NeuralForecaster):
    """Forecasts each channel by itself, with hundreds of weighted hypotheses."""

    name = "timeprism"
    config_type = TimePrismConfig
    joint_scenarios = False  # every channel has weights of its own

    def make_network(self, domain: Domain) -> Network:
        """The network for these windows; it is the same for every grid."""
        config = self.config.at_step(domain.step_s)
        return TimePrismNetwork(config, domain.context, domain.horizon, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        windows = train.validation
        return memory_gib(
            self.config,
            ceil(self.config.training.batch_size / world_size()),
            train.layout.n_channels,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            self.is_captured(self.meta_network(train)),
        )

    def _predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """All hypotheses, one block of channels after another."""
        assert isinstance(self.network, TimePrismNetwork)
        windows, _, n_channels = context.past.shape
        per_channel = (
            windows * self.config.hypotheses * context.horizon * context.past.element_size()
        )
        at_once = min(self.channel_block or n_channels, max(1, ANSWER_BYTES // per_channel))
        with torch.no_grad():
            heads = self.network.heads.linear_map()
        for first in range(0, n_channels, at_once):
            channels = slice(first, min(first + at_once, n_channels))
            yield channels, self.network.scenarios(context, channels=channels, heads=heads)
