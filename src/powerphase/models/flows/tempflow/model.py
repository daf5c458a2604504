"""TempFlow as a forecaster."""

from powerphase.models.flows.memory import flow_numbers
from powerphase.models.flows.model import FlowModel
from powerphase.models.flows.tempflow.config import TempFlowConfig
from powerphase.models.flows.tempflow.network import TempFlowNetwork
from powerphase.models.recurrent.memory import Size, step_numbers


class TempFlow(FlowModel):
    """The reference's TempFlow."""

    name = "tempflow"
    config_type = TempFlowConfig
    network_type = TempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, and of the flow for context and horizon."""
        rows, n_channels = size.rows(self.config), size.n_channels
        head = flow_numbers(self.config, rows, n_channels, channel_block, self.is_fast)
        return step_numbers(self.config, size, channel_block, sum(head))
