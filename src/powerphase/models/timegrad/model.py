"""TimeGrad: the recurrent encoder, and a diffusion over all channels of every step.

Diffusion step t keeps √(1 − β) of the values and adds noise of variance β. After t steps, √ᾱ of the
values is left, with ᾱ the product of all 1 − β, plus noise of variance 1 − ᾱ.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.errors import TaskError
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels import check_backend
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import PathNoise
from powerphase.models.framework.stepping import CapturedFunction
from powerphase.models.recurrent.encoder import Window
from powerphase.models.recurrent.model import RecurrentModel, RecurrentNetwork, Size, step_numbers
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.launch import PROGRAMS, groups
from powerphase.models.timegrad.objective import (
    MAX_WIDTH,
    NoisyRows,
    Pieces,
    noise_loss,
    piece_kind,
    piece_size,
    predict_noise,
)
from powerphase.scenarios import Context, Scenarios

MAX_CAPTURED_PIECES = {"cuda": 8, "kernels": 64}
"""Most pieces of a step that is captured: a piece is about 400 commands, or 50 with kernels."""

Predict = Callable[[Float[Tensor, "*B C"], int], Float[Tensor, "*B C"]]
"""Predicts the noise in noisy values of a diffusion step."""


class ReverseStep(NamedTuple):
    """Coefficients of (x − noise · predicted noise) · scale + spread · new noise."""

    noise: float
    scale: float
    spread: float


class Schedule(nn.Module):
    """The noise schedule of the diffusion.

    Args:
        steps: number of diffusion steps.
        first_beta: variance β that the first step adds; linear in between.
        last_beta: variance β that the last step adds.
    """

    signal: Tensor
    noise: Tensor

    def __init__(self, steps: int, first_beta: float, last_beta: float) -> None:
        super().__init__()
        beta = np.linspace(first_beta, last_beta, steps)
        alpha_bar = np.cumprod(1 - beta)
        previous = np.append(1.0, alpha_bar[:-1])
        spread = np.sqrt(beta * (1 - previous) / (1 - alpha_bar))
        columns = (beta / np.sqrt(1 - alpha_bar), 1 / np.sqrt(1 - beta), spread)
        self.reverse_steps = [
            ReverseStep(*(float(number) for number in row)) for row in zip(*columns, strict=True)
        ]
        # In double precision whatever the network has, and no part of its saved weights.
        self.register_buffer("signal", torch.from_numpy(np.sqrt(alpha_bar)), persistent=False)
        self.register_buffer("noise", torch.from_numpy(np.sqrt(1 - alpha_bar)), persistent=False)

    def add_noise_(
        self, values: Float[Tensor, "R C"], noise: Float[Tensor, "R C"], step: Int[Tensor, " R"]
    ) -> Float[Tensor, "R C"]:
        """The values after diffusion step `step`, counted from 0, in place."""
        signal, spread = (table[step, None].to(values) for table in (self.signal, self.noise))
        return values.mul_(signal).addcmul_(noise, spread)

    def sample(
        self,
        predict: Predict,
        initial: Float[Tensor, "*B C"],
        new_noise: Callable[[], Float[Tensor, "*B C"]],
    ) -> Float[Tensor, "*B C"]:
        """Turn noise into values step by step; all steps but the last add new noise.

        Its variance is that of the posterior of a step. Nothing is clipped.
        """
        values = initial
        for step in range(len(self.reverse_steps) - 1, -1, -1):
            reverse = self.reverse_steps[step]
            values = (values - reverse.noise * predict(values, step)) * reverse.scale
            if step:
                values = values.add_(new_noise(), alpha=reverse.spread)
        return values


class TimeGradNetwork(RecurrentNetwork):
    """TimeGrad for one grid; see `RecurrentNetwork` for the arguments.

    In addition, `backend` is "triton", "torch", or "auto" for Triton kernels on a GPU.
    """

    name = "timegrad"
    config: TimeGradConfig

    def __init__(
        self,
        config: TimeGradConfig,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
        backend: str = "auto",
    ) -> None:
        if backend == "triton" and config.width > MAX_WIDTH:
            raise TaskError(
                f"the Triton kernels of TimeGrad support a width of up to {MAX_WIDTH}, not "
                f"{config.width}; use the backend torch or auto"
            )
        self.backend = check_backend(backend)
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        self.schedule = Schedule(config.diffusion_steps, config.least_noise, config.most_noise)
        self.denoiser = Denoiser(config, n_channels)
        self._window_rows = context_steps + horizon - self.encoder.reach

    @property
    def is_capturable(self) -> bool:
        """Whether a step on a GPU has few pieces; a graph of many would fill the memory."""
        rows = (self.config.training.batch_size or 1) * self._window_rows
        kind = piece_kind(self.backend, torch.device("cuda"), self.config.width)
        pieces = Pieces.of(self.denoiser, self.n_channels, self.channel_block, kind)
        return pieces.count(min(rows, self.config.rows or rows)) <= MAX_CAPTURED_PIECES[kind]

    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Mean squared error of the noise, at one random diffusion step for each row.

        A row is one step of one window, of context or target.
        """
        condition, values = self._rows(output, window)
        n_steps = len(self.schedule.reverse_steps)
        step = torch.randint(n_steps, values.shape[:1], device=values.device)
        noise = torch.randn_like(values)
        noisy = NoisyRows(self.schedule.add_noise_(values, noise, step), noise)
        conditioner = self.denoiser.conditioner(condition).to(values)
        table = self.denoiser.step_embeddings().to(values)
        embeddings = F.embedding(step, table.flatten(1)).unflatten(1, table.shape[1:])
        loss = noise_loss(self.denoiser, noisy, conditioner, embeddings, self.pieces(values))
        return Losses(loss, {})

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Sample paths of equal weight."""
        predict = CapturedFunction(self._predict_noise)
        draw = partial(self._draw, self.denoiser.step_embeddings(), predict)
        return self.sample_paths(context, seed, self.config.paths, draw)

    def pieces(self, like: Float[Tensor, "R C"]) -> Pieces:
        """Division of rows on the device of this tensor into pieces."""
        kind = piece_kind(self.backend, like.device, self.config.width)
        return Pieces.of(self.denoiser, self.n_channels, self.channel_block, kind)

    def _rows(
        self, output: Float[Tensor, "B steps K"], window: Window
    ) -> tuple[Float[Tensor, "R K"], Float[Tensor, "R C"]]:
        """Condition and z of all rows, or of a random subset in training."""
        values = self.scaled_steps(window, slice(None)).flatten(0, 1)
        condition, count = output.flatten(0, 1), self.config.rows
        if not self.training or count is None or count >= len(values):
            return condition, values
        chosen = torch.rand(len(values), device=values.device).argsort()[:count]
        return condition.index_select(0, chosen), values.index_select(0, chosen)

    def _draw(
        self,
        table: Float[Tensor, "steps blocks width"],
        predict_noise: CapturedFunction,
        noise: PathNoise,
        condition: Float[Tensor, "B P K"],
    ) -> Float[Tensor, "B P C"]:
        """One draw of z for each path: from noise to values, all paths together."""
        conditioner = self.denoiser.conditioner(condition.flatten(0, 1))

        def new_noise() -> Float[Tensor, "R C"]:
            return noise.normal(self.n_channels, conditioner).flatten(0, 1)

        def predict(values: Float[Tensor, "R C"], step: int) -> Float[Tensor, "R C"]:
            return predict_noise(values, conditioner, table[step : step + 1])

        values = self.schedule.sample(predict, new_noise(), new_noise)
        return values.unflatten(0, condition.shape[:2])

    def _predict_noise(
        self,
        values: Float[Tensor, "R C"],
        conditioner: Float[Tensor, "R C"],
        step: Float[Tensor, "1 blocks width"],
    ) -> Float[Tensor, "R C"]:
        """The noise in the values of some paths."""
        return predict_noise(self.denoiser, values, conditioner, step, self.pieces(values))


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
