"""A record with a planted daily cycle and a planted memory, and what a forecast recovers of them.

Every channel is a level, a daily cycle, and a deviation that fades within half a day. A network
that knows the hour recovers the cycle, and one that knows the last value the deviation: its first
hour is better than its last. A flat line has a daily slope of 0 and all hours alike.

Steps are hours, so that a day has 24 steps and a training takes seconds. (A lag of 24 steps would
be the day before, which the lags of the models in use do not reach.)
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor

from powerphase.circuit import Circuit, Limits
from powerphase.metrics import Fan, crps, daily_slope
from powerphase.scenarios import Layout, Record, Scenarios, Training, Windows

DAY = 24
HORIZON = DAY
N_BUSES = 3
LEVEL = (0.5, 0.2, 1.0, -0.2)
CYCLE = (0.3, 0.2, 0.02, 0.1)
"""Level and amplitude of P, Q, V and θ, about as large as on real grids."""
DEVIATION, MEMORY, NOISE = 0.3, 0.9, 0.03
"""Standard deviation of what fades, its factor from hour to hour, and the standard deviation of
what does not last; the first and the third in amplitudes of the cycle."""
TRAINING_DAYS, VALIDATION_DAYS = 120, 60
BETWEEN_ORIGINS = 31
"""Hours between validation windows, so that they start at all hours of the day."""


def planted_values(n_steps: int, seed: int = 0, n_buses: int = N_BUSES) -> np.ndarray:
    """The channels of all buses, each with its own phase, deviations and noise."""
    random = np.random.default_rng(seed)
    size = (n_steps, 4 * n_buses)
    phase = random.uniform(0, 2 * np.pi, size[1])
    cycle = np.sin(2 * np.pi * np.arange(n_steps)[:, None] / DAY + phase)
    impulses = np.sqrt(1 - MEMORY**2) * random.normal(size=size)
    deviation = lfilter([1.0], [1.0, -MEMORY], impulses, axis=0)
    total = cycle + DEVIATION * deviation + NOISE * random.normal(size=size)
    return np.tile(LEVEL, n_buses) + np.tile(CYCLE, n_buses) * total


def planted_training(context: int, seed: int = 0, n_buses: int = N_BUSES) -> Training:
    """A training on the first days, validated on windows of the others, with so many past hours."""
    n_steps, n_training = DAY * (TRAINING_DAYS + VALIDATION_DAYS), DAY * TRAINING_DAYS
    values = planted_values(n_steps, seed, n_buses).astype(np.float32)
    time = np.datetime64("2015-01-01", "s") + 3600 * np.arange(n_steps)
    buses = np.arange(n_buses)
    circuit = Circuit.chain(n_buses)
    layout = Layout(
        grid="planted",
        bus_id=buses + 1,
        bus_type=np.full(n_buses, 1),
        nominal_kv=np.full(n_buses, 110.0),
        circuit=circuit,
        limits=Limits.equal(circuit, (0.95, 1.05), 100.0),
        p_scale_mw=1.0,
        q_scale_mvar=1.0,
    )

    def record(n: int) -> Record:
        return Record(layout, time[:n], lambda steps, channels: values[steps, channels])

    origins = np.arange(n_training + context, n_steps - HORIZON, BETWEEN_ORIGINS)
    return Training(record(n_training), Windows(record(n_steps), origins, context, HORIZON))


class Recovery(NamedTuple):
    """What forecasts of the validation windows contain, of P, Q, V and θ."""

    slope: Tensor
    """The daily slope; the best possible is about 0.95."""
    hourly_crps: Tensor
    """CRPS by hour of the horizon (H × 4), in amplitudes of the cycle."""

    @property
    def first_to_last(self) -> Tensor:
        """CRPS of the first hour over that of the last six; the best possible is about 0.45."""
        return self.hourly_crps[0] / self.hourly_crps[-6:].mean(0)


def recover(model: Any, train: Training) -> Recovery:
    """What the trained model's forecasts of the validation windows contain."""
    means, scores, targets = [], [], []
    for context, target in train.validation.load(16):
        fan = Fan.of(whole(model.predict(context)))
        means.append(fan.expect(fan.values))
        scores.append(crps(fan, target))
        targets.append(target)
    by_kind = torch.cat(scores).mean(0).unflatten(1, (N_BUSES, 4)).mean(1)
    slope = daily_slope(torch.cat(means), torch.cat(targets), DAY)
    return Recovery(slope, by_kind.double() / torch.tensor(CYCLE).double())


def whole(prediction: Any) -> Scenarios:
    """The scenarios of all channels, also of a model that returns them in blocks."""
    if isinstance(prediction, Scenarios):
        return prediction
    blocks = [scenarios for _, scenarios in prediction]
    return Scenarios(
        torch.cat([block.values for block in blocks], dim=3),
        torch.cat([block.weights for block in blocks], dim=2),
    )
