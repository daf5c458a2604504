"""How much memory a training of PowerForge takes, before it is begun.

The factors count tensors of each size that live at the peak, and were measured: on an H200 from 500
to 9,241 buses, with and without blocks, the estimate is within 2 % of what was allocated.
"""

from powerphase.axes import KINDS
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.training import VALIDATION_SHARE

NUMBER_BYTES = 4
DECODED, INPUT, STATE = 6.8, 3.4, 6.0
"""Tensors of windows × channels × (scenarios × steps | context | hidden), at the peak."""

SCORED = 8.0
"""Of windows × scenarios × steps × channels, when the validation windows are scored."""


def memory_gib(
    config: PowerForgeConfig,
    batch: int,
    n_buses: int,
    record_steps: int,
    validation_windows: int,
    windows: tuple[int, int],
    channel_block: int | None,
) -> float:
    """About the peak on one process's device, with the record and the network itself.

    Args:
        config: of the network.
        batch: windows that a process trains on at a time.
        n_buses: buses of the grid.
        record_steps: steps of the training record, which is kept on the device.
        validation_windows: windows that are kept there too.
        windows: steps of context and horizon.
        channel_block: channels that are decoded at a time, or None for all.
    """
    context, horizon = windows
    n_channels = KINDS * n_buses
    decoded = config.scenarios * horizon
    at_once = min(channel_block or n_channels, n_channels)
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    training = batch * (
        DECODED * at_once * decoded
        + n_channels * (INPUT * (context + horizon) + STATE * config.hidden)
    )
    validation = SCORED * max(1, batch // VALIDATION_SHARE) * n_channels * decoded
    return NUMBER_BYTES * (kept + max(training, validation)) / 2**30
