"""TimeGrad as a forecaster."""

from typing import NamedTuple

from powerphase.models.framework.device import choose_device
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.slopes import PROGRAMS, groups
from powerphase.models.timegrad.tiles import piece_kind, piece_size

# Fitted on a CPU. The first to trainings of 2,000 and 5,416 channels with 4 to 64 windows of 200
# steps, which took 5 to 12 % less than the estimate, and a fifth less where some rows were taken;
# those of the plain form to single pieces of 500 and 2,000 channels with 1 to 8 blocks, within 3 %.
# Those of the kernels are what their code keeps, and a little more. On a GPU nothing was fitted.
ROWS_TENSORS = 5.0
"""Tensors of rows × channels at the peak of a step: values, noise, conditioner and its slopes."""


class Tensors(NamedTuple):
    """Those of a piece, of the widest kind."""

    of_block: float
    """That each block of the noise network keeps."""
    more: float
    """That are there besides."""


PLAIN, KERNELS = Tensors(3.0, 3.0), Tensors(0.5, 3.0)


class TimeGrad(RecurrentModel):
    """The reference's TimeGrad."""

    name = "timegrad"
    config_type = TimeGradConfig
    network_type = TimeGradNetwork

    takes_backend = True

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of the front end, some tensors of all rows, and one piece of the noise network."""
        rows = size.rows(self.config)
        head = self._head_numbers(size, channel_block, min(rows, self.config.rows or rows))
        return step_numbers(self.config, size, channel_block, head)

    def validation_numbers(self, size: Size, channel_block: int | None) -> float:
        """Those of a step of as many windows that takes all rows of them."""
        head = self._head_numbers(size, channel_block, size.rows(self.config))
        return step_numbers(self.config, size, channel_block, head)

    def _head_numbers(self, size: Size, channel_block: int | None, chosen: int) -> float:
        config, n_channels = self.config, size.n_channels
        rows = size.rows(config)
        before = rows if chosen < rows else 0  # all values, of which some rows are taken
        features, halo = 2 * config.width, sum(config.dilations) + 2
        kind = piece_kind(self.backend, choose_device(self.device), config.width)
        at_once, channels = piece_size(n_channels, channel_block, features, kind)
        piece = features * min(at_once, chosen) * (channels + 2 * halo)
        tensors, parts = (KERNELS, _parts(config)) if kind == "kernels" else (PLAIN, 0)
        kept = (tensors.of_block * config.blocks + tensors.more) * piece + parts
        return n_channels * (ROWS_TENSORS * chosen + before) + kept


def _parts(config: TimeGradConfig) -> int:
    """Numbers in the programs' sums, at most: the ends of the network have less than a block."""
    programs = PROGRAMS * groups(config.width)
    return programs * 8 * config.width * (config.width + 1) * (config.blocks + 1)
