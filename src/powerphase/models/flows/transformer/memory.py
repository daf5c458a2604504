"""How much memory a training takes, before it is begun.

The counts were fitted on a CPU with 118 and 500 buses and batches of 8 to 32, of which a training
took within 7 % of this. On a GPU nothing was fitted.
"""

from powerphase.models.flows.memory import flow_numbers
from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.memory import PRODUCTS, Size

STEPS = 20.0
"""Tensors of windows × steps × width that a layer keeps, beside its inner ones."""
INNER = 4.0
"""Tensors of windows × steps × feed-forward units."""
WEIGHTS = 3.0
"""Tensors of windows × heads × steps × steps that attention with dropout keeps on a CPU; a GPU has
a form without them."""


def step_numbers(
    config: TransformerTempFlowConfig,
    size: Size,
    channel_block: int | None,
    on_gpu: bool,
    fast: bool,
) -> float:
    """Numbers that a step has at its peak.

    Args:
        config: all constants.
        size: of the training.
        channel_block: channels of a block; None for as many as the network chooses.
        on_gpu: whether that is a GPU.
        fast: whether Triton's kernels run.
    """
    encoded, rows = size.context - max(config.lags), size.counted * size.horizon
    steps = encoded + 2 * size.horizon  # a layer of the decoder attends twice
    products = (size.context + max(config.lags) + size.horizon) * len(config.lags) * config.width
    layers = config.layers * steps * (STEPS * config.width + INNER * config.feed_forward)
    pairs = encoded**2 + size.horizon * (encoded + size.horizon)
    weights = 0.0 if on_gpu else WEIGHTS * config.layers * config.heads * pairs
    front = size.counted * (PRODUCTS * products + layers + weights)
    past = size.counted * size.context
    projected = past * channels_at_once(channel_block, size.n_channels, past)
    blocks, kept = flow_numbers(config, rows, size.n_channels, channel_block, fast)
    return front + max(blocks, 2 * projected) + kept
