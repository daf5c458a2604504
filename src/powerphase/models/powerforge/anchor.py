"""The anchor: a reference day made of the last week, from which all else is a deviation.

Nothing here is learned. Each channel averages its last seven days, with more weight on those whose
last two hours moved as the two hours before the forecast did; the average is then shifted to meet
the last measurements.
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
    """The same angle in [−π, π]; angles already there keep every bit."""
    return angle - 2 * pi * torch.round(angle / (2 * pi))


def check_length(n_past: int, config: PowerForgeConfig) -> None:
    """Refuse a context that is shorter than the days to be averaged."""
    if n_past < config.segments * config.segment_steps:
        raise ForecastError(
            f"PowerForge looks back {config.segments} days of {config.segment_steps} steps, and "
            f"the context has {n_past} steps; give a longer context or lower segments"
        )


@torch.no_grad()
def anchored(
    past: Float[Tensor, "B T C"], config: PowerForgeConfig
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B L C"]]:
    """The past less its reference, and the reference day (L steps, from the origin on)."""
    n_past, day_steps = past.shape[1], config.segment_steps
    check_length(n_past, config)
    past = _on_one_turn(past)
    day = _reference_day(past, config) if config.anchor else _flat_day(past, day_steps)
    phase = torch.arange(-n_past, 0, device=past.device) % day_steps
    residual = past - day[:, phase]
    if config.anchor:
        bias = residual[:, -config.bias_steps :].mean(1, keepdim=True)
        residual, day = residual - bias, day + bias
    residual[..., ANGLES] = wrap(residual[..., ANGLES])
    return residual, day


def reference(day: Float[Tensor, "*kinds L N"], horizon: int) -> Float[Tensor, "*kinds H N"]:
    """The reference day, repeated over the horizon."""
    if day.shape[-2] == horizon:
        return day
    return day[..., torch.arange(horizon, device=day.device) % day.shape[-2], :]


def _on_one_turn(past: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
    """Angles without jumps of 2π, so that they can be averaged like everything else."""
    past = past.clone()
    angle = past[..., ANGLES]
    turns = torch.round((angle - angle[:, -1:]) / (2 * pi))
    past[..., ANGLES] = angle - 2 * pi * turns
    return past


def _reference_day(
    past: Float[Tensor, "B T C"], config: PowerForgeConfig
) -> Float[Tensor, "B L C"]:
    """The last days of each channel, averaged by how alike their last steps are to the newest."""
    days = past[:, -config.segments * config.segment_steps :]
    days = days.unflatten(1, (config.segments, config.segment_steps))
    query = past[:, -config.query_steps :].unsqueeze(1)
    likeness = _correlation(days[:, :, -config.query_steps :], query, config.stabiliser)
    weights = torch.softmax(likeness / config.temperature, dim=1)  # B S C
    day = torch.zeros_like(days[:, 0])
    for segment in range(config.segments):
        day.addcmul_(days[:, segment], weights[:, segment, None])
    return day


def _correlation(
    keys: Float[Tensor, "B S Q C"], query: Float[Tensor, "B 1 Q C"], stabiliser: float
) -> Float[Tensor, "B S C"]:
    """Pearson's correlation over the Q steps; near 0 where a channel hardly moves."""
    keys = keys - keys.mean(2, keepdim=True)
    query = query - query.mean(2, keepdim=True)
    covariance = (keys * query).mean(2)
    spread = (keys.square().mean(2) + stabiliser) * (query.square().mean(2) + stabiliser)
    return covariance / spread.sqrt()


def _flat_day(past: Float[Tensor, "B T C"], day_steps: int) -> Float[Tensor, "B L C"]:
    """No anchor: deviations are from 0, and for voltages from 1 p.u."""
    day = torch.zeros((past.shape[0], day_steps, past.shape[2]), device=past.device).to(past)
    day[..., VOLTAGES] = 1.0
    return day
