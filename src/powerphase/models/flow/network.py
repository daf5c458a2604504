"""What the networks with a flow share: its likelihood as their loss, and paths drawn from it."""

from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flow.realnvp import RealNVP
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.recurrent.rollout import check_paths, roll_out, shares
from powerphase.models.sampling import PathNoise, window_generators
from powerphase.models.training import Losses
from powerphase.scenarios import Context, Scenarios


class FlowNetwork(RecurrentNetwork):
    """A flow on an encoder; `RecurrentNetwork` says what can be given."""

    name: ClassVar[str]

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
        seen, n_paths = self.see(context), self.config.paths
        values = self._empty_paths(context, n_paths)
        for part in shares(n_paths, self.paths_at_once, len(values), self.n_channels):
            # Anew for each share: its noise must not depend on how paths are divided.
            generators = window_generators(seed, context.time, values.device)
            noise = PathNoise(generators, n_paths, part)
            roll_out(self.encoder, seen, partial(self._drawn, noise=noise), values[:, part])
        check_paths(values, self.name)
        return Scenarios.equal(values)

    def _drawn(self, known: Float[Tensor, "B P K"], noise: PathNoise) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        return self.flow.draw(known, noise.normal(self.n_channels, known))
