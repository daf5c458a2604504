"""TempFlow as a forecaster."""

from powerphase.models.flow.memory import flow_numbers
from powerphase.models.flow.model import FlowModel
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.tempflow.config import TempFlowConfig
from powerphase.models.tempflow.network import TempFlowNetwork


class TempFlow(FlowModel):
    """The reference's TempFlow; `Trained` says what can be given."""

    name = "tempflow"
    config_type = TempFlowConfig
    network_type = TempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, and of the flow for context and horizon."""
        rows, n_channels = size.rows(self.config), size.n_channels
        head = flow_numbers(self.config, rows, n_channels, channel_block, self.is_fast)
        return step_numbers(self.config, size, channel_block, sum(head))
