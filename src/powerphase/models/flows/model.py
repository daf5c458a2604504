"""TempFlow and Transformer-TempFlow: an encoder, and a flow on top of it.

The flow's likelihood is the loss, its draws are the paths.

The memory of a training step is estimated. The flow's counts for PyTorch were fitted to TempFlow on
a CPU with 118 to 1,354 buses and batches of 8 to 32. Without blocks of channels, trainings took up
to 12 % less than the estimate. With small blocks they took up to a third more because of
fragmentation; with an allocator that returns all memory they took less. The counts for kernels are
the tensors that their code keeps, two and two, plus half a tensor or a whole one for fragmentation.
Values with noise count as one more tensor; on a CPU with 118 buses a batch of 24 took no more,
since such values need no division.

The Transformer's counts were fitted on a CPU with 118 and 500 buses and batches of 8 to 32;
trainings took within 7 % of the estimate. Nothing was fitted on a GPU.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.flows.config import FlowConfig, TempFlowConfig, TransformerTempFlowConfig
from powerphase.models.flows.realnvp import Coupling, RealNVP
from powerphase.models.flows.transformer import Transformer
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels import check_backend, uses_triton
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import PathNoise
from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.encoder import ScaledValues, Window
from powerphase.models.recurrent.model import (
    PRODUCTS,
    RecurrentModel,
    RecurrentNetwork,
    Size,
    step_numbers,
)
from powerphase.scenarios import Batches, Context, Scenarios

COUPLING_TENSORS = 14.0
"""Tensors of rows × hidden units that a coupling keeps."""


class TensorCounts(NamedTuple):
    """Tensors of the flow in memory at the peak."""

    blocks: float
    """Tensors of rows × a block of channels."""
    full: float
    """Tensors of rows × all channels: transformed halves and their gradients."""


PLAIN, KERNELS = TensorCounts(10.0, 3.0), TensorCounts(3.0, 2.5)

KERNEL_BLOCKS = 3
"""How many times wider a block is with kernels: they need that much less memory for it, and each
block reads all tensors as wide as the networks again."""

STEP_TENSORS = 20.0
"""Tensors of windows × steps × width that a Transformer layer keeps, without the feed-forward."""
FEED_FORWARD_TENSORS = 4.0
"""Tensors of windows × steps × feed-forward units that a layer keeps."""
ATTENTION_TENSORS = 3.0
"""Tensors of windows × heads × steps × steps that attention with dropout keeps on a CPU; on a GPU
it keeps none."""


def flow_block_size(channel_block: int | None, n_channels: int, rows: int, fast: bool) -> int:
    """Channels per block of the flow."""
    rows = max(1, rows // KERNEL_BLOCKS) if fast else rows
    return channels_at_once(channel_block, n_channels, rows)


def flow_numbers(
    config: FlowConfig, rows: int, n_channels: int, channel_block: int | None, fast: bool
) -> tuple[float, float]:
    """Numbers of the flow in blocks of channels, and in full tensors.

    Args:
        config: all settings.
        rows: windows × steps.
        n_channels: channels of the grid.
        channel_block: channels per block; None for the default of the network.
        fast: whether Triton kernels run.
    """
    tensors = KERNELS if fast else PLAIN
    blocks = tensors.blocks * rows * flow_block_size(channel_block, n_channels, rows, fast)
    full = tensors.full + bool(config.noise)  # values with noise are a new tensor
    return blocks, rows * (full * n_channels + COUPLING_TENSORS * config.couplings * config.hidden)


def transformer_step_numbers(
    config: TransformerTempFlowConfig,
    size: Size,
    channel_block: int | None,
    on_gpu: bool,
    fast: bool,
) -> float:
    """Numbers at the peak of a step of Transformer-TempFlow.

    Args:
        config: all settings.
        size: sizes of the training.
        channel_block: channels per block; None for the default of the network.
        on_gpu: whether the device is a GPU.
        fast: whether Triton kernels run.
    """
    encoded, rows = size.context - max(config.lags), size.loss_windows * size.horizon
    steps = encoded + 2 * size.horizon  # a decoder layer attends twice
    products = (size.context + max(config.lags) + size.horizon) * len(config.lags) * config.width
    units = STEP_TENSORS * config.width + FEED_FORWARD_TENSORS * config.feed_forward
    layers = config.layers * steps * units
    pairs = encoded**2 + size.horizon * (encoded + size.horizon)
    attention = 0.0 if on_gpu else ATTENTION_TENSORS * config.layers * config.heads * pairs
    encoder = size.loss_windows * (PRODUCTS * products + layers + attention)
    past = size.loss_windows * size.context
    projected = past * channels_at_once(channel_block, size.n_channels, past)
    blocks, full = flow_numbers(config, rows, size.n_channels, channel_block, fast)
    return encoder + max(blocks, 2 * projected) + full


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


class FlowModel(RecurrentModel):
    """Common part of the forecasters with a flow: a choice between Triton kernels and PyTorch."""

    takes_backend = True
    network_type: ClassVar[type[FlowNetwork]]

    @property
    def is_fast(self) -> bool:
        """Whether Triton kernels will run."""
        return uses_triton(self.backend, choose_device(self.device))


class TempFlow(FlowModel):
    """The reference's TempFlow."""

    name = "tempflow"
    config_type = TempFlowConfig
    joint_scenarios = True
    network_type = TempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Recurrent encoder, and the flow for context and horizon."""
        rows, n_channels = size.rows(self.config), size.n_channels
        head = flow_numbers(self.config, rows, n_channels, channel_block, self.is_fast)
        return step_numbers(self.config, size, channel_block, sum(head))


class TransformerTempFlow(FlowModel):
    """The reference's Transformer-TempFlow."""

    name = "transformer-tempflow"
    config_type = TransformerTempFlowConfig
    joint_scenarios = True
    network_type = TransformerTempFlowNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Transformer, and the flow for the horizon."""
        on_gpu = choose_device(self.device).type == "cuda"
        return transformer_step_numbers(self.config, size, channel_block, on_gpu, self.is_fast)
