"""Scenarios from held-out days: they move with the forecast, and their noise stays together."""

from pathlib import Path

import numpy as np
import pytest
import torch

from powerphase.axes import KINDS
from powerphase.errors import ForecastError
from powerphase.models.factorforge import FactorForge, FactorForgeConfig, past_days
from powerphase.scenarios import Context, Training
from tests.models.anchors import window_of
from tests.models.factorforge import World, training_of, windows_of
from tests.models.planted import whole

DAY, DAYS, COUNT = 96, 120, 60
CONSTANT = (5, 16)
WORLD = World(constant=CONSTANT)


def with_twin(states: np.ndarray) -> np.ndarray:
    """The states with another bus, whose V is that of the first one and a hair."""
    twin = states[:, :KINDS].copy()
    twin[:, 2] += 1e-4
    return np.hstack([states, twin])


@pytest.fixture(scope="module")
def training() -> Training:
    return training_of(with_twin(WORLD.states(DAYS, seed=1)), 2 * DAY, DAY)


@pytest.fixture(scope="module")
def model(training: Training, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    config = FactorForgeConfig(coupling="days", scenarios=COUNT)
    model = FactorForge(config, run=tmp_path_factory.mktemp("days") / "run")
    model.fit(training)
    return model


@pytest.fixture(scope="module")
def context() -> Context:
    return windows_of(with_twin(WORLD.states(30, seed=2)), 2 * DAY, DAY)[0]


def values_of(model: FactorForge, context: Context) -> torch.Tensor:
    return whole(model.predict(context)).values


def test_a_scenario_has_the_forecast_s_factors_with_the_error_of_a_held_out_day(
    model: FactorForge, context: Context
) -> None:
    fitted = model.fitted
    assert fitted is not None
    window = window_of(context, 3)
    errors = fitted.factors.of(values_of(model, window)[0]) - fitted.forecast_factors(window)
    known = torch.from_numpy(fitted.forecaster.errors).float().flatten(1)
    distance = torch.cdist(errors.flatten(1), known)
    assert distance.amin(1).max() < 0.02 * known.norm(dim=1).mean()
    assert len(distance.argmin(1).unique()) == COUNT


def test_channels_that_always_moved_together_still_do(model: FactorForge, context: Context) -> None:
    """As the voltages at both ends of a short line; noise that is drawn separates them."""
    values = values_of(model, window_of(context, 3))
    twin = values.shape[-1] - KINDS
    torch.testing.assert_close(
        values[..., twin + 2] - values[..., 2],
        torch.full(values.shape[:3], 1e-4),
        rtol=0,
        atol=2e-6,
    )


def test_days_have_the_deviation_of_a_fan(model: FactorForge, context: Context) -> None:
    fitted = model.fitted
    assert fitted is not None
    values = values_of(model, context)
    expected = fitted.deviation(fitted.forecast_factors(context))
    moving = np.delete(np.arange(24), CONSTANT)
    ratio = values.var(1)[..., moving].mean((0, 1)) / expected[..., moving].square().mean((0, 1))
    assert ratio.sqrt().sub(1).abs().max() < 0.15
    assert torch.equal(
        values[..., list(CONSTANT)],
        context.past[:, None, :1, list(CONSTANT)].expand(-1, COUNT, DAY, -1),
    )


def test_a_loaded_model_forecasts_the_same_bits_once_it_has_the_record(
    model: FactorForge, training: Training, context: Context
) -> None:
    window = window_of(context, 3)
    assert model.run is not None
    loaded = FactorForge.load(model.run)
    with pytest.raises(ForecastError, match="call fit"):
        loaded.predict(window)
    loaded.fit(training)
    assert torch.equal(values_of(loaded, window), values_of(model, window))


def test_another_record_raises(model: FactorForge, context: Context) -> None:
    assert model.run is not None
    loaded = FactorForge.load(Path(model.run))
    loaded.fit(training_of(with_twin(WORLD.states(DAYS - 1, seed=1)), 2 * DAY, DAY))
    with pytest.raises(ForecastError, match="record"):
        loaded.predict(window_of(context, 3))


def test_other_windows_and_blocks_of_channels_change_nothing(
    model: FactorForge, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = values_of(model, context)
    assert torch.equal(values_of(model, window_of(context, 3)), together[3:4])
    monkeypatch.setattr(past_days, "CHANNELS_AT_ONCE", 5)
    torch.testing.assert_close(values_of(model, context), together, rtol=0, atol=1e-6)
