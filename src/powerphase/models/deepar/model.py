"""DeepAR as a forecaster."""

from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.network import DeepARNetwork
from powerphase.models.recurrent.memory import Size, block_numbers, step_numbers
from powerphase.models.recurrent.model import RecurrentModel


class DeepAR(RecurrentModel):
    """The reference's DeepAR, a vector LSTM; `Trained` says what can be given."""

    name = "deepar"
    config_type = DeepARConfig
    network_type = DeepARNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, of the Gaussian, and of each factor."""
        tensors, rows = 7.0 + 3.0 * self.config.rank, size.rows(self.config)
        head = block_numbers(rows, size.n_channels, channel_block, tensors)
        return step_numbers(self.config, size, channel_block, head)
