"""The noise network: dilated convolutions along channels, given the diffusion step and the window.

The conditioner depends on the window but not on the diffusion step; the step embedding depends on
the step but not on the window. Both are computed separately, once for all calls that need them.

A convolution along channels is a few matrix products. Features are the rows of a matrix, and all
channels of all windows form its columns. Each tap of a convolution is then one product of that
matrix, shifted, with a small one. At the ends of a window the next window is mixed in; those
columns are halo, and nothing reads them.
"""

from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.timegrad.config import TimeGradConfig

NEGATIVE_SLOPE = 0.4
"""Of leaky ReLUs."""
DECADES = 4
"""Range of the frequencies that embed the diffusion step."""


class Convolution(nn.Module):
    """Parameters of a convolution, initialised as PyTorch's.

    Args:
        n_in: input features.
        n_out: output features.
        taps: kernel size, an odd number.
        dilation: distance between taps.
    """

    def __init__(self, n_in: int, n_out: int, taps: int = 1, dilation: int = 1) -> None:
        super().__init__()
        bound = 1 / sqrt(n_in * taps)
        self.weight = nn.Parameter(torch.empty(n_out, n_in, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_out).uniform_(-bound, bound))
        self.dilation = dilation

    def forward(self, features: Float[Tensor, "I N"]) -> Float[Tensor, "O N"]:
        """The convolution, with zero padding."""
        return convolve(features, self.weight, self.bias, self.dilation)


