"""What PowerForge learns from a planted record, within a stated number of steps on a CPU."""

from dataclasses import replace
from typing import Any

import pytest

from powerphase.axes import THETA, P, Q, V
from powerphase.models.framework import TrainingConfig
from powerphase.models.powerforge import PowerForge, PowerForgeConfig
from powerphase.scenarios import Training
from tests.models.planted import DAY, Recovery, planted_training, recover

STEPS = 90
WEEK = 7 * DAY  # which its reference day reads
SMALL = PowerForgeConfig(
    query_steps=16,  # quarter-hours: four of the planted record's steps
    bias_steps=16,
    hidden=32,
    kernels=(9, 17, 49),  # 3, 5 and 13 of its steps
    tokens=4,
    dropout=0.0,
    scenarios=8,
    calibration_batches=4,
    training=TrainingConfig(
        epochs=3, batches_per_epoch=STEPS // 3, batch_size=16, learning_rate=5e-3
    ),
)


@pytest.fixture(scope="module")
def train() -> Training:
    return planted_training(WEEK)


def recovery(train: Training, **changes: Any) -> Recovery:
    """What a PowerForge with these settings recovers after its training."""
    model = PowerForge(replace(SMALL, **changes), device="cpu")
    model.fit(train)
    return recover(model, train)


def untrained(train: Training) -> Recovery:
    model = PowerForge(SMALL, device="cpu")
    model.configure(train)
    model.network = model._initial_network()
    return recover(model, train)


def test_it_learns_the_day_and_the_last_value(train: Training) -> None:
    """Its reference day has both, so it must also improve on that, the voltages too."""
    start, end = untrained(train), recovery(train)
    assert (end.slope > 0.8).all()
    assert (end.first_to_last < 0.8).all()
    assert (end.hourly_crps.mean(0) < 0.85 * start.hourly_crps.mean(0)).all()


def test_by_the_clamp_voltages_stay_at_the_reference_day(train: Training) -> None:
    start, end = untrained(train), recovery(train, voltage_gate="clamp")
    ratio = (end.hourly_crps.mean(0) / start.hourly_crps.mean(0)).tolist()
    assert ratio.pop(V) > 0.97
    assert max(ratio) < 0.85


def test_without_a_reference_day_it_learns_the_day_itself(train: Training) -> None:
    """Voltages take longer: without a reference day, their week is a thirtieth of that of P."""
    slope = recovery(train, anchor=False).slope
    assert (slope[[P, Q, THETA]] > 0.8).all()
