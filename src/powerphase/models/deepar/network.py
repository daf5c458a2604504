"""The network: the recurrent encoder, and a Gaussian of all channels for every step."""

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.errors import TaskError
from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.head import (
    LowRankGaussian,
    channel_sums,
    negative_log_likelihood,
)
from powerphase.models.deepar.kernels import MOST_WIDTH, Law, fast_sums
from powerphase.models.framework.kernels.backend import known_backend, uses_triton
from powerphase.models.framework.sampling import PathNoise
from powerphase.models.framework.training import Losses
from powerphase.models.recurrent.blocks import summed
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.scenarios import Context, Scenarios


def has_kernels(config: DeepARConfig) -> bool:
    """Whether there are any for such a head: one factor, and no more cells than fit in a tile."""
    return config.rank == 1 and config.cells <= MOST_WIDTH


class DeepARNetwork(RecurrentNetwork):
    """DeepAR for one grid; `RecurrentNetwork` says what can be given.

    Beside it, `backend`: "triton", "torch", or "auto" for Triton's kernels on a GPU, where there
    are any for its configuration, and PyTorch elsewhere.
    """

    name = "deepar"
    config: DeepARConfig

    def __init__(
        self,
        config: DeepARConfig,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(config, n_channels, context_steps, horizon, channel_block)
        if backend == "triton" and not has_kernels(config):
            raise TaskError(
                f"kernels of DeepAR are for rank 1 and up to {MOST_WIDTH} cells, not for rank "
                f"{config.rank} and {config.cells}; choose the backend torch, or auto"
            )
        self.backend = known_backend(backend)
        size = (self.encoder.width, n_channels, config.rank)
        self.head = LowRankGaussian(*size, config.least_variance)

    @property
    def counted(self) -> slice:
        """All windows of a batch, or its first alone."""
        return slice(1 if self.config.reduction == "first" else None)

    def judged(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Minus the joint log-likelihood of z, summed over channels, mean over steps and windows.

        That of the values themselves is larger by a constant, the logarithms of their scales.
        """
        if self.is_fast:
            law = Law(self.encoder.reach, self.head.least_variance)
            found = fast_sums(output, self.head.weight, self.head.bias, window, law)
        else:
            found = self._sums(output, window)
        loss = negative_log_likelihood(found, self.head.rank, self.n_channels).mean()
        parts = {"per channel": loss.detach() / self.n_channels}
        return Losses(loss, parts)

    @property
    def is_fast(self) -> bool:
        """Whether Triton's kernels compute."""
        return has_kernels(self.config) and uses_triton(self.backend, self.head.weight.device)

    def _sums(
        self, output: Float[Tensor, "B steps K"], window: Window
    ) -> Float[Tensor, "B steps sums"]:
        def of_block(
            here: slice, known: Tensor, weight: Tensor, bias: Tensor
        ) -> Float[Tensor, "B steps sums"]:
            values = self.judged_steps(window, here)
            return channel_sums(self.head.gaussian(known, weight, bias), values)

        return summed(of_block, self.at_once(output), output, self.head.weight, self.head.bias)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Paths of equal weight."""
        return self.sampled(context, seed, self.config.paths, self._drawn)

    def _drawn(self, noise: PathNoise, known: Float[Tensor, "B P K"]) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        mean, factors, diagonal = self.head(known)
        own = noise.normal(self.n_channels, mean)
        shared = noise.normal(self.head.rank, mean)
        drawn = mean + diagonal.sqrt() * own
        for factor, common in zip(factors, shared.unbind(2), strict=True):
            drawn = drawn + factor * common[..., None]
        return drawn
