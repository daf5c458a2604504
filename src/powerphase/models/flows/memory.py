"""Estimates of the memory of a training step: of the flow, and of the Transformer.

The flow's counts for PyTorch were fitted to TempFlow on a CPU with 118 to 1,354 buses and batches
of 8 to 32. Without blocks of channels, trainings took up to 12 % less than the estimate. With small
blocks they took up to a third more because of fragmentation; with an allocator that returns all
memory they took less. The counts for kernels are the tensors that their code keeps, two and two,
plus half a tensor or a whole one for fragmentation. Values with noise count as one more tensor; on
a CPU with 118 buses a batch of 24 took no more, since such values need no division.

The Transformer's counts were fitted on a CPU with 118 and 500 buses and batches of 8 to 32;
trainings took within 7 % of the estimate. Nothing was fitted on a GPU.
"""

from typing import NamedTuple

from powerphase.models.flows.config import FlowConfig, TransformerTempFlowConfig
from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.memory import PRODUCTS, Size

COUPLING_TENSORS = 14.0
"""Tensors of rows × hidden units that a coupling keeps."""


class TensorCounts(NamedTuple):
    """Tensors of the flow in memory at the peak."""

    blocks: float
    """Tensors of rows × a block of channels."""
    full: float
    """Tensors of rows × all channels: transformed halves and their gradients."""


PLAIN, KERNELS = TensorCounts(10.0, 3.0), TensorCounts(3.0, 2.5)

KERNEL_BLOCKS = 3
"""How many times wider a block is with kernels: they need that much less memory for it, and each
block reads all tensors as wide as the networks again."""

STEP_TENSORS = 20.0
"""Tensors of windows × steps × width that a Transformer layer keeps, without the feed-forward."""
FEED_FORWARD_TENSORS = 4.0
"""Tensors of windows × steps × feed-forward units that a layer keeps."""
ATTENTION_TENSORS = 3.0
"""Tensors of windows × heads × steps × steps that attention with dropout keeps on a CPU; on a GPU
it keeps none."""


def flow_block_size(channel_block: int | None, n_channels: int, rows: int, fast: bool) -> int:
    """Channels per block of the flow."""
    rows = max(1, rows // KERNEL_BLOCKS) if fast else rows
    return channels_at_once(channel_block, n_channels, rows)


def flow_numbers(
    config: FlowConfig, rows: int, n_channels: int, channel_block: int | None, fast: bool
) -> tuple[float, float]:
    """Numbers of the flow in blocks of channels, and in full tensors.

    Args:
        config: all settings.
        rows: windows × steps.
        n_channels: channels of the grid.
        channel_block: channels per block; None for the default of the network.
        fast: whether Triton kernels run.
    """
    tensors = KERNELS if fast else PLAIN
    blocks = tensors.blocks * rows * flow_block_size(channel_block, n_channels, rows, fast)
    full = tensors.full + bool(config.noise)  # values with noise are a new tensor
    return blocks, rows * (full * n_channels + COUPLING_TENSORS * config.couplings * config.hidden)


def transformer_step_numbers(
    config: TransformerTempFlowConfig,
    size: Size,
    channel_block: int | None,
    on_gpu: bool,
    fast: bool,
) -> float:
    """Numbers at the peak of a step of Transformer-TempFlow.

    Args:
        config: all settings.
        size: sizes of the training.
        channel_block: channels per block; None for the default of the network.
        on_gpu: whether the device is a GPU.
        fast: whether Triton kernels run.
    """
    encoded, rows = size.context - max(config.lags), size.loss_windows * size.horizon
    steps = encoded + 2 * size.horizon  # a decoder layer attends twice
    products = (size.context + max(config.lags) + size.horizon) * len(config.lags) * config.width
    units = STEP_TENSORS * config.width + FEED_FORWARD_TENSORS * config.feed_forward
    layers = config.layers * steps * units
    pairs = encoded**2 + size.horizon * (encoded + size.horizon)
    attention = 0.0 if on_gpu else ATTENTION_TENSORS * config.layers * config.heads * pairs
    encoder = size.loss_windows * (PRODUCTS * products + layers + attention)
    past = size.loss_windows * size.context
    projected = past * channels_at_once(channel_block, size.n_channels, past)
    blocks, full = flow_numbers(config, rows, size.n_channels, channel_block, fast)
    return encoder + max(blocks, 2 * projected) + full
