"""TACTiS-2 as a forecaster."""

from math import ceil

from torch import nn

from powerphase.axes import KINDS
from powerphase.models.framework.device import world_size
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import (
    ALWAYS_GIB,
    PER_PARAMETER,
    VALIDATION,
    NeuralForecaster,
    gib,
    peak_numbers,
)
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.network import TactisNetwork
from powerphase.scenarios import Training

# Fitted on a CPU with 4 buses and batches of 8 to 32; nothing was fitted on a GPU.
TENSORS = 36.0
"""Tensors that a step keeps, each with all tokens of the bags at the encoder's width."""
COPULA_TENSORS = 115.0
"""The same in the copula's stage: wider networks compute its keys and values."""


class TACTiS(NeuralForecaster):
    """TACTiS-2, as its reference implementation trains it."""

    name = "tactis-2"
    config_type = TactisConfig

    @property
    def joint_scenarios(self) -> bool:
        """Whether scenarios are joint draws: only a copula couples channels and steps.

        A copula that was never better than independence in its training is not used.
        """
        if isinstance(self.network, TactisNetwork):
            return self.network.is_joint
        return bool(self.config.copula)

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (KINDS * domain.n_buses, domain.context, domain.horizon)
        return TactisNetwork(self.config, *size, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        config, windows = self.config, train.validation
        n_channels, steps = train.layout.n_channels, windows.context_steps + windows.horizon
        batch, bag = ceil(config.training.batch_size / world_size()), min(config.bag, n_channels)
        at_once = min(batch, max(1, (channel_block or batch * bag) // bag))
        network = self.meta_network(train)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        gathered = steps * (batch + VALIDATION * len(windows))
        numbers = n_channels * (len(train.record) + gathered) + PER_PARAMETER * parameters
        tensors = COPULA_TENSORS if config.copula else TENSORS
        window = tensors * bag * steps * config.width
        validated = min(at_once, max(1, batch // VALIDATION_SHARE))
        captured = self.is_captured(network)
        peak = peak_numbers(window * at_once, window * validated, parameters, captured)
        return ALWAYS_GIB + gib(numbers + peak)

    @classmethod
    def trained_parameters(cls, network: nn.Module) -> dict[str, nn.Parameter]:
        """All parameters: the last stage trains only some of them."""
        return dict(network.named_parameters())
