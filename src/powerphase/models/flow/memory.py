"""How much memory the flow takes in a step of training.

The counts were fitted to TempFlow on a CPU with 118 to 1,354 buses and batches of 8 to 32. Without
blocks of channels, what a training took was up to 12 % less than this; with small ones it was up to
a third more, which is what the allocator wastes: with one that gives everything back, it was less.
On a GPU nothing was fitted.
"""

from powerphase.models.flow.config import FlowConfig

BLOCKS = 10.0
"""Tensors of rows × a block of channels."""
KEPT = 3.0
"""Tensors of rows × all channels: halves that were moved, and their gradients."""
INNER = 14.0
"""Tensors of rows × hidden units that a coupling keeps."""


def kept_numbers(config: FlowConfig, rows: int, n_channels: int) -> float:
    """Numbers beside the blocks, for so many steps of windows."""
    return rows * (KEPT * n_channels + INNER * config.couplings * config.hidden)
