"""TimePrism as its paper describes it, with every hypothesis in memory: the tests' oracle."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timeprism import TimePrismConfig, TimePrismNetwork


class Forecast(NamedTuple):
    """Hypotheses in units of each channel's scale."""

    hypotheses: Tensor  # B M H C
    logits: Tensor  # B M C
    scale: Tensor  # B 1 C


def average(series: Tensor, steps: int) -> Tensor:
    """The moving average of each row."""
    half = steps // 2
    return F.avg_pool1d(F.pad(series, (half, half), mode="replicate"), steps, stride=1)


def forecast(network: TimePrismNetwork, past: Tensor, borrow: bool = False) -> Forecast:
    """Every hypothesis of every channel."""
    config: TimePrismConfig = network.config
    scale = past.abs().mean(1, keepdim=True)
    if borrow:
        scale = torch.where(scale == 0, scale.mean(0, keepdim=True), scale)
    scale = scale.clamp(min=config.least_scale)
    z = (past / scale).transpose(1, 2)  # B C T
    mean = average(z, config.average_steps)
    heads, horizon = network.heads, network.horizon
    trend = heads.trend(mean).unflatten(2, (config.trends, horizon))
    season = heads.season(z - mean).unflatten(2, (config.seasons, horizon))
    hypotheses = trend.unsqueeze(3) + season.unsqueeze(2)  # B C N K H
    return Forecast(
        hypotheses.flatten(2, 3).permute(0, 2, 3, 1), heads.logit(z).transpose(1, 2), scale
    )


def distances(prediction: Forecast, target: Tensor) -> Tensor:
    """Squared distances, B M C."""
    return (prediction.hypotheses - (target / prediction.scale).unsqueeze(1)).square().sum(2)


def loss(network: TimePrismNetwork, past: Tensor, target: Tensor, temperature: float) -> Tensor:
    """The mean over windows and channels, by automatic differentiation."""
    config = network.config
    prediction = forecast(network, past, config.zero_scale == "batch")
    distance = distances(prediction, target)
    winner = distance.argmin(1, keepdim=True)
    nearest = distance.gather(1, winner).squeeze(1)
    if config.objective == "relaxed":
        rest = (distance.sum(1) - nearest) / (config.hypotheses - 1)
        distance_loss = (1 - config.slack) * nearest + config.slack * rest
    elif config.objective == "annealed" and temperature > config.least_temperature:
        distance_loss = (torch.softmax(-distance.detach() / temperature, dim=1) * distance).sum(1)
    else:
        distance_loss = nearest
    entropy = F.cross_entropy(prediction.logits, winner.squeeze(1))
    return distance_loss.mean() + config.score_weight * entropy
