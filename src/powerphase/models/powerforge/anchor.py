"""The anchor: a reference day computed from the last week, from which residuals are taken.

Nothing here is learned. Each channel averages its last seven days, with more weight on days whose
last two hours moved like the two hours before the forecast; then a bias correction shifts the
average to the last measurements.
"""

from math import pi

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.axes import KINDS, THETA, V
from powerphase.errors import ForecastError
from powerphase.models.powerforge.config import PowerForgeConfig

ANGLES = slice(THETA, None, KINDS)
VOLTAGES = slice(V, None, KINDS)


def wrap(angle: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The same angle in [−π, π]; angles in that range keep every bit."""
    return angle - 2 * pi * torch.round(angle / (2 * pi))


def check_length(n_past: int, config: PowerForgeConfig) -> None:
    """Raise if the context is shorter than the days to average."""
    if n_past < config.segments * config.segment_steps:
        raise ForecastError(
            f"PowerForge needs a context of {config.segments} days of {config.segment_steps} "
            f"steps, and this one has {n_past} steps; lengthen the context or lower segments"
        )


@torch.no_grad()
def subtract_anchor(
    past: Float[Tensor, "B T C"], config: PowerForgeConfig
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B L C"]]:
    """The past less its reference, and the reference day (L steps from the origin on)."""
    n_past, day_steps = past.shape[1], config.segment_steps
    check_length(n_past, config)
    past = _unwrap_angles(past)
    day = _reference_day(past, config) if config.anchor else _flat_day(past, day_steps)
    phase = torch.arange(-n_past, 0, device=past.device) % day_steps
    residual = past - day[:, phase]
    if config.anchor:
        bias = residual[:, -config.bias_steps :].mean(1, keepdim=True)
        residual, day = residual - bias, day + bias
    residual[..., ANGLES] = wrap(residual[..., ANGLES])
    return residual, day


def tile_day(day: Float[Tensor, "*kinds L N"], horizon: int) -> Float[Tensor, "*kinds H N"]:
    """The reference day, tiled to the horizon."""
    if day.shape[-2] == horizon:
        return day
    return day[..., torch.arange(horizon, device=day.device) % day.shape[-2], :]


def _unwrap_angles(past: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
    """The past with angles within ±π of their last value, so that they can be averaged."""
    past = past.clone()
    angle = past[..., ANGLES]
    turns = torch.round((angle - angle[:, -1:]) / (2 * pi))
    past[..., ANGLES] = angle - 2 * pi * turns
    return past


def _reference_day(
    past: Float[Tensor, "B T C"], config: PowerForgeConfig
) -> Float[Tensor, "B L C"]:
    """The attention-weighted mean of each channel's last days."""
    days = past[:, -config.segments * config.segment_steps :]
    days = days.unflatten(1, (config.segments, config.segment_steps))
    query = past[:, -config.query_steps :].unsqueeze(1)
    correlation = _correlation(days[:, :, -config.query_steps :], query, config.stabiliser)
    weights = torch.softmax(correlation / config.temperature, dim=1)  # B S C
    day = torch.zeros_like(days[:, 0])
    for segment in range(config.segments):
        day.addcmul_(days[:, segment], weights[:, segment, None])
    return day


def _correlation(
    keys: Float[Tensor, "B S Q C"], query: Float[Tensor, "B 1 Q C"], stabiliser: float
) -> Float[Tensor, "B S C"]:
    """Pearson's correlation over the Q steps; near 0 if a channel hardly moves."""
    keys = keys - keys.mean(2, keepdim=True)
    query = query - query.mean(2, keepdim=True)
    covariance = (keys * query).mean(2)
    variance = (keys.square().mean(2) + stabiliser) * (query.square().mean(2) + stabiliser)
    return covariance / variance.sqrt()


def _flat_day(past: Float[Tensor, "B T C"], day_steps: int) -> Float[Tensor, "B L C"]:
    """The reference without an anchor: 0, and 1 p.u. for voltages."""
    day = torch.zeros((past.shape[0], day_steps, past.shape[2]), device=past.device).to(past)
    day[..., VOLTAGES] = 1.0
    return day
