"""PowerForge as a forecaster: what ties the network to training, prediction and memory."""

from math import ceil

import torch
from torch import nn

from powerphase.models.framework.device import choose_device, team_size
from powerphase.models.framework.kernels.backend import uses_triton
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Place
from powerphase.models.framework.sampling import window_seeds
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.memory import memory_gib
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Context, Scenarios, Training


class PowerForge(NeuralForecaster):
    """The paper's forecaster."""

    name = "powerforge"
    config_type = PowerForgeConfig
    takes_backend = True

    def make_network(self, place: Place) -> nn.Module:
        """The network for this grid and these windows."""
        size = (place.n_buses, place.context, place.horizon)
        return PowerForgeNetwork(self.config, *size, self.channel_block, self.backend)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
        windows, config = train.validation, self.config.for_grid(train.layout.grid)
        return memory_gib(
            config,
            ceil(config.training.batch_size / team_size()),
            train.layout.n_buses,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            uses_triton(self.backend, choose_device(self.device)),
        )

    def answer(self, context: Context) -> Scenarios:
        """What the network says; where noise is asked for, it is that of the window."""
        assert isinstance(self.network, PowerForgeNetwork)
        if not self.config.noise_at_prediction:
            return self.network.scenarios(context)
        number = window_seeds(self.seed, context.time)[0]
        generator = torch.Generator().manual_seed(number)  # the same on every device
        return self.network.scenarios(context, generator)
