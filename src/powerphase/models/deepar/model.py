"""DeepAR: the recurrent encoder with a low-rank Gaussian over all channels per step.

The defaults are those of the reference, without its quirks.

With D the diagonal, F the factors and r a residual, the determinant and the quadratic form of
D + FFᵀ need only sums over channels (Woodbury): of log d, r²/d, f r/d and f fᵀ/d. Channels can
therefore come in blocks, and the rest is algebra with matrices of rank × rank.
"""

from dataclasses import dataclass
from math import log, pi, sqrt
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.errors import TaskError
from powerphase.models.deepar.kernels import MAX_WIDTH, SOFTPLUS_OFFSET, fused_channel_sums
from powerphase.models.framework.configuration import SHORT, Variants
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels import check_backend, uses_triton
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import REFERENCE_SCALE, PathNoise
from powerphase.models.recurrent.blocks import sum_blocks
from powerphase.models.recurrent.config import REFERENCE_INPUTS, StandardisedConfig
from powerphase.models.recurrent.encoder import Window
from powerphase.models.recurrent.model import (
    RecurrentModel,
    RecurrentNetwork,
    Size,
    block_numbers,
    step_numbers,
)
from powerphase.scenarios import Context, Scenarios


@dataclass(frozen=True)
class DeepARConfig(StandardisedConfig):
    """Settings of the encoder, the Gaussian head and sampling."""

    rank: int = 1
    """Number of factors that the channels share; 0 for independent channels."""
    factor_norm: float | None = None
    """Factors are multiplied by so much / √C, and so is what a step changes them by. As they are
    (None), they soon explain what all channels do together, such as the day, and leave nothing for
    the means."""
    least_variance: float = 1e-6
    """Added to the diagonal of the covariance of z."""
    reduction: Literal["mean", "first"] = "mean"
    """Whether the loss is the mean over all windows of a batch or that of the first window."""
    paths: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {
                "lag_inputs": 300.0,
                "standardise": True,
                "noise": True,
                "factor_norm": 0.03,
            },
            "reference": {"reduction": "first", **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "first-window": {"reduction": "first"},
            "informed": {"informed": True},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.rank < 0, "rank must be 0 or more"),
            (
                self.factor_norm is not None and self.factor_norm <= 0,
                "factor_norm must be above 0",
            ),
            (self.least_variance <= 0, "least_variance must be above 0"),
            (self.paths < 1, "paths must be 1 or more"),
        ]


class Gaussian(NamedTuple):
    """Means, factors and diagonal of the covariance, for some channels."""

    mean: Float[Tensor, "*B C"]
    factors: tuple[Float[Tensor, "*B C"], ...]
    diagonal: Float[Tensor, "*B C"]


