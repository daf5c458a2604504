"""TempFlow and Transformer-TempFlow as forecasters."""

from typing import ClassVar

from powerphase.models.flows.config import TempFlowConfig, TransformerTempFlowConfig
from powerphase.models.flows.memory import flow_numbers, transformer_step_numbers
from powerphase.models.flows.networks import (
    FlowNetwork,
    TempFlowNetwork,
    TransformerTempFlowNetwork,
)
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels import uses_triton
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.recurrent.model import RecurrentModel


class FlowModel(RecurrentModel):
    """Common part of the forecasters with a flow: a choice between Triton kernels and PyTorch."""

    takes_backend = True
    network_type: ClassVar[type[FlowNetwork]]

    @property
    def is_fast(self) -> bool:
        """Whether Triton kernels will run."""
        return uses_triton(self.backend, choose_device(self.device))


class TempFlow(FlowModel):
    """The reference's TempFlow."""

    name = "tempflow"
    config_type = TempFlowConfig
    joint_scenarios = True
    network_type = TempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Recurrent encoder, and the flow for context and horizon."""
        rows, n_channels = size.rows(self.config), size.n_channels
        head = flow_numbers(self.config, rows, n_channels, channel_block, self.is_fast)
        return step_numbers(self.config, size, channel_block, sum(head))


class TransformerTempFlow(FlowModel):
    """The reference's Transformer-TempFlow."""

    name = "transformer-tempflow"
    config_type = TransformerTempFlowConfig
    joint_scenarios = True
    network_type = TransformerTempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Transformer, and the flow for the horizon."""
        on_gpu = choose_device(self.device).type == "cuda"
        return transformer_step_numbers(self.config, size, channel_block, on_gpu, self.is_fast)
