"""Transformer-TempFlow as a forecaster."""

from powerphase.models.device import choose_device
from powerphase.models.flow.model import FlowModel
from powerphase.models.recurrent.memory import Size
from powerphase.models.transformertempflow.config import TransformerTempFlowConfig
from powerphase.models.transformertempflow.memory import step_numbers
from powerphase.models.transformertempflow.network import TransformerTempFlowNetwork


class TransformerTempFlow(FlowModel):
    """The reference's Transformer-TempFlow; `Trained` says what can be given."""

    name = "transformer-tempflow"
    config_type = TransformerTempFlowConfig
    network_type = TransformerTempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the Transformer, and of the flow for the horizon."""
        on_gpu = choose_device(self.device).type == "cuda"
        return step_numbers(self.config, size, channel_block, on_gpu, self.is_fast)
