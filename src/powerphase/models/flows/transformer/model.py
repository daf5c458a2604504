"""Transformer-TempFlow as a forecaster."""

from powerphase.models.flows.model import FlowModel
from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.flows.transformer.memory import step_numbers
from powerphase.models.flows.transformer.network import TransformerTempFlowNetwork
from powerphase.models.framework.device import choose_device
from powerphase.models.recurrent.memory import Size


class TransformerTempFlow(FlowModel):
    """The reference's Transformer-TempFlow."""

    name = "transformer-tempflow"
    config_type = TransformerTempFlowConfig
    network_type = TransformerTempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the Transformer, and of the flow for the horizon."""
        on_gpu = choose_device(self.device).type == "cuda"
        return step_numbers(self.config, size, channel_block, on_gpu, self.is_fast)
