"""How much memory a training of TimePrism takes, before it is begun.

The counts were fitted to steps on a CPU, which they met within 5 %: of 40 to 400 channels with 625
hypotheses and of 800 with 16, in batches of 8 and 100 and blocks of 1,600 to 32,700 rows. A
training of ACTIVSg 500 with a batch of 100 then took 3.0 GiB, as is said here. Nothing was measured
on a GPU.
"""

from powerphase.models.framework.memory import gib, peak_numbers
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.network import channels_at_once

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
    recorded: bool,
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
        recorded: whether steps are, which keep a copy of their batch.
    """
    context, horizon = windows
    made = (config.trends + config.seasons) * horizon + config.hypotheses
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    gathered = (2 if recorded else 1) * batch * n_channels * (context + horizon)
    rows = batch * min(channels_at_once(channel_block, batch), n_channels)
    # Of a row: what goes in, what the heads make of it, the seasons' slopes, and all hypotheses'
    # distances, shares and weights.
    row = context + horizon + made + config.seasons * horizon + 3 * config.hypotheses
    block, heads = float(rows * row), made * (context + 1)
    peak = peak_numbers(block, block, heads, recorded)
    return ALWAYS_GIB + gib(kept + gathered + peak + HEADS * heads)
