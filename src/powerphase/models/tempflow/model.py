"""TempFlow as a forecaster."""

from powerphase.models.flow.memory import BLOCKS, kept_numbers
from powerphase.models.recurrent.memory import Size, block_numbers, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.tempflow.config import TempFlowConfig
from powerphase.models.tempflow.network import TempFlowNetwork


class TempFlow(RecurrentModel):
    """The reference's TempFlow; `Trained` says what can be given."""

    name = "tempflow"
    config_type = TempFlowConfig
    network_type = TempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, and of the flow for context and horizon."""
        rows, n_channels = size.rows(self.config), size.n_channels
        head = block_numbers(rows, n_channels, channel_block, BLOCKS)
        head += kept_numbers(self.config, rows, n_channels)
        return step_numbers(self.config, size, channel_block, head)
