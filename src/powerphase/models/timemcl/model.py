"""TimeMCL as a forecaster."""

from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.network import TimeMCLNetwork

WIDE = 2.0
"""A number in float64 is two."""


class TimeMCL(RecurrentModel):
    """The reference's TimeMCL."""

    name = "timemcl"
    config_type = TimeMCLConfig
    network_type = TimeMCLNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, of a block's z, and of what distances are made from.

        The latter are products of z and of weights with what is known, twice and four times over in
        float64, and what is known itself.
        """
        rows, width = size.rows(self.config), self.config.condition + 1
        at_once = channels_at_once(channel_block, size.n_channels, rows)
        of_channel = rows + width * (
            2 * (1 + WIDE) * size.counted + 4 * WIDE * self.config.hypotheses
        )
        head = at_once * of_channel + (1 + 2 * WIDE) * rows * width
        return step_numbers(self.config, size, channel_block, head)
