"""TimeMCL as a forecaster."""

from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.network import TimeMCLNetwork

DOUBLE = 2.0
"""Size of a float64 number in float32 numbers."""


class TimeMCL(RecurrentModel):
    """The reference's TimeMCL."""

    name = "timemcl"
    config_type = TimeMCLConfig
    joint_scenarios = True
    network_type = TimeMCLNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Encoder, z of a block, and the inputs of the distances.

        The inputs are products of z with hidden states (two copies, also in float64), weights (four
        copies in float64), and the hidden states themselves.
        """
        rows, width = size.rows(self.config), self.config.condition + 1
        at_once = channels_at_once(channel_block, size.n_channels, rows)
        per_channel = rows + width * (
            2 * (1 + DOUBLE) * size.loss_windows + 4 * DOUBLE * self.config.hypotheses
        )
        head = at_once * per_channel + (1 + 2 * DOUBLE) * rows * width
        return step_numbers(self.config, size, channel_block, head)
