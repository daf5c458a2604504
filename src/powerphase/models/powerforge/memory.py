"""How much memory a training of PowerForge takes, before it is begun.

The factors count tensors of each size that live at the peak, and were fitted to measurements: those
of the kernels on an H200 with 500 to 9,241 buses, within 3 % of what a step then allocated (later
trainings on the five larger grids took 12 to 18 % less than is said here); those of plain PyTorch
on a CPU with 500 to 2,000 buses, with and without blocks. PEGASE 9241 in blocks of 4,000 channels,
with a batch of 4, then took 12.2 GiB where 12.3 were expected.
"""

from typing import NamedTuple

from powerphase.axes import KINDS
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.powerforge.config import PowerForgeConfig

NUMBER_BYTES = 4
GIB = 2**30


class Factors(NamedTuple):
    """Tensors of windows × channels × (scenarios × steps | context and horizon | hidden)."""

    decoded: float
    input: float
    state: float


KERNELS, PLAIN = Factors(2.15, 2.9, 15.5), Factors(4.2, 5.5, 16.0)

ALWAYS_GIB = 0.33
"""Whatever the size: work space of matrix products, sums of programs, the network itself."""

SCORED = 8.0
"""Of windows × scenarios × steps × channels, when scenarios of validation windows are made."""


def memory_gib(
    config: PowerForgeConfig,
    batch: int,
    n_buses: int,
    record_steps: int,
    validation_windows: int,
    windows: tuple[int, int],
    channel_block: int | None,
    fast: bool,
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
        fast: whether Triton's kernels run.
    """
    context, horizon = windows
    factors, n_channels = KERNELS if fast else PLAIN, KINDS * n_buses
    at_once = min(channel_block or n_channels, n_channels)
    decoded = config.scenarios * horizon
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    encoded = n_channels * (factors.input * (context + horizon) + factors.state * config.hidden)
    training = batch * (factors.decoded * at_once * decoded + encoded)
    share = max(1, batch // VALIDATION_SHARE)
    validation = training * share / batch
    if config.objective != "ordered-quantile":
        validation = SCORED * share * n_channels * decoded
    # A recorded step keeps its memory to itself.
    peak = training + validation if fast else max(training, validation)
    return ALWAYS_GIB + NUMBER_BYTES * (kept + peak) / GIB
