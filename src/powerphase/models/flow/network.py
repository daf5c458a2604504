"""What the networks with a flow share: its likelihood as their loss, and paths drawn from it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flow.memory import flow_block
from powerphase.models.flow.realnvp import RealNVP
from powerphase.models.kernels.backend import known_backend, uses_triton
from powerphase.models.recurrent.inputs import Given, Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.sampling import PathNoise
from powerphase.models.training import Losses
from powerphase.scenarios import Context, Scenarios


class FlowNetwork(RecurrentNetwork):
    """A flow on an encoder.

    Args:
        config: all constants, a `FlowConfig`.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to work on at a time. It computes the same, with less
            memory.
        backend: "triton", "torch", or "auto" for Triton's kernels on a GPU, PyTorch elsewhere.
    """

    def __init__(
        self,
        config: Any,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
        backend: str = "auto",
    ) -> None:
        self.backend = known_backend(backend)
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        self.flow = RealNVP(config.condition, n_channels, config.couplings, config.hidden)

    def judged(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Minus the joint log-likelihood of z, summed over channels, mean over steps and windows.

        That of the values themselves is larger by a constant, the logarithms of their scales.
        """
        given, (n_windows, n_steps, _) = self.judged_values(window), output.shape
        size = (self.channel_block, self.n_channels, n_windows * n_steps)
        at_once = flow_block(*size, self.is_fast)
        loss = self.flow.negative_log_likelihood(output, given, at_once, self.is_fast)
        return Losses(loss, {"per channel": loss.detach() / self.n_channels})

    def judged_values(self, window: Window) -> Given:
        """The z of the steps that the encoder's outputs are held against."""
        return window.given(self.encoder.reach)

    @property
    def is_fast(self) -> bool:
        """Whether Triton's kernels do it."""
        return uses_triton(self.backend, next(self.flow.parameters()).device)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Paths of equal weight."""
        return self.sampled(context, seed, self.config.paths, self._drawn)

    def _drawn(self, noise: PathNoise, known: Float[Tensor, "B P K"]) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        return self.flow.draw(known, noise.normal(self.n_channels, known))
