"""DeepAR as a forecaster."""

from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.network import DeepARNetwork, has_kernels
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels import uses_triton
from powerphase.models.recurrent.memory import Size, block_numbers, step_numbers
from powerphase.models.recurrent.model import RecurrentModel


class DeepAR(RecurrentModel):
    """The reference's DeepAR, a vector LSTM."""

    name = "deepar"
    config_type = DeepARConfig
    joint_scenarios = True
    network_type = DeepARNetwork

    takes_backend = True

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Encoder, Gaussian and factors; with Triton kernels, the head takes none."""
        device = choose_device(self.device)
        if has_kernels(self.config) and uses_triton(self.backend, device):
            return step_numbers(self.config, size, channel_block, 0.0)
        tensors, rows = 7.0 + 3.0 * self.config.rank, size.rows(self.config)
        head = block_numbers(rows, size.n_channels, channel_block, tensors)
        return step_numbers(self.config, size, channel_block, head)
