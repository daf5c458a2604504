"""What ties networks with this front end to training, prediction and memory."""

from abc import abstractmethod
from math import ceil
from typing import Any, ClassVar

from powerphase.axes import KINDS
from powerphase.models.framework.device import world_size
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Domain
from powerphase.models.recurrent.memory import Size, memory_gib
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.scenarios import Training


class RecurrentModel(NeuralForecaster):
    """What all forecasters with a recurrent encoder share; a model adds its network."""

    network_type: ClassVar[type[RecurrentNetwork]]

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (KINDS * domain.n_buses, domain.context, domain.horizon)
        chosen: dict[str, Any] = {"backend": self.backend} if self.takes_backend else {}
        return self.network_type(self.config, *size, self.channel_block, **chosen)

    @abstractmethod
    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Numbers that a step has at its peak, beside the batch and the weights."""

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks."""
        windows, network = train.validation, self.outline(train)
        assert isinstance(network, RecurrentNetwork)
        batch = ceil(self.config.training.batch_size / world_size())
        size = Size(
            train.layout.n_channels,
            len(train.record),
            len(windows),
            windows.context_steps,
            windows.horizon,
            batch,
            len(range(batch)[network.counted]),
            sum(one.numel() for one in network.parameters()),
            self.is_captured(network),
        )
        validation = self.validation_numbers(size.validation, channel_block)
        return memory_gib(size, self.step_numbers(size, channel_block), validation)

    def validation_numbers(self, size: Size, channel_block: int | None) -> float:
        """Numbers that a batch of validation has, at most: those of a step of as many windows."""
        return self.step_numbers(size, channel_block)
