"""What the networks with a flow share: its likelihood as their loss, and paths drawn from it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.memory import flow_block
from powerphase.models.flows.normalisation import Moments
from powerphase.models.flows.realnvp import RealNVP
from powerphase.models.framework.kernels.backend import known_backend, uses_triton
from powerphase.models.framework.network import Losses
from powerphase.models.framework.sampling import PathNoise
from powerphase.models.recurrent.blocks import blocks
from powerphase.models.recurrent.inputs import Given, Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.scenarios import Batches, Context, Scenarios

MEASURED = 10
"""Batches by which channels are standardised."""


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
        given, noise = self.judged_values(window), self.config.noise
        if self.training and noise:
            given = given.blurred(noise)
        at_once = self._block(given)
        loss = self.flow.negative_log_likelihood(output, given, at_once, self.is_fast)
        return Losses(loss, {"per channel": loss.detach() / self.n_channels})

    def judged_values(self, window: Window) -> Given:
        """The z of the steps that the encoder's outputs are held against."""
        return window.given(self.encoder.reach)

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Measure where channels lie and how far they move, by which the flow standardises them."""
        if self.config.noise:
            found = [self._moments(*batches[number]) for number in range(MEASURED)]
            self.flow.standardise(Moments.pooled(found), self.config.noise)

    def _moments(self, context: Context, target: Float[Tensor, "B H C"]) -> Moments:
        """Of the z that a batch is judged by."""
        past, target, _, scale = self.inputs(context, target)
        given = self.judged_values(Window(past, target, scale))
        parts = blocks(self.n_channels, self._block(given))
        return Moments.joined([Moments.of(given.of(here).made()) for here in parts])

    def _block(self, given: Given) -> int:
        """Channels to work on at a time."""
        n_windows, n_steps, n_channels = given.size
        return flow_block(self.channel_block, n_channels, n_windows * n_steps, self.is_fast)

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
