"""PowerForge as a forecaster: what ties the network to training, prediction and memory."""

from math import ceil
from typing import NamedTuple

import torch

from powerphase.axes import KINDS
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.kernels import uses_triton
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.ops import window_seeds
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Context, Scenarios, Training

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


class PowerForge(NeuralForecaster):
    """The paper's forecaster."""

    name = "powerforge"
    config_type = PowerForgeConfig
    takes_backend = True

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (domain.n_buses, domain.context, domain.horizon)
        return PowerForgeNetwork(self.config, *size, self.channel_block, self.backend)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
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

    def _predict(self, context: Context) -> Scenarios:
        """What the network says; where noise is asked for, it is that of the window."""
        assert isinstance(self.network, PowerForgeNetwork)
        if not self.config.noise_at_prediction:
            return self.network.scenarios(context)
        number = window_seeds(self.seed, context.time)[0]
        generator = torch.Generator().manual_seed(number)  # the same on every device
        return self.network.scenarios(context, generator=generator)