class LowRankGaussian(nn.Module):
    """Maps a hidden state to a Gaussian over all channels.

    Args:
        width: width of the hidden state, K.
        n_channels: channels, C.
        rank: factors that the channels share, R.
        least_variance: added to the diagonal.
        factor_norm: factors are multiplied by so much / √C; None to leave them as they are.
    """

    gain: Tensor

    def __init__(
        self,
        width: int,
        n_channels: int,
        rank: int,
        least_variance: float,
        factor_norm: float | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.least_variance = rank, least_variance
        # Initialised as linear layers; rows of the mean, the diagonal and each factor, by channel.
        bound, size = 1 / sqrt(width), (2 + rank, n_channels)
        self.weight = nn.Parameter(torch.empty(*size, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*size, 1).uniform_(-bound, bound))
        self.scales_factors = factor_norm is not None
        of_factors = 1.0 if factor_norm is None else factor_norm / sqrt(n_channels)
        gain = torch.tensor([1.0] * 2 + [of_factors] * rank)[:, None, None]
        self.register_buffer("gain", gain, persistent=False)

    def layers(self) -> tuple[Float[Tensor, "rows C K"], Float[Tensor, "rows C 1"]]:
        """Weights and biases, with the gain of the factors."""
        if not self.scales_factors:
            return self.weight, self.bias
        return self.weight * self.gain, self.bias * self.gain

    def forward(self, hidden: Float[Tensor, "*B K"]) -> Gaussian:
        """The Gaussian over all channels."""
        return self.gaussian(hidden, *self.layers())

    def gaussian(
        self,
        hidden: Float[Tensor, "*B K"],
        weight: Float[Tensor, "rows C K"],
        bias: Float[Tensor, "rows C 1"],
    ) -> Gaussian:
        """The Gaussian over the channels of these weights and biases."""
        mean, raw, *factors = (
            F.linear(hidden, *row) for row in zip(weight, bias.squeeze(2), strict=True)
        )
        diagonal = F.softplus(raw + SOFTPLUS_OFFSET) + self.least_variance
        return Gaussian(mean, tuple(factors), diagonal)


def channel_sums(gaussian: Gaussian, values: Float[Tensor, "*B C"]) -> Float[Tensor, "*B sums"]:
    """Sums over channels: log d, r²/d, then f r/d per factor and f f'/d per pair of factors.

    Sums of products and not matrix products, which may be rounded to a few digits: with thousands
    of channels, the likelihood is a small difference of these sums.
    """
    residual = values - gaussian.mean
    scaled = [factor / gaussian.diagonal for factor in gaussian.factors]
    pairs = [
        (scaled[row] * gaussian.factors[column]).sum(-1)
        for row in range(len(scaled))
        for column in range(row + 1)
    ]
    log_determinant = gaussian.diagonal.log().sum(-1)
    square = (residual.square() / gaussian.diagonal).sum(-1)
    cross = [(factor * residual).sum(-1) for factor in scaled]
    return torch.stack([log_determinant, square, *cross, *pairs], dim=-1)


def negative_log_likelihood(
    sums: Float[Tensor, "*B sums"], rank: int, n_channels: int
) -> Float[Tensor, "*B"]:
    """−log p of the values, from their sums over all channels, by Gaussian elimination.

    Written out factor by factor: ranks are small, and a library call would synchronise the device.
    """
    log_determinant, square, *rest = sums.unbind(-1)
    cross = rest[:rank]
    inner = [[rest[rank + k * (k + 1) // 2 + m] for m in range(k + 1)] for k in range(rank)]
    for k in range(rank):
        inner[k][k] = inner[k][k] + 1
    for k in range(rank):
        pivot = inner[k][k]
        log_determinant, square = log_determinant + pivot.log(), square - cross[k].square() / pivot
        for row in range(k + 1, rank):
            ratio = inner[row][k] / pivot
            cross[row] = cross[row] - ratio * cross[k]
            for column in range(k + 1, row + 1):
                inner[row][column] = inner[row][column] - ratio * inner[column][k]
    return (n_channels * log(2 * pi) + log_determinant + square) / 2


def has_kernels(config: DeepARConfig) -> bool:
    """Whether Triton kernels support this head: one factor, and cells that fit in a tile."""
    return config.rank == 1 and config.cells <= MAX_WIDTH


class DeepARNetwork(RecurrentNetwork):
    """DeepAR for one grid; see `RecurrentNetwork` for the arguments.

    In addition, `backend` is "triton", "torch", or "auto" for Triton kernels on a GPU if they
    support the configuration, and PyTorch elsewhere.
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
                f"the Triton kernels of DeepAR support rank 1 and up to {MAX_WIDTH} cells, not "
                f"rank {config.rank} and {config.cells} cells; use the backend torch or auto"
            )
        self.backend = check_backend(backend)
        size = (self.encoder.width, n_channels, config.rank)
        self.head = LowRankGaussian(*size, config.least_variance, config.factor_norm)

    @property
    def loss_windows(self) -> slice:
        """All windows of a batch, or only the first."""
        return slice(1 if self.config.reduction == "first" else None)

    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Minus the joint log-likelihood of z, summed over channels, mean over steps and windows.

        The likelihood of the values differs from it by a constant: the logarithms of their scales.
        """
        if self.is_fast:
            head, reach = self.head, self.encoder.reach
            sums = fused_channel_sums(output, *head.layers(), window, reach, head.least_variance)
        else:
            sums = self._channel_sums(output, window)
        loss = negative_log_likelihood(sums, self.head.rank, self.n_channels).mean()
        return Losses(loss, {"per channel": loss.detach() / self.n_channels})

    @property
    def is_fast(self) -> bool:
        """Whether Triton kernels compute the sums over channels."""
        return has_kernels(self.config) and uses_triton(self.backend, self.head.weight.device)

    def _channel_sums(
        self, output: Float[Tensor, "B steps K"], window: Window
    ) -> Float[Tensor, "B steps sums"]:
        def block_sums(
            channels: slice, hidden: Tensor, weight: Tensor, bias: Tensor
        ) -> Float[Tensor, "B steps sums"]:
            values = self.scaled_steps(window, channels)
            return channel_sums(self.head.gaussian(hidden, weight, bias), values)

        return sum_blocks(block_sums, self.at_once(output), output, *self.head.layers())

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """Sample paths of equal weight."""
        return self.sample_paths(context, seed, self.config.paths, self._draw)

    def _draw(self, noise: PathNoise, hidden: Float[Tensor, "B P K"]) -> Float[Tensor, "B P C"]:
        """One draw of z for each path."""
        mean, factors, diagonal = self.head(hidden)
        channel_noise = noise.normal(self.n_channels, mean)
        factor_noise = noise.normal(self.head.rank, mean)
        values = mean + diagonal.sqrt() * channel_noise
        for factor, common in zip(factors, factor_noise.unbind(2), strict=True):
            values = values + factor * common[..., None]
        return values


class DeepAR(RecurrentModel):
    """The reference's DeepAR, a vector LSTM."""

    name = "deepar"
    config_type = DeepARConfig
    joint_scenarios = True
    network_type = DeepARNetwork

    takes_backend = True

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Encoder, Gaussian and factors; with Triton kernels, the head takes none."""
        device = choose_device(self.device)
        if has_kernels(self.config) and uses_triton(self.backend, device):
            return step_numbers(self.config, size, channel_block, 0.0)
        tensors, rows = 7.0 + 3.0 * self.config.rank, size.rows(self.config)
        head = block_numbers(rows, size.n_channels, channel_block, tensors)
        return step_numbers(self.config, size, channel_block, head)
