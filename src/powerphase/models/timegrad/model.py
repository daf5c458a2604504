"""TimeGrad as a forecaster."""

from typing import NamedTuple

from powerphase.models.framework.device import choose_device
from powerphase.models.recurrent.memory import Size, step_numbers
from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.launch import PROGRAMS, groups
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.objective import piece_kind, piece_size

# Fitted on a CPU. ROW_TENSORS: to trainings of 2,000 and 5,416 channels with 4 to 64 windows of 200
# steps, which took 5 to 12 % less than the estimate, and a fifth less with a subset of the rows.
# PLAIN: to single pieces of 500 and 2,000 channels with 1 to 8 blocks, within 3 %. KERNELS: the
# tensors that their code keeps, with a small margin. Nothing was fitted on a GPU.
ROW_TENSORS = 5.0
"""Tensors of rows × channels at the peak: values, noise, conditioner and its gradients."""


class PieceTensors(NamedTuple):
    """Tensors of a piece, in units of the widest kind."""

    per_block: float
    """Stored by each block of the noise network."""
    extra: float
    """In memory in addition."""


PLAIN, KERNELS = PieceTensors(3.0, 3.0), PieceTensors(0.5, 3.0)


class TimeGrad(RecurrentModel):
    """The reference's TimeGrad."""

    name = "timegrad"
    config_type = TimeGradConfig
    joint_scenarios = True
    network_type = TimeGradNetwork

    takes_backend = True

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Encoder, some tensors of all rows, and one piece of the noise network."""
        rows = size.rows(self.config)
        head = self._head_numbers(size, channel_block, min(rows, self.config.rows or rows))
        return step_numbers(self.config, size, channel_block, head)

    def validation_numbers(self, size: Size, channel_block: int | None) -> float:
        """The same as a step of as many windows, but with all of their rows."""
        head = self._head_numbers(size, channel_block, size.rows(self.config))
        return step_numbers(self.config, size, channel_block, head)

    def _head_numbers(self, size: Size, channel_block: int | None, chosen: int) -> float:
        config, n_channels = self.config, size.n_channels
        rows = size.rows(config)
        all_rows = rows if chosen < rows else 0  # all values, from which some rows are chosen
        features, halo = 2 * config.width, sum(config.dilations) + 2
        kind = piece_kind(self.backend, choose_device(self.device), config.width)
        piece_rows, channels = piece_size(n_channels, channel_block, features, kind)
        piece = features * min(piece_rows, chosen) * (channels + 2 * halo)
        with_kernels = kind == "kernels"
        tensors, sums = (KERNELS, partial_sums(config)) if with_kernels else (PLAIN, 0)
        numbers = (tensors.per_block * config.blocks + tensors.extra) * piece + sums
        return n_channels * (ROW_TENSORS * chosen + all_rows) + numbers


def partial_sums(config: TimeGradConfig) -> int:
    """Upper bound of the numbers in the programs' sums; the outer layers have less than a block."""
    programs = PROGRAMS * groups(config.width)
    return programs * 8 * config.width * (config.width + 1) * (config.blocks + 1)
