"""The noise network: convolutions along the channels, told of the diffusion step and the window.

What it is told of the window does not depend on the diffusion step, nor what it is told of the step
on the window. Both are made apart, once for all the calls that need them.
"""

from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.convolution import Filter, convolved

SLOPE = 0.4
"""Of rectified values below zero."""
DECADES = 4
"""That the frequencies of the waves span, which tell the diffusion step."""


class Denoiser(nn.Module):
    """From noisy values to the noise in them.

    Args:
        config: all constants.
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
        self.enter = Filter(1, width, 1)
        self.blocks = nn.ModuleList(Block(width, dilation) for dilation in config.dilations)
        self.collect = Filter(width, width, 3)
        self.leave = Filter(width, 1, 3)
        for begun in (self.enter, self.collect):
            nn.init.kaiming_normal_(begun.weight)
        nn.init.zeros_(self.leave.weight)
        self.halo = sum(config.dilations) + 2
        """How far it looks to either side."""
        waves = _waves(config.diffusion_steps, config.frequencies)
        self.register_buffer("waves", waves, persistent=False)

    def filters(self) -> list[nn.Parameter]:
        """What is learned of the convolutions."""
        layers = [one for one in self.modules() if isinstance(one, Filter)]
        return [weight for layer in layers for weight in layer.parameters()]

    def conditioner(self, known: Float[Tensor, "R K"]) -> Float[Tensor, "R C"]:
        """What is known before a step, as one number for each channel."""
        hidden = F.leaky_relu(self.narrow(known), SLOPE, inplace=True)
        return F.leaky_relu(self.widen(hidden), SLOPE, inplace=True)

    def steps(self) -> Float[Tensor, "steps blocks width"]:
        """What each diffusion step adds to the features in each block."""
        read = F.silu(self.read_waves(self.waves.to(self.read_waves.weight)))
        read = F.silu(self.read_more(read))
        return self.tell(read).unflatten(1, (len(self.blocks), -1))

    def forward(
        self,
        noisy: Float[Tensor, "R P"],
        conditioner: Float[Tensor, "R P"],
        step: Float[Tensor, "#R blocks width"],
    ) -> Float[Tensor, "R inner"]:
        """The noise in some channels, given them and a halo on either side."""
        features = F.leaky_relu(self.enter(noisy.reshape(1, -1)), SLOPE, inplace=True)
        beside, collected = conditioner.reshape(1, -1), torch.zeros_like(features)
        for block, added in zip(self.blocks, step.unbind(1), strict=True):
            told = (features.unflatten(1, noisy.shape) + added.T[..., None]).flatten(1)
            change, skipped = block(told, beside).chunk(2)
            features = (features + change) / sqrt(2)
            collected = collected + skipped
        collected = self.collect(collected / sqrt(len(self.blocks)))
        made = self.leave(F.leaky_relu(collected, SLOPE, inplace=True)).view_as(noisy)
        return made[:, self.halo : -self.halo]


class Block(nn.Module):
    """Gated features of a channel and its neighbours.

    Args:
        width: features of a channel.
        dilation: how far the neighbours are.
    """

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.mix = Filter(width, 2 * width, 3, dilation)
        self.told = Filter(1, 2 * width, 1)
        self.leave = Filter(width, 2 * width, 1)
        for begun in (self.told, self.leave):
            nn.init.kaiming_normal_(begun.weight)

    def forward(
        self, features: Float[Tensor, "width N"], conditioner: Float[Tensor, "1 N"]
    ) -> Float[Tensor, "both N"]:
        """What changes, and what is collected."""
        bias = self.mix.bias + self.told.bias
        beside = (conditioner, self.told.weight[:, :, 0])
        mixed = convolved(features, self.mix.weight, bias, self.mix.dilation, beside)
        gate, content = mixed.chunk(2)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        return F.leaky_relu(self.leave(gated), SLOPE, inplace=True)


def _waves(steps: int, frequencies: int) -> Float[Tensor, "steps waves"]:
    """Sine and cosine of every step, at frequencies from 1 up."""
    rising = 10.0 ** (DECADES * torch.arange(frequencies, dtype=torch.float64) / frequencies)
    turns = torch.arange(steps, dtype=torch.float64)[:, None] * rising
    return torch.cat([turns.sin(), turns.cos()], dim=1)
