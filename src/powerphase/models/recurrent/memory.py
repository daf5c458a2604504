"""An estimate of the memory of a training with the recurrent encoder, before it starts.

The counts were fitted to DeepAR and TimeMCL on a CPU with 14 to 1,354 buses and batches of 8 to 64,
with blocks of channels and without: trainings took within 15 % of the estimate. Nothing was fitted
on a GPU. TimeMCL's head was counted again after its distances were rewritten: with 118 and 500
buses and batches of 16 and 64, a training took 16 % less to 6 % more.
"""

from typing import NamedTuple

from powerphase.models.framework.neural import (
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
"""Copies of a batch: the gathered one, and the input buffer of a captured step."""
PRODUCTS = 2.5
"""Tensors of windows × steps × (lags × gates)."""
STATES = 5.0
"""Tensors of windows × steps × gates that the LSTM keeps."""


class Size(NamedTuple):
    """The size of a training."""

    n_channels: int
    record_steps: int
    validation_windows: int
    context: int
    horizon: int
    batch: int
    """Windows that a process gathers at a time."""
    loss_windows: int
    """Those of them that enter the loss."""
    parameters: int
    captured: bool = False
    """Whether steps are captured as a CUDA graph."""

    @property
    def steps(self) -> int:
        """Steps of a window, context and horizon."""
        return self.context + self.horizon

    @property
    def validation(self) -> "Size":
        """The same with as many windows as are validated at a time."""
        share = max(1, self.batch // VALIDATION_SHARE)
        return self._replace(batch=share, loss_windows=min(share, self.loss_windows))

    def rows(self, config: RecurrentConfig) -> int:
        """Encoded steps of windows, which a head predicts."""
        return self.loss_windows * (self.context + self.horizon - max(config.lags))


def memory_gib(size: Size, step: float, validation: float) -> float:
    """An estimate of the peak on one process's device, with the record and the network.

    Args:
        size: of the training.
        step: numbers at the peak of a step, on top of the batch and the weights.
        validation: numbers of a batch of validation windows.
    """
    steps = size.context + size.horizon
    kept = size.n_channels * (size.record_steps + VALIDATION * size.validation_windows * steps)
    batch = BATCHES * size.batch * steps * size.n_channels
    peak = peak_numbers(step, validation, size.parameters, size.captured)
    return ALWAYS_GIB + gib(kept + batch + PER_PARAMETER * size.parameters + peak)


def step_numbers(
    config: RecurrentConfig, size: Size, channel_block: int | None, head: float
) -> float:
    """Numbers at the peak of a step of the recurrent encoder and a head.

    Args:
        config: of the encoder.
        size: of the training.
        channel_block: channels of a block; None for the network's choice.
        head: numbers of the head.
    """
    rows = size.rows(config)
    encoded = rows * GATES * config.cells * (PRODUCTS * len(config.lags) + STATES)
    at_once = channels_at_once(channel_block, size.n_channels, rows)
    projected = size.loss_windows * (size.context + size.horizon) * at_once
    return encoded + max(head, 2 * projected)


def block_numbers(
    rows: int, n_channels: int, channel_block: int | None, tensors: float, copies: int = 1
) -> float:
    """Numbers in so many tensors of a block.

    Args:
        rows: steps of windows.
        n_channels: of the grid.
        channel_block: channels of a block; None for the network's choice.
        tensors: how many exist at a time.
        copies: values of each channel that they hold side by side.
    """
    return tensors * copies * rows * channels_at_once(channel_block, n_channels, copies * rows)
