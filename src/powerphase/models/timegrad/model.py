"""TimeGrad as a forecaster."""

from powerphase.models.device import choose_device
from powerphase.models.recurrent.memory import GIB, NUMBER_BYTES
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.tiles import piece_size
from powerphase.scenarios import Training

ROWS_TENSORS = 5.5
"""Tensors of rows × channels at the peak of a step."""
BLOCK_TENSORS = 3.5
"""Tensors of a piece, of the widest kind, that each block of the noise network keeps."""


class TimeGrad(RecurrentModel):
    """The reference's TimeGrad; `Trained` says what can be given."""

    name = "timegrad"
    config_type = TimeGradConfig
    network_type = TimeGradNetwork
    head_tensors = 0.0

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such tiles."""
        config, size = self.config, self._size(train)
        rows = size.counted * (size.context + size.horizon - max(config.lags))
        chosen = min(rows, config.rows or rows)
        whole = size.n_channels * (ROWS_TENSORS * chosen + (rows if chosen < rows else 0))
        features, halo = 2 * config.width, sum(config.dilations) + 2
        device = choose_device(self.device).type
        at_once, channels = piece_size(size.n_channels, channel_block, features, device)
        places = min(at_once, chosen) * (channels + 2 * halo)
        piece = (BLOCK_TENSORS * config.blocks + 6) * features * places
        front = super().memory_gib(train, channel_block)
        return front + NUMBER_BYTES * (whole + piece) / GIB
