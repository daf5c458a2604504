"""The network: the recurrent encoder, and a Gaussian of all channels for every step."""

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.head import (
    LowRankGaussian,
    channel_sums,
    negative_log_likelihood,
)
from powerphase.models.recurrent.blocks import summed
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.sampling import PathNoise
from powerphase.models.training import Losses
from powerphase.scenarios import Context, Scenarios


class DeepARNetwork(RecurrentNetwork):
    """DeepAR for one grid; `RecurrentNetwork` says what can be given."""

    name = "deepar"
    config: DeepARConfig

    def __init__(
        self,
        config: DeepARConfig,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        super().__init__(config, n_channels, context_steps, horizon, channel_block)
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

        def sums(
            here: slice, known: Tensor, weight: Tensor, bias: Tensor
        ) -> Float[Tensor, "B steps sums"]:
            values = self.judged_steps(window, here)
            return channel_sums(self.head.gaussian(known, weight, bias), values)

        found = summed(sums, self.at_once(output), output, self.head.weight, self.head.bias)
        loss = negative_log_likelihood(found, self.head.rank, self.n_channels).mean()
        parts = {"per channel": loss.detach() / self.n_channels}
        return Losses(loss, parts)

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
