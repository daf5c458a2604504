"""The network: the recurrent encoder, and a diffusion that draws all channels of every step."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.errors import TaskError
from powerphase.models.framework.kernels import check_backend
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import PathNoise
from powerphase.models.framework.stepping import CapturedFunction
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.model import RecurrentNetwork
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.objective import Noisy, Pieces, mean_error, predicted
from powerphase.models.timegrad.schedule import Schedule
from powerphase.models.timegrad.tiles import MOST_WIDTH, piece_kind
from powerphase.scenarios import Context, Scenarios

FEW_PIECES = {"cuda": 8, "kernels": 64}
"""Up to so many are worth recording: each is some four hundred commands, or fifty by kernels."""


class TimeGradNetwork(RecurrentNetwork):
    """TimeGrad for one grid; `RecurrentNetwork` says what can be given.

    Beside it, `backend`: "triton", "torch", or "auto" for Triton's kernels on a GPU.
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
        if backend == "triton" and config.width > MOST_WIDTH:
            raise TaskError(
                f"the kernels of TimeGrad are for {MOST_WIDTH} features or fewer, and width is "
                f"{config.width}; choose the backend torch, or auto"
            )
        self.backend = check_backend(backend)
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        noise = (config.diffusion_steps, config.least_noise, config.most_noise)
        self.schedule = Schedule(*noise)
        self.denoiser = Denoiser(config, n_channels)
        self._window_rows = context_steps + horizon - self.encoder.reach

    @property
    def is_capturable(self) -> bool:
        """Whether a step on a GPU is few pieces; of many, the recording alone would fill memory."""
        rows = (self.config.training.batch_size or 1) * self._window_rows
        kind = piece_kind(self.backend, torch.device("cuda"), self.config.width)
        pieces = Pieces.of(self.denoiser, self.n_channels, self.channel_block, kind)
        return pieces.count(min(rows, self.config.rows or rows)) <= FEW_PIECES[kind]

    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Mean squared error of the noise, at one random diffusion step for each row.

        A row is one step of one window, of context or target.
        """
        known, values = self._rows(output, window)
        step = torch.randint(len(self.schedule.returns), values.shape[:1], device=values.device)
        noise = torch.randn_like(values)
        given = Noisy(self.schedule.noisy_(values, noise, step), noise)
        conditioner = self.denoiser.conditioner(known).to(values)
        table = self.denoiser.steps().to(values)
        added = F.embedding(step, table.flatten(1)).unflatten(1, table.shape[1:])
        loss = mean_error(self.denoiser, given, conditioner, added, self._pieces(values))
        return Losses(loss, {})

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Paths of equal weight."""
        draw = partial(self._drawn, self.denoiser.steps(), CapturedFunction(self._predicted))
        return self.sample_paths(context, seed, self.config.paths, draw)

    def _rows(
        self, output: Float[Tensor, "B steps K"], window: Window
    ) -> tuple[Float[Tensor, "R K"], Float[Tensor, "R C"]]:
        """What is known before each row and z of it: of all rows, or in training of some."""
        values = self.scaled_steps(window, slice(None)).flatten(0, 1)
        known, count = output.flatten(0, 1), self.config.rows
        if not self.training or count is None or count >= len(values):
            return known, values
        chosen = torch.rand(len(values), device=values.device).argsort()[:count]
        return known.index_select(0, chosen), values.index_select(0, chosen)

    def _drawn(
        self,
        table: Float[Tensor, "steps blocks width"],
        predicted: CapturedFunction,
        noise: PathNoise,
        known: Float[Tensor, "B P K"],
    ) -> Float[Tensor, "B P C"]:
        """One draw of z for each path: from noise to values, all paths together."""
        conditioner = self.denoiser.conditioner(known.flatten(0, 1))

        def fresh() -> Float[Tensor, "R C"]:
            return noise.normal(self.n_channels, conditioner).flatten(0, 1)

        def predict(values: Float[Tensor, "R C"], step: int) -> Float[Tensor, "R C"]:
            return predicted(values, conditioner, table[step : step + 1])

        return self.schedule.sample(predict, fresh(), fresh).unflatten(0, known.shape[:2])

    def _predicted(
        self,
        values: Float[Tensor, "R C"],
        conditioner: Float[Tensor, "R C"],
        step: Float[Tensor, "1 blocks width"],
    ) -> Float[Tensor, "R C"]:
        """The noise in values of some paths."""
        return predicted(self.denoiser, values, conditioner, step, self._pieces(values))

    def _pieces(self, like: Float[Tensor, "R C"]) -> Pieces:
        kind = piece_kind(self.backend, like.device, self.config.width)
        return Pieces.of(self.denoiser, self.n_channels, self.channel_block, kind)
