"""Records with other steps than quarter-hours: whatever counts hours or days must not notice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import powerphase as pp
from powerphase.clock import Calendar, local_time
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ForecastError, TaskError, TrainingError
from powerphase.evaluation import PastDays, as_blocks
from powerphase.models import (
    ETS,
    Climatology,
    ETSConfig,
    FactorForge,
    FlatWeek,
    LastSevenDays,
    LastWeek,
    NeuralForecaster,
)
from powerphase.models.framework import Forecaster, with_training
from powerphase.models.powerforge import PowerForgeConfig
from powerphase.models.recurrent import LaggedConfig
from powerphase.models.timeprism import TimePrismConfig
from powerphase.registry import MODELS, model_class
from powerphase.scenarios import Scenarios
from tests.dataset.resampled import change_step, resample

NETWORKS = [name for name in MODELS if issubclass(model_class(name), NeuralForecaster)]
HOUR, FIVE_MINUTES = 3600, 300
CLOSED: tuple[type[Any], ...] = (LastWeek, LastSevenDays, FlatWeek, Climatology, FactorForge)


@pytest.fixture(scope="module")
def hourly(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Means of four quarter-hours."""
    return resample(sixty_days, tmp_path_factory.mktemp("hourly") / "store", HOUR)


@pytest.fixture(scope="module")
def fine(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Every quarter-hour three times."""
    return resample(sixty_days, tmp_path_factory.mktemp("fine") / "store", FIVE_MINUTES)


def scenarios_of(model: Forecaster, task: pp.Task, window: int = 1) -> Scenarios:
    model.fit(task.training)
    return predicted(model, task.test.context(window))


def predicted(model: Forecaster, context: pp.Context) -> Scenarios:
    blocks = [scenarios for _, scenarios in as_blocks(model.predict(context))]
    values, weights = zip(*((block.values, block.weights) for block in blocks), strict=True)
    return Scenarios(torch.cat(values, -1), torch.cat(weights, -1))


def test_a_data_set_states_its_step(hourly: Store, sixty_days: Store) -> None:
    assert (hourly.step_s, sixty_days.step_s) == (HOUR, 900)
    assert len(hourly.time) == 60 * 24
    assert hourly.read("2015-01-02").shape == (24, 14, 4)
    task = pp.Task(hourly)
    assert task.name == "powerphase-day-ahead-60-minute-steps"
    assert (task.test.context(0).step_s, task.training.steps_per_day) == (HOUR, 24)
    assert (task.test.context_steps, task.test.horizon) == (168, 24)


@pytest.mark.parametrize("kind", CLOSED)
def test_repeated_quarter_hours_are_forecast_as_quarter_hours(
    kind: type[Any], sixty_days: Store, fine: Store
) -> None:
    """FactorForge averages and differs a little, where windows of steps have no exact middle."""
    expected = scenarios_of(kind(), pp.Task(sixty_days))
    actual = scenarios_of(kind(), pp.Task(fine))
    repeated = torch.from_numpy(np.repeat(expected.values.numpy(), 3, axis=2))
    assert torch.allclose(actual.weights, expected.weights)
    size = (repeated - repeated.mean((1, 2), keepdim=True)).square().mean().sqrt()
    error = (actual.values - repeated).square().mean().sqrt() / size
    assert error < (0.02 if kind is FactorForge else 1e-6)


@pytest.mark.parametrize("kind", [LastWeek, LastSevenDays])
def test_means_of_hours_are_forecast_as_the_means_of_quarter_hours(
    kind: type[Any], sixty_days: Store, hourly: Store
) -> None:
    quarters, hours = (scenarios_of(kind(), pp.Task(s)).values for s in (sixty_days, hourly))
    tasks = pp.Task(sixty_days), pp.Task(hourly)
    quarters, hours = (
        v * torch.from_numpy(t.layout.scale) for v, t in zip((quarters, hours), tasks, strict=True)
    )
    averaged = quarters.unflatten(2, (24, 4)).mean(3)
    assert torch.allclose(hours, averaged, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Climatology, FactorForge, ETS])
def test_models_of_the_day_beat_a_flat_week_on_hours(kind: type[Any], hourly: Store) -> None:
    task = pp.Task(hourly, windows=3)
    row, flat = (
        pp.score(pp.forecast(model, task, device="cpu"), task, device="cpu").row
        for model in (kind(**({"device": "cpu"} if kind is ETS else {})), FlatWeek())
    )
    assert row.scores["crps"] / flat.scores["crps"] < 0.6  # type: ignore[operator]
    assert row.task == "powerphase-day-ahead-60-minute-steps-3-windows"
    assert min((row.daily_slope or {}).values()) > 0.5  # type: ignore[type-var, operator]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_an_hourly_record(name: str, hourly: Store) -> None:
    kind = model_class(name)
    budget = {"epochs": 1, "batches_per_epoch": 2, "batch_size": 4}
    config = with_training(kind.config_type(), budget)
    sizes = {"paths": 4, "resamples": 4, "diffusion_steps": 4, "validation_bags": 1}
    small = {field: size for field, size in sizes.items() if getattr(config, field, None)}
    model = kind(replace(config, **small), device="cpu")
    task = pp.Task(hourly, horizon="12h", context="3d" if name != "powerforge" else "7d")
    scenarios = scenarios_of(model, task)
    assert scenarios.values.shape[2:] == (12, 56)
    assert model.config == replace(config, **small)


def test_fields_of_networks_count_quarter_hours() -> None:
    forge = PowerForgeConfig()
    assert forge.at_step(900) is forge
    hours, fine = forge.at_step(HOUR), forge.at_step(FIVE_MINUTES)
    assert (hours.segment_steps, hours.query_steps, hours.bias_steps) == (24, 2, 2)
    assert (fine.segment_steps, fine.query_steps, fine.bias_steps) == (288, 24, 24)
    assert (hours.kernels, fine.kernels) == ((1, 7, 25), (13, 73, 289))
    assert LaggedConfig().at_step(HOUR).lags == (1, 3, 6, 12)
    assert LaggedConfig().at_step(FIVE_MINUTES).lags == (3, 12, 36, 72, 144)
    assert TimePrismConfig().at_step(HOUR).average_steps == 3
    assert ETSConfig().season_steps(HOUR) == 24


def test_a_season_of_less_than_two_steps_raises(hourly: Store) -> None:
    with pytest.raises(TrainingError, match="season"):
        ETS(ETSConfig(season=4), device="cpu").fit(pp.Task(hourly).training)


@pytest.mark.parametrize("kind", [FactorForge, Climatology])
def test_a_model_of_hours_forecasts_no_quarter_hours(
    kind: type[Any], sixty_days: Store, hourly: Store
) -> None:
    model = kind()
    model.fit(pp.Task(hourly, context=200, horizon=100).training)
    context = pp.Task(sixty_days, context=200, horizon=100).test.context(0)
    with pytest.raises((CheckpointError, ForecastError), match=r"900|96"):
        model.predict(context)


def test_a_saved_fit_knows_its_step_and_its_calendar(hourly: Store, tmp_path: Path) -> None:
    task = pp.Task(hourly, origin="06:00", horizon="18h", country="FR")
    run = tmp_path / "run"
    model = FactorForge(run=run)
    model.fit(task.training)
    loaded = FactorForge.load(run)
    loaded.fit(task.training)
    context = task.test.context(2)
    assert torch.equal(predicted(loaded, context).values, predicted(model, context).values)
    for other in (
        pp.Task(hourly, origin="12:00", horizon="18h", country="FR"),
        pp.Task(hourly, origin="06:00", horizon="18h"),
        pp.Task(hourly, origin="06:00", country="FR"),
    ):
        with pytest.raises(CheckpointError):
            FactorForge.load(run).fit(other.training)


@pytest.mark.parametrize("origin", ["06:00", "12:00"])
def test_factorforge_is_fitted_to_windows_that_start_at_the_origin(
    origin: str, hourly: Store
) -> None:
    """So it knows the error at noon of a window that starts there, and not that at midnight."""
    task = pp.Task(hourly, origin=origin, windows="all")
    model = FactorForge()
    model.fit(task.training)
    assert model.fitted is not None
    assert model.fitted.start_s == task.protocol.origin_s
    context = task.test.context(0)
    assert str(context.future_time[0, 0])[11:16] == origin
    assert predicted(model, context).values.shape == (1, 16, 24, 56)
    with pytest.raises(ForecastError, match="h after midnight"):
        model.predict(pp.Task(hourly).test.context(0))


def test_past_days_start_at_the_local_time_of_the_window(hourly: Store, fine: Store) -> None:
    for store, origin in ((hourly, "07:00"), (fine, "07:35")):
        task = pp.Task(store, origin=origin, horizon="30h", country="FR")
        days = PastDays(4)
        context = task.test.context(0)
        days.fit(task.training)
        values = torch.cat([part.values for _, part in days.predict(context)], -1)
        assert values.shape == (1, 4, len(context.future_time[0]), 56)
        first = local_time(context.future_time[:, 0], task.calendar)
        assert str(first[0])[11:16] == f"{int(origin[:2]) + 1:02}{origin[2:]}"


def test_tomorrow_starts_where_the_record_ends_or_at_the_last_origin(hourly: Store) -> None:
    end = hourly.time[-1] + np.timedelta64(1, "h")
    starts = {
        origin: pp.Task(hourly, origin=origin).tomorrow.future_time[0, 0]
        for origin in ("end", "00:00", "06:00", "23:00")
    }
    assert starts["end"] == starts["00:00"] == end
    assert starts["06:00"] == end - np.timedelta64(18, "h")
    assert starts["23:00"] == end - np.timedelta64(1, "h")
    task = pp.Task(hourly, origin="06:00")
    known = hourly.read(
        slice(len(hourly.time) - 19, len(hourly.time) - 18)
    ) / task.layout.scale.reshape(14, 4)
    assert np.allclose(task.tomorrow.past[0, -1].numpy(), known.reshape(-1))


def test_a_calendar_belongs_to_the_data_and_can_be_overridden(
    sixty_days: Store, tmp_path: Path
) -> None:
    french = resample(sixty_days, tmp_path / "french", HOUR, Calendar("FR", "Europe/Paris"))
    assert french.calendar == Calendar("FR", "Europe/Paris")
    task = pp.Task(french)
    assert task.name == "powerphase-day-ahead-60-minute-steps"
    assert task.layout.calendar == french.calendar
    none = pp.Task(french, country="none")
    assert none.layout.calendar == Calendar(None, "Europe/Paris")
    assert none.name == "powerphase-day-ahead-60-minute-steps-country-none"
    assert pp.Task(french, country="FR").name == task.name
    again = pp.Task.of_protocol(french, none.protocol)
    assert (again.name, again.calendar) == (none.name, none.calendar)


def test_a_name_of_another_step_raises(hourly: Store) -> None:
    quarters = pp.Task(hourly).protocol
    with pytest.raises(TaskError, match="15 minutes"):
        pp.Task.of_protocol(hourly, replace(quarters, step_s=900))


@pytest.mark.parametrize("step_s", [HOUR, FIVE_MINUTES])
def test_resampled_steps_keep_the_mean(step_s: int) -> None:
    values = np.random.default_rng(1).normal(size=(96, 3))
    assert np.allclose(change_step(values, step_s).mean(0), values.mean(0))
