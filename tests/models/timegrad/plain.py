"""The noise network as the reference has it: circular convolutions over all channels at once."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.convolution import Filter
from powerphase.models.timegrad.denoiser import Denoiser


def denoiser_of(n_channels: int, **changes: int) -> Denoiser:
    """One whose every weight counts, the last convolution's too."""
    torch.manual_seed(3)
    denoiser = Denoiser(TimeGradConfig(condition=6, diffusion_steps=9, **changes), n_channels)
    torch.nn.init.normal_(denoiser.leave.weight)
    return denoiser.double()


def circular(values: Tensor, layer: Filter, padding: int) -> Tensor:
    padded = F.pad(values, (padding, padding), mode="circular")
    return F.conv1d(padded, layer.weight, layer.bias, dilation=layer.dilation)


def plain_noise(denoiser: Denoiser, noisy: Tensor, known: Tensor, step: Tensor) -> Tensor:
    """The noise in some rows, each at a diffusion step of its own."""
    read = F.silu(denoiser.read_waves(denoiser.waves.to(noisy)[step]))
    read = F.silu(denoiser.read_more(read))
    hidden = F.leaky_relu(denoiser.narrow(known), 0.4)
    conditioner = F.leaky_relu(denoiser.widen(hidden), 0.4)[:, None]
    features = F.leaky_relu(circular(noisy[:, None], denoiser.enter, 2), 0.4)
    skips, n_blocks, width = [], len(denoiser.blocks), features.shape[1]
    for number, block in enumerate(denoiser.blocks):
        here = slice(number * width, (number + 1) * width)
        told = F.linear(read, denoiser.tell.weight[here], denoiser.tell.bias[here])
        mixed = circular(features + told[..., None], block.mix, 1 + number % 2)
        gate, content = (mixed + circular(conditioner, block.told, 2)).chunk(2, dim=1)
        gated = torch.sigmoid(gate) * torch.tanh(content)
        change, skip = F.leaky_relu(circular(gated, block.leave, 0), 0.4).chunk(2, dim=1)
        features = (features + change) / sqrt(2)
        skips.append(skip)
    collected = torch.stack(skips).sum(0) / sqrt(n_blocks)
    collected = F.leaky_relu(circular(collected, denoiser.collect, 0), 0.4)
    return circular(collected, denoiser.leave, 0)[:, 0]
