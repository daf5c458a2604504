"""How much of the daily cycle a forecast contains.

No score: a forecast may have a good slope and a bad CRPS. It says why a CRPS is bad: a model that
knows neither the hour nor the last value forecasts a flat line, whose slope is 0.
"""

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS


def daily_slope(
    mean: Float[Tensor, "B H C"], target: Float[Tensor, "B H C"], day_steps: int = 96
) -> Float64[Tensor, " 4"]:
    """The slope of the forecast mean on the truth within the day, of P, Q, V and θ.

    1 for the whole daily cycle, 0 for a flat line, NaN if the truth of a kind is constant. Each
    channel's mean over each day of the horizon is subtracted from forecast and truth; the slope is
    then that of one regression over all windows, steps and channels of a kind, so channels count by
    the size of their cycle.
    """
    return slope_of(daily_products(mean, target, day_steps))


def slope_of(products: Float64[Tensor, "2 C"]) -> Float64[Tensor, " 4"]:
    """The slope of P, Q, V and θ from the sums of `daily_products` over all channels."""
    cross, square = products.unflatten(1, (-1, KINDS)).sum(1)
    return cross / square


def daily_products(
    mean: Float[Tensor, "B H C"],
    target: Float[Tensor, "B H C"],
    day_steps: int = 96,
    observed: Bool[Tensor, "B H C"] | None = None,
) -> Float64[Tensor, "2 C"]:
    """The sums behind `daily_slope` by channel: forecast times truth, and truth times truth.

    Sums of several blocks of windows or channels can be added or joined. Only the observed part of
    the truth counts.
    """
    if observed is not None:
        return _observed_products(mean, target, day_steps, observed)
    products = torch.zeros((2, target.shape[2]), dtype=torch.float64, device=target.device)
    pairs = zip(mean.split(day_steps, 1), target.split(day_steps, 1), strict=True)
    for day in pairs:
        forecast, truth = (part.double() - part.double().mean(1, keepdim=True) for part in day)
        products += torch.stack([forecast * truth, truth.square()]).sum((1, 2))
    return products


def _observed_products(
    mean: Float[Tensor, "B H C"],
    target: Float[Tensor, "B H C"],
    day_steps: int,
    observed: Bool[Tensor, "B H C"],
) -> Float64[Tensor, "2 C"]:
    """The same sums over the steps of each day that are observed."""
    products = torch.zeros((2, target.shape[2]), dtype=torch.float64, device=target.device)
    parts = (part.split(day_steps, 1) for part in (mean.double(), target.double(), observed))
    for forecast, truth, seen in zip(*parts, strict=True):
        count = seen.sum(1, keepdim=True).clamp(min=1)
        centred = [
            (part - (part * seen).sum(1, keepdim=True) / count) * seen for part in (forecast, truth)
        ]
        products += torch.stack([centred[0] * centred[1], centred[1].square()]).sum((1, 2))
    return products