class Denoiser(nn.Module):
    """Predicts the noise in noisy values.

    Names of submodules are keys of saved checkpoints: `read_waves`, `read_more` and `tell` embed
    the diffusion step, `narrow` and `widen` make the conditioner.

    Args:
        config: all settings.
        n_channels: channels of the grid, C.
    """

    waves: Tensor

    def __init__(self, config: TimeGradConfig, n_channels: int) -> None:
        super().__init__()
        width = config.width
        self.read_waves = nn.Linear(2 * config.frequencies, config.embedding)
        self.read_more = nn.Linear(config.embedding, config.embedding)
        self.tell = nn.Linear(config.embedding, config.blocks * width)
        self.narrow = nn.Linear(config.condition, n_channels // 2)
        self.widen = nn.Linear(n_channels // 2, n_channels)
        self.enter = Convolution(1, width, 1)
        self.blocks = nn.ModuleList(ResidualBlock(width, dilation) for dilation in config.dilations)
        self.collect = Convolution(width, width, 3)
        self.leave = Convolution(width, 1, 3)
        for layer in (self.enter, self.collect):
            nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(self.leave.weight)
        self.halo = sum(config.dilations) + 2
        """Channels that it reads on either side."""
        waves = _sinusoids(config.diffusion_steps, config.frequencies)
        self.register_buffer("waves", waves, persistent=False)

    def convolution_parameters(self) -> list[nn.Parameter]:
        """Weights and biases of all convolutions."""
        layers = [module for module in self.modules() if isinstance(module, Convolution)]
        return [weight for layer in layers for weight in layer.parameters()]

    def conditioner(self, condition: Float[Tensor, "R K"]) -> Float[Tensor, "R C"]:
        """The encoder's output before a step, mapped to one number per channel."""
        hidden = F.leaky_relu(self.narrow(condition), NEGATIVE_SLOPE, inplace=True)
        return F.leaky_relu(self.widen(hidden), NEGATIVE_SLOPE, inplace=True)

    def step_embeddings(self) -> Float[Tensor, "steps blocks width"]:
        """What each diffusion step adds to the features in each block."""
        embedding = F.silu(self.read_waves(self.waves.to(self.read_waves.weight)))
        embedding = F.silu(self.read_more(embedding))
        return self.tell(embedding).unflatten(1, (len(self.blocks), -1))

    def forward(
        self,
        noisy: Float[Tensor, "R P"],
        conditioner: Float[Tensor, "R P"],
        step: Float[Tensor, "#R blocks width"],
    ) -> Float[Tensor, "R inner"]:
        """The noise in some channels, from these channels with a halo on either side."""
        features = F.leaky_relu(self.enter(noisy.reshape(1, -1)), NEGATIVE_SLOPE, inplace=True)
        conditions, skips = conditioner.reshape(1, -1), torch.zeros_like(features)
        for block, embedding in zip(self.blocks, step.unbind(1), strict=True):
            inputs = (features.unflatten(1, noisy.shape) + embedding.T[..., None]).flatten(1)
            change, skip = block(inputs, conditions).chunk(2)
            features = (features + change) / sqrt(2)
            skips = skips + skip
        collected = self.collect(skips / sqrt(len(self.blocks)))
        collected = F.leaky_relu(collected, NEGATIVE_SLOPE, inplace=True)
        return self.leave(collected).view_as(noisy)[:, self.halo : -self.halo]


class ResidualBlock(nn.Module):
    """A gated convolution of a channel and its neighbours.

    `mix` convolves the features, `told` projects the conditioner, `leave` makes the outputs.

    Args:
        width: features per channel.
        dilation: distance to the neighbours.
    """

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.mix = Convolution(width, 2 * width, 3, dilation)
        self.told = Convolution(1, 2 * width, 1)
        self.leave = Convolution(width, 2 * width, 1)
        for layer in (self.told, self.leave):
            nn.init.kaiming_normal_(layer.weight)

    def forward(
        self, features: Float[Tensor, "width N"], conditioner: Float[Tensor, "1 N"]
    ) -> Float[Tensor, "both N"]:
        """The change of the features, and the skip output."""
        bias = self.mix.bias + self.told.bias
        extra = (conditioner, self.told.weight[:, :, 0])
        mixed = convolve(features, self.mix.weight, bias, self.mix.dilation, extra)
        gate, content = mixed.chunk(2)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        return F.leaky_relu(self.leave(gated), NEGATIVE_SLOPE, inplace=True)


def convolve(
    features: Float[Tensor, "I N"],
    weight: Float[Tensor, "O I taps"],
    bias: Float[Tensor, " O"],
    dilation: int = 1,
    extra: tuple[Float[Tensor, "J N"], Float[Tensor, "O J"]] | None = None,
) -> Float[Tensor, "O N"]:
    """A convolution with an odd number of taps.

    Args:
        features: of all columns, padded with zeros.
        weight: in the layout of PyTorch's convolutions.
        bias: of the outputs.
        dilation: columns between taps.
        extra: more features of each column, and the matrix that adds them to the outputs.
    """
    apply: Any = _Convolve.apply
    outputs: Tensor = apply(dilation, features, weight, bias, *(extra or ()))
    return outputs


class _Convolve(torch.autograd.Function):
    """With a custom backward pass: it adds all shifts of a gradient in place, without copies."""

    @staticmethod
    def forward(
        ctx: Any, dilation: int, features: Tensor, weight: Tensor, bias: Tensor, *extra: Tensor
    ) -> Tensor:
        ctx.save_for_backward(features, weight, *extra)
        ctx.shifts = _shifts(weight.shape[2], dilation, features.shape[1])
        outputs = bias[:, None].repeat(1, features.shape[1])
        for matrix, (columns, sources) in zip(weight.unbind(2), ctx.shifts, strict=True):
            outputs[:, columns].addmm_(matrix, features[:, sources])
        if extra:
            outputs.addmm_(extra[1], extra[0])
        return outputs

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, *extra = ctx.saved_tensors
        grad_features, grad_weight = torch.zeros_like(features), []
        for matrix, (columns, sources) in zip(weight.unbind(2), ctx.shifts, strict=True):
            grad_features[:, sources].addmm_(matrix.T, upstream[:, columns])
            grad_weight.append(_outer(upstream[:, columns], features[:, sources]))
        gradients = (None, grad_features, torch.stack(grad_weight, 2), upstream.sum(1))
        if not extra:
            return gradients
        return *gradients, extra[1].T @ upstream, _outer(upstream, extra[0])


def _outer(gradient: Float[Tensor, "O N"], features: Float[Tensor, "I N"]) -> Float[Tensor, "O I"]:
    # On a CPU, the transposed product takes three times as long.
    return (features @ gradient.T).T


def _shifts(taps: int, dilation: int, length: int) -> list[tuple[slice, slice]]:
    """Output and input columns of each tap."""
    shifts = []
    for tap in range(taps):
        shift = (tap - taps // 2) * dilation
        columns = slice(max(0, -shift), length - max(0, shift))
        shifts.append((columns, slice(columns.start + shift, columns.stop + shift)))
    return shifts


def _sinusoids(steps: int, frequencies: int) -> Float[Tensor, "steps waves"]:
    """Sine and cosine of every step, at frequencies from 1 up."""
    rising = 10.0 ** (DECADES * torch.arange(frequencies, dtype=torch.float64) / frequencies)
    angles = torch.arange(steps, dtype=torch.float64)[:, None] * rising
    return torch.cat([angles.sin(), angles.cos()], dim=1)
