"""The reference forecasters, against their definitions."""

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import ForecastError, UnknownName
from powerphase.metrics import daily_slope
from powerphase.models import Climatology, ClimatologyConfig, FlatWeek, LastSevenDays, LastWeek
from powerphase.models.framework import Forecaster, describe
from powerphase.models.naive import slot_of_week
from powerphase.registry import MODELS, model_class
from powerphase.task import Task


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days)


def test_last_week_is_the_record_seven_days_earlier(task: Task) -> None:
    scenarios = LastWeek().predict(task.test.context(2))
    origin = int(task.test.origins[2])
    expected = task.test.record.read(slice(origin - 672, origin - 672 + 96))
    assert scenarios.values.shape == (1, 1, 96, 56)
    assert torch.equal(scenarios.values[0, 0], expected)


def test_last_seven_days_are_the_days_of_the_context(task: Task) -> None:
    context = task.test.context(1)
    scenarios = LastSevenDays().predict(context)
    assert torch.equal(scenarios.values[0], context.past[0].reshape(7, 96, 56))
    assert torch.equal(scenarios.weights, torch.full((1, 7, 56), 1 / 7))


def test_a_horizon_of_two_days_repeats_what_the_context_has(sixty_days: Store) -> None:
    context = Task(sixty_days, horizon=192).test.context(0)
    values = LastSevenDays().predict(context).values[0]
    past = context.past[0].reshape(7, 96, 56)
    assert torch.equal(values[0], past[:2].reshape(192, 56))
    assert torch.equal(values[6], past[[6, 6]].reshape(192, 56))


def test_a_context_of_less_than_a_week_raises(sixty_days: Store) -> None:
    context = Task(sixty_days, context=600).test.context(0)
    for model in (LastWeek(), FlatWeek()):
        with pytest.raises(ForecastError, match="600 steps"):
            model.predict(context)


def test_flat_week_is_the_quantiles_of_the_last_week_at_every_step(task: Task) -> None:
    context = task.test.context(3)
    values = FlatWeek().predict(context).values[0]
    levels = (np.arange(16) + 0.5) / 16
    oracle = np.quantile(context.past[0].numpy(), levels, axis=0, method="higher")
    assert values.shape == (16, 96, 56)
    np.testing.assert_array_equal(values, np.repeat(oracle[:, None], 96, axis=1))


def test_flat_week_is_a_flat_line_and_last_week_has_the_day(task: Task) -> None:
    windows = [(task.test.context(k), task.test.target(k)) for k in range(len(task.test))]
    target = torch.cat([target for _, target in windows])
    slopes = []
    for model in (FlatWeek(), LastWeek()):
        means = torch.cat([model.predict(context).values.mean(1) for context, _ in windows])
        slopes.append(daily_slope(means, target))
    assert (slopes[0].abs() < 1e-6).all()
    assert (slopes[1] > 0.3).all()


def test_climatology_is_the_training_quantiles_of_the_time_of_week(task: Task) -> None:
    model = Climatology(ClimatologyConfig(quantiles=4, channels_at_once=24))
    model.fit(task.training)
    context = task.test.context(4)
    values = model.predict(context).values[0]
    record, slots = task.training.read().numpy(), slot_of_week(task.training.time)
    expected = slot_of_week(context.future_time)[0]
    for step in (0, 37, 95):
        alike = record[slots == expected[step]]
        levels = np.array([1, 3, 5, 7]) / 8
        oracle = np.quantile(alike, levels, axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(values[:, step], oracle.astype(np.float32))
    assert model.n_parameters == 4 * 672 * 56


def test_the_slot_of_the_week_follows_the_berlin_clock() -> None:
    # Monday 2016-07-04 00:15 in Berlin is Sunday 22:15 UTC in summer; in winter, 23:15.
    times = np.array(["2016-07-03T22:15", "2016-12-04T23:15"], dtype="datetime64[s]")
    assert list(slot_of_week(times)) == [1, 1]


def test_climatology_without_every_slot_of_the_week_raises(sixty_days: Store) -> None:
    training = Task(sixty_days).training
    training.time = training.time[:600]
    with pytest.raises(ForecastError, match="600 of 672"):
        Climatology().fit(training)


def test_climatology_before_fit_raises(task: Task) -> None:
    with pytest.raises(ForecastError, match="climatology"):
        Climatology().predict(task.test.context(0))


@pytest.mark.parametrize("name", [n for n, info in MODELS.items() if not info.needs_store])
def test_every_registered_model_is_a_forecaster_of_that_name(name: str) -> None:
    model = model_class(name)()
    assert isinstance(model, Forecaster)
    assert describe(model).model == name


def test_a_misspelt_model_raises_and_suggests_the_right_name() -> None:
    with pytest.raises(UnknownName, match="last-week"):
        model_class("last-weak")


def test_a_model_without_a_name_is_named_after_its_class() -> None:
    class MyGNNForecaster2:
        pass

    assert describe(MyGNNForecaster2()).model == "my-gnn-forecaster2"
