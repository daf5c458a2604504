"""TACTiS-2 as a forecaster."""

from math import ceil

from torch import nn

from powerphase.axes import KINDS
from powerphase.errors import TrainingError
from powerphase.models.framework.device import world_size
from powerphase.models.framework.memory import (
    ALWAYS_GIB,
    PER_PARAMETER,
    VALIDATION,
    gib,
    peak_numbers,
)
from powerphase.models.framework.network import Network
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.network import TactisNetwork
from powerphase.scenarios import Training

# Fitted on a CPU with 4 buses and batches of 8 to 32; on a GPU nothing was fitted.
TENSORS = 36.0
"""Tensors of all tokens of the bags that a step keeps, as wide as the encoder."""
COPULA_TENSORS = 115.0
"""The same where the copula learns, whose keys and values are made by wider networks."""


class TACTiS(NeuralForecaster):
    """The reference's TACTiS-2."""

    name = "tactis-2"
    config_type = TactisConfig

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (KINDS * domain.n_buses, domain.context, domain.horizon)
        return TactisNetwork(self.config, *size, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks of channels."""
        config, windows = self.config, train.validation
        n_channels, steps = train.layout.n_channels, windows.context_steps + windows.horizon
        batch, bag = ceil(config.training.batch_size / world_size()), min(config.bag, n_channels)
        at_once = min(batch, max(1, (channel_block or batch * bag) // bag))
        network = self.outline(train)
        parameters = sum(one.numel() for one in network.parameters())
        gathered = steps * (batch + VALIDATION * len(windows))
        numbers = n_channels * (len(train.record) + gathered) + PER_PARAMETER * parameters
        tensors = COPULA_TENSORS if config.copula else TENSORS
        window = tensors * bag * steps * config.width
        validated = min(at_once, max(1, batch // VALIDATION_SHARE))
        captured = self.is_captured(network)
        peak = peak_numbers(window * at_once, window * validated, parameters, captured)
        return ALWAYS_GIB + gib(numbers + peak)

    def _prepare(self, train: Training) -> None:
        """Also refuse a copula that could never be drawn from."""
        n_channels, most = train.layout.n_channels, self.config.copula_channels
        if self.config.copula and n_channels > most:
            raise TrainingError(
                f"tactis-2 with a copula draws tokens one after the other, {n_channels:,} channels "
                f"times {train.validation.horizon} steps of them, and copula_channels is {most}; "
                "train it without the copula, or raise copula_channels and wait"
            )
        super()._prepare(train)

    @classmethod
    def learned(cls, network: nn.Module) -> dict[str, nn.Parameter]:
        """All, whichever of them the last stage trained."""
        return dict(network.named_parameters())
