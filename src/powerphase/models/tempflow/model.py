"""TempFlow as a forecaster."""

from powerphase.models.flow.memory import BLOCKS, kept_numbers
from powerphase.models.recurrent.memory import Size, memory_gib
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.tempflow.config import TempFlowConfig
from powerphase.models.tempflow.network import TempFlowNetwork


class TempFlow(RecurrentModel):
    """The reference's TempFlow; `Trained` says what can be given."""

    name = "tempflow"
    config_type = TempFlowConfig
    network_type = TempFlowNetwork
    head_tensors = BLOCKS

    def gib(self, size: Size, channel_block: int | None) -> float:
        """With what the flow keeps of context and horizon."""
        rows = size.counted * (size.context + size.horizon - max(self.config.lags))
        kept = kept_numbers(self.config, rows, size.n_channels)
        return memory_gib(self.config, size, channel_block, self.head_tensors, beyond=kept)
