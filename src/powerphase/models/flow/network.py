"""What the networks with a flow share: its likelihood as their loss, and paths drawn from it."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flow.realnvp import RealNVP
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.sampling import PathNoise
from powerphase.models.training import Losses
from powerphase.scenarios import Context, Scenarios


class FlowNetwork(RecurrentNetwork):
    """A flow on an encoder; `RecurrentNetwork` says what can be given."""

    def __init__(
        self,
        config: Any,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        self.flow = RealNVP(config.condition, n_channels, config.couplings, config.hidden)

    def judged(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Minus the joint log-likelihood of z, summed over channels, mean over steps and windows.

        That of the values themselves is larger by a constant, the logarithms of their scales.
        """
        values = partial(self.judged_steps, window)
        loss = self.flow.negative_log_likelihood(output, values, self.at_once(output))
        return Losses(loss, {"per channel": loss.detach() / self.n_channels})

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Paths of equal weight."""
        return self.sampled(context, seed, self.config.paths, self._drawn)

    def _drawn(self, noise: PathNoise, known: Float[Tensor, "B P K"]) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        return self.flow.draw(known, noise.normal(self.n_channels, known))
