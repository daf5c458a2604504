"""How much memory a training with this front end takes, before it is begun.

The counts were fitted to DeepAR and TimeMCL on a CPU with 14 to 1,354 buses, batches of 8 to 64,
with blocks of channels and without: what a training took was within 15 % of this. On a GPU nothing
was fitted. TimeMCL's head was counted anew when its distances were: with 118 and 500 buses, batches
of 16 and 64, a training took 16 % less to 6 % more.
"""

from typing import NamedTuple

from powerphase.models.framework.memory import (
    ALWAYS_GIB,
    PER_PARAMETER,
    VALIDATION,
    gib,
    peak_numbers,
)
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.config import RecurrentConfig
from powerphase.models.recurrent.encoder import GATES

BATCHES = 2.0
"""Copies of a batch: as it is gathered, and where a captured step looks for it."""
PRODUCTS = 2.5
"""Tensors of windows × steps × (lags × gates)."""
STATES = 5.0
"""Tensors of windows × steps × gates that the LSTM keeps."""


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
    captured: bool = False
    """Whether steps are, on a GPU."""

    @property
    def validation(self) -> "Size":
        """The same with so many windows as are validated at a time."""
        share = max(1, self.batch // VALIDATION_SHARE)
        return self._replace(batch=share, counted=min(share, self.counted))

    def rows(self, config: RecurrentConfig) -> int:
        """Steps of windows that are encoded, and that a head is judged by."""
        return self.counted * (self.context + self.horizon - max(config.lags))


def memory_gib(size: Size, step: float, validation: float) -> float:
    """About the peak on one process's device, with the record and the network itself.

    Args:
        size: of the training.
        step: numbers that a step has at its peak, beside the batch and the weights.
        validation: those of a batch of validation windows.
    """
    steps = size.context + size.horizon
    kept = size.n_channels * (size.record_steps + VALIDATION * size.validation_windows * steps)
    batch = BATCHES * size.batch * steps * size.n_channels
    peak = peak_numbers(step, validation, size.parameters, size.captured)
    return ALWAYS_GIB + gib(kept + batch + PER_PARAMETER * size.parameters + peak)


def step_numbers(
    config: RecurrentConfig, size: Size, channel_block: int | None, head: float
) -> float:
    """Numbers that a step of the recurrent encoder and a head has at its peak.

    Args:
        config: of the front end.
        size: of the training.
        channel_block: channels of a block; None for as many as the network chooses.
        head: numbers of the head.
    """
    rows = size.rows(config)
    encoded = rows * GATES * config.cells * (PRODUCTS * len(config.lags) + STATES)
    at_once = channels_at_once(channel_block, size.n_channels, rows)
    projected = size.counted * (size.context + size.horizon) * at_once
    return encoded + max(head, 2 * projected)


def block_numbers(
    rows: int, n_channels: int, channel_block: int | None, tensors: float, copies: int = 1
) -> float:
    """Numbers in so many tensors of a block.

    Args:
        rows: steps of windows.
        n_channels: of the grid.
        channel_block: channels of a block; None for as many as the network chooses.
        tensors: that there are at a time.
        copies: how many values of each channel they have side by side.
    """
    return tensors * copies * rows * channels_at_once(channel_block, n_channels, copies * rows)
