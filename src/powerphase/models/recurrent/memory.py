"""How much memory a training with this front end takes, before it is begun.

The counts were fitted to DeepAR on a CPU with 14 to 1,354 buses and batches of 8 to 64. Without
blocks of channels, what a training took was within 10 % of this; with small ones it was up to a
third more, as much as the allocator wastes. On a GPU nothing was fitted.
"""

from typing import NamedTuple

from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.encoder import GATES

NUMBER_BYTES, GIB = 4, 2**30

PER_PARAMETER = 4.0
"""A weight, its gradient, and two numbers of Adam's."""
BATCHES = 2.0
"""Copies of a batch: as it is gathered, and where a recorded step looks for it."""
PRODUCTS = 2.5
"""Tensors of windows × steps × (lags × gates)."""
STATES = 5.0
"""Tensors of windows × steps × gates that the LSTM keeps."""
VALIDATION = 3.0
"""Copies of the validation windows, while they are read."""
ALWAYS_GIB = 0.45


class Size(NamedTuple):
    """What a training is of."""

    n_channels: int
    record_steps: int
    validation_windows: int
    context: int
    horizon: int
    batch: int
    """Windows that a process gathers at a time."""
    counted: int
    """Those of them that the loss is of."""
    parameters: int


def memory_gib(
    config: RecurrentConfig,
    size: Size,
    channel_block: int | None,
    tensors: float,
    copies: int = 1,
    beyond: float = 0.0,
) -> float:
    """About the peak on one process's device, with the record and the network itself.

    Args:
        config: of the front end.
        size: of the training.
        channel_block: channels of a block; None for as many as the network chooses.
        tensors: that a head has at its peak, of the size of a block.
        copies: how many values of each channel a block has side by side.
        beyond: numbers that a head keeps beside the blocks.
    """
    steps = size.context + size.horizon
    rows, gates = size.counted * (steps - max(config.lags)), GATES * config.cells
    encoded = rows * gates * (PRODUCTS * len(config.lags) + STATES)
    at_once = channels_at_once(channel_block, size.n_channels, copies * rows)
    # The projection has one tensor of its own blocks, with fewer copies in them.
    projected = size.counted * steps * channels_at_once(channel_block, size.n_channels, rows)
    blocks = max(tensors * copies * rows * at_once, 2 * projected)
    return gib(standing(size) + encoded + blocks + beyond)


def standing(size: Size) -> float:
    """Numbers that are there whatever a step does: the record, windows, weights and Adam's."""
    steps = size.context + size.horizon
    kept = size.n_channels * (size.record_steps + VALIDATION * size.validation_windows * steps)
    batch = BATCHES * size.batch * steps * size.n_channels
    return kept + batch + PER_PARAMETER * size.parameters


def gib(numbers: float) -> float:
    """So many numbers, and what a process takes without any."""
    return ALWAYS_GIB + NUMBER_BYTES * numbers / GIB
