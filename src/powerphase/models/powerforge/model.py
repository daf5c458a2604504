"""PowerForge as a forecaster, and the memory that its training takes.

The factors of the estimate count the tensors of each size that exist at the peak. They were fitted
to measurements: the kernels' on an H200 with 500 to 9,241 buses, within 3 % of what a step then
allocated (later trainings on the five larger grids took 12 to 18 % less than the estimate); plain
PyTorch's on a CPU with 500 to 2,000 buses, with and without blocks. PEGASE 9241 in blocks of 4,000
channels, with a batch of 4, then took 12.2 GiB; the estimate was 12.3.
"""

from math import ceil
from typing import NamedTuple

from powerphase.axes import KINDS
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.kernels import uses_triton
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Training

NUMBER_BYTES = 4
GIB = 2**30


class Factors(NamedTuple):
    """Numbers of tensors of windows × channels × (scenarios × steps, input steps, hidden)."""

    decoded: float
    input: float
    state: float


KERNELS, PLAIN = Factors(2.15, 2.9, 15.5), Factors(4.2, 5.5, 16.0)

ALWAYS_GIB = 0.33
"""At any size: workspace of matrix products, sums of programs, the network itself."""

VALIDATION_TENSORS = 8.0
"""Tensors of windows × scenarios × steps × channels, if validation computes scenarios."""


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
    """The estimated peak on the device of one process, training record and network included.

    Args:
        config: the network's settings.
        batch: windows of a process's batch.
        n_buses: buses of the grid.
        record_steps: steps of the training record, which stays on the device.
        validation_windows: windows that stay there too.
        windows: steps of context and horizon.
        channel_block: channels that are decoded at a time; None for all.
        fast: whether Triton kernels run.
    """
    context, horizon = windows
    factors, n_channels = KERNELS if fast else PLAIN, KINDS * n_buses
    at_once = min(channel_block or n_channels, n_channels)
    decoded = config.scenarios * horizon
    data = n_channels * (record_steps + validation_windows * (context + horizon))
    encoded = n_channels * (factors.input * (context + horizon) + factors.state * config.hidden)
    training = batch * (factors.decoded * at_once * decoded + encoded)
    share = max(1, batch // VALIDATION_SHARE)
    validation = training * share / batch
    if config.training.criterion == "crps" and config.objective != "ordered-quantile":
        validation = VALIDATION_TENSORS * share * n_channels * decoded
    # A captured step keeps its memory to itself.
    peak = training + validation if fast else max(training, validation)
    return ALWAYS_GIB + NUMBER_BYTES * (data + peak) / GIB


class PowerForge(NeuralForecaster):
    """The paper's forecaster."""

    name = "powerforge"
    config_type = PowerForgeConfig
    joint_scenarios = False  # scenarios are quantile levels, each channel's by itself
    takes_backend = True

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (domain.n_buses, domain.context, domain.horizon)
        config = self.config.at_step(domain.step_s)
        return PowerForgeNetwork(config, *size, self.channel_block, self.backend)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        windows, config = train.validation, self.config.for_grid(train.layout.grid)
        return memory_gib(
            config,
            ceil(config.training.batch_size / world_size()),
            train.layout.n_buses,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            uses_triton(self.backend, choose_device(self.device)),
        )
