"""How much memory the flow takes in a step of training.

The plain form's counts were fitted to TempFlow on a CPU with 118 to 1,354 buses and batches of 8 to
32. Without blocks of channels, what a training took was up to 12 % less than this; with small ones
it was up to a third more, which is what the allocator wastes: with one that gives everything back,
it was less. Those of the kernels are what their code keeps, two and two, and half a tensor or a
whole one for what an allocator wastes. On a GPU nothing was fitted. Values with noise count as one
tensor more; on a CPU with 118 buses a batch of 24 took no more, for they need no dividing.
"""

from typing import NamedTuple

from powerphase.models.flows.config import FlowConfig
from powerphase.models.recurrent.blocks import channels_at_once

INNER = 14.0
"""Tensors of rows × hidden units that a coupling keeps."""


class Tensors(NamedTuple):
    """What there is at the peak."""

    blocks: float
    """Tensors of rows × a block of channels."""
    kept: float
    """Tensors of rows × all channels: halves that were moved, and their gradients."""


PLAIN, KERNELS = Tensors(10.0, 3.0), Tensors(3.0, 2.5)

WIDER = 3
"""Times as many channels has a block where kernels run: what they make of it is so much less, and
all that is as wide as the networks is read again for each block."""


def flow_block(channel_block: int | None, n_channels: int, rows: int, fast: bool) -> int:
    """Channels of a block of the flow."""
    return channels_at_once(channel_block, n_channels, max(1, rows // WIDER) if fast else rows)


def flow_numbers(
    config: FlowConfig, rows: int, n_channels: int, channel_block: int | None, fast: bool
) -> tuple[float, float]:
    """Numbers in blocks of channels, and beside them.

    Args:
        config: all constants.
        rows: steps of windows.
        n_channels: of the grid.
        channel_block: channels of a block; None for as many as the network chooses.
        fast: whether Triton's kernels run.
    """
    tensors = KERNELS if fast else PLAIN
    blocks = tensors.blocks * rows * flow_block(channel_block, n_channels, rows, fast)
    kept = tensors.kept + bool(config.noise)  # values with noise are a tensor of their own
    return blocks, rows * (kept * n_channels + INNER * config.couplings * config.hidden)
