"""TimeMCL as a forecaster."""

from powerphase.models.recurrent.memory import Size, block_numbers, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.network import TimeMCLNetwork

HEAD_TENSORS = 3.0


class TimeMCL(RecurrentModel):
    """The reference's TimeMCL; `Trained` says what can be given."""

    name = "timemcl"
    config_type = TimeMCLConfig
    network_type = TimeMCLNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, and of all hypotheses' errors, slopes and what is in between."""
        rows, copies = size.rows(self.config), self.config.hypotheses
        head = block_numbers(rows, size.n_channels, channel_block, HEAD_TENSORS, copies)
        return step_numbers(self.config, size, channel_block, head)
