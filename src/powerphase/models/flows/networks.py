"""Networks with a flow on top of an encoder: its likelihood is the loss, its draws the paths."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.config import TempFlowConfig, TransformerTempFlowConfig
from powerphase.models.flows.memory import flow_block_size
from powerphase.models.flows.realnvp import Coupling, RealNVP
from powerphase.models.flows.transformer import Transformer
from powerphase.models.framework.kernels import check_backend, uses_triton
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import PathNoise
from powerphase.models.recurrent.inputs import ScaledValues, Window
from powerphase.models.recurrent.model import RecurrentNetwork
from powerphase.scenarios import Batches, Context, Scenarios


class FlowNetwork(RecurrentNetwork):
    """A flow on top of an encoder.

    Args:
        config: all settings, a `FlowConfig`.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: channels to process at a time; fewer need less memory for the same result.
        backend: "triton", "torch", or "auto" for Triton kernels on a GPU and PyTorch elsewhere.
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
        self.backend = check_backend(backend)
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        sizes = (config.condition, n_channels, config.couplings, config.hidden)
        self.flow = RealNVP(*sizes, config.coupling_inputs)

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """The factors of the layers that read the lagged values, or half of the channels."""
        couplings = {
            f"{name}.still": module.rate_factor
            for name, module in self.named_modules()
            if isinstance(module, Coupling)
        }
        return {**super().rate_factors, **couplings}

    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Minus the joint log-likelihood of z, summed over channels, mean over steps and windows.

        The likelihood of the values differs from it by a constant: the logarithms of their scales.
        """
        values, noise = self.loss_values(window), self.config.noise
        if self.training and noise:
            values = values.add_noise(noise)
        block_size = self.moment_channels(values)
        loss = self.flow.negative_log_likelihood(output, values, block_size, self.is_fast)
        return Losses(loss, {"per channel": loss.detach() / self.n_channels})

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Measure mean and spread of the channels, by which the flow standardises them."""
        if self.config.noise:
            self.flow.standardise(self.pooled_moments(batches), self.config.noise)

    def moment_channels(self, values: ScaledValues) -> int:
        """Channels to process at a time, of which the flow makes more tensors than one."""
        n_windows, n_steps, n_channels = values.size
        return flow_block_size(self.channel_block, n_channels, n_windows * n_steps, self.is_fast)

    @property
    def is_fast(self) -> bool:
        """Whether Triton kernels run."""
        return uses_triton(self.backend, next(self.flow.parameters()).device)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Sample paths of equal weight."""
        return self.sample_paths(context, seed, self.config.paths, self._draw)

    def _draw(self, noise: PathNoise, condition: Float[Tensor, "B P K"]) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        return self.flow.inverse(condition, noise.normal(self.n_channels, condition))


class TempFlowNetwork(FlowNetwork):
    """TempFlow for one grid: the recurrent encoder, and a flow for context and horizon."""

    name = "tempflow"
    config: TempFlowConfig


class TransformerTempFlowNetwork(FlowNetwork):
    """Transformer-TempFlow for one grid: the Transformer, and a flow for the horizon."""

    name = "transformer-tempflow"
    encoder_type = Transformer
    config: TransformerTempFlowConfig

    def loss_values(self, window: Window) -> ScaledValues:
        """The z of the target."""
        assert window.target is not None
        return ScaledValues((window.target,), window.scale)
