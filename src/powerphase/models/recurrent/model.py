"""What ties networks with this front end to training, prediction and memory."""

from math import ceil
from typing import ClassVar

import torch
from torch import nn

from powerphase.axes import KINDS
from powerphase.models.device import team_size
from powerphase.models.recurrent.memory import Size, memory_gib
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.run import Place
from powerphase.models.trained import Trained
from powerphase.scenarios import Context, Scenarios, Training


class RecurrentModel(Trained):
    """What all forecasters with a recurrent encoder share; a model adds its network."""

    network_type: ClassVar[type[RecurrentNetwork]]
    head_tensors: ClassVar[float]
    """Tensors of a block of channels that live at the peak of a step."""

    def make_network(self, place: Place) -> nn.Module:
        """The network for this grid and these windows."""
        size = (KINDS * place.n_buses, place.context, place.horizon)
        return self.network_type(self.config, *size, self.channel_block)

    @property
    def copies(self) -> int:
        """How many values of each channel the head makes at a time."""
        return 1

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
        return self.gib(self._size(train), channel_block)

    def gib(self, size: Size, channel_block: int | None) -> float:
        """The same, for a training of this size."""
        return memory_gib(self.config, size, channel_block, self.head_tensors, self.copies)

    def _size(self, train: Training) -> Size:
        windows = train.validation
        place = Place.of(train.layout, windows.context_steps, windows.horizon)
        with torch.device("meta"):  # to count its numbers without having them
            network = self.make_network(place)
        assert isinstance(network, RecurrentNetwork)
        batch = ceil(self.config.training.batch_size / team_size())
        return Size(
            train.layout.n_channels,
            len(train.record),
            len(windows),
            place.context,
            place.horizon,
            batch,
            len(range(batch)[network.counted]),
            sum(one.numel() for one in network.parameters()),
        )

    def answer(self, context: Context) -> Scenarios:
        """What the network says; what is random in it is that of the window."""
        assert isinstance(self.network, RecurrentNetwork)
        return self.network.scenarios(context, self.seed)
