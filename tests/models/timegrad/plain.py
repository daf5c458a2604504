"""The noise network as in the reference: circular convolutions over all channels at once."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timegrad import Convolution, Denoiser, TimeGradConfig


def denoiser_of(n_channels: int, **changes: Any) -> Denoiser:
    """A noise network whose last convolution does not start at zero."""
    torch.manual_seed(3)
    denoiser = Denoiser(TimeGradConfig(condition=6, diffusion_steps=9, **changes), n_channels)
    torch.nn.init.normal_(denoiser.leave.weight)
    return denoiser.double()


def circular(values: Tensor, layer: Convolution, padding: int) -> Tensor:
    padded = F.pad(values, (padding, padding), mode="circular")
    return F.conv1d(padded, layer.weight, layer.bias, dilation=layer.dilation)


def plain_noise(denoiser: Denoiser, noisy: Tensor, condition: Tensor, step: Tensor) -> Tensor:
    """The noise in some rows, each with its diffusion step."""
    embedding = F.silu(denoiser.read_waves(denoiser.waves.to(noisy)[step]))
    embedding = F.silu(denoiser.read_more(embedding))
    hidden = F.leaky_relu(denoiser.narrow(condition), 0.4)
    conditioner = F.leaky_relu(denoiser.widen(hidden), 0.4)[:, None]
    features = F.leaky_relu(circular(noisy[:, None], denoiser.enter, 2), 0.4)
    blocks: Any = denoiser.blocks
    skips, width = [], features.shape[1]
    for number, block in enumerate(blocks):
        rows = slice(number * width, (number + 1) * width)
        step_bias = F.linear(embedding, denoiser.tell.weight[rows], denoiser.tell.bias[rows])
        mixed = circular(features + step_bias[..., None], block.mix, 1 + number % 2)
        gate, content = (mixed + circular(conditioner, block.told, 2)).chunk(2, dim=1)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        change, skip = F.leaky_relu(circular(gated, block.leave, 0), 0.4).chunk(2, dim=1)
        features = (features + change) / sqrt(2)
        skips.append(skip)
    collected = torch.stack(skips).sum(0) / sqrt(len(blocks))
    collected = F.leaky_relu(circular(collected, denoiser.collect, 0), 0.4)
    return circular(collected, denoiser.leave, 0)[:, 0]
