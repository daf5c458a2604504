"""Analogs are past states, chosen by similarity."""

import numpy as np
import pytest
import torch

from powerphase.clock import slot_of_day
from powerphase.errors import ForecastError
from powerphase.models import Analogs, AnalogsConfig
from powerphase.models.anchors import similarity_weights
from powerphase.scenarios import Context
from tests.models.anchors import DAY, training, window_of, windows
from tests.models.planted import whole


@pytest.fixture(scope="module")
def model() -> Analogs:
    analogs = Analogs(AnalogsConfig(analogs=11))
    analogs.fit(training())
    return analogs


def test_scenarios_are_past_states_to_the_bit(model: Analogs) -> None:
    context = window_of(windows()[0], 2)
    starts, weights = model.choose_days(context)
    scenarios = whole(model.predict(context))
    record = training().read()
    for number, start in enumerate(starts):
        assert torch.equal(scenarios.values[0, number], record[start : start + DAY])
    expected = torch.from_numpy(weights).float()
    assert all(torch.equal(column, expected) for column in scenarios.weights[0].T)


def test_days_are_different_and_start_at_the_window_s_time_in_berlin(model: Analogs) -> None:
    context = window_of(windows()[0], 4)
    starts, weights = model.choose_days(context)
    assert len(set(starts.tolist())) == 11
    quarters = slot_of_day(training().time[starts])
    assert set(quarters.tolist()) == {int(slot_of_day(context.future_time[0, :1])[0])}
    assert (np.diff(weights) <= 0).all()
    assert weights.sum() == pytest.approx(1)


def test_the_day_itself_is_its_own_nearest_analog(model: Analogs) -> None:
    record, origin = training(), 30 * DAY
    steps = slice(origin - 2 * DAY, origin)
    context = Context(
        record.read(steps)[None], record.time[None, steps.start : origin + DAY], record.layout
    )
    starts, _ = model.choose_days(context)
    assert starts[0] == origin


def test_weights_follow_their_formula() -> None:
    distance = np.array([1.0, 2.0, 3.0])
    weight = similarity_weights(distance, 2.0)
    np.testing.assert_allclose(weight, np.exp(-distance) / np.exp(-distance).sum())
    np.testing.assert_allclose(similarity_weights(distance, 0.0), 1 / 3)
    np.testing.assert_allclose(similarity_weights(np.zeros(4), 2.0), 1 / 4)


def test_a_short_record_has_fewer_analogs() -> None:
    analogs = Analogs(AnalogsConfig(analogs=40))
    analogs.fit(training(20))
    assert whole(analogs.predict(window_of(windows()[0], 0))).values.shape[1] == (20 - 2) // 2


def test_a_context_shorter_than_what_is_compared_raises() -> None:
    analogs = Analogs(AnalogsConfig(analogs=5, lookback_hours=72))
    with pytest.raises(ForecastError, match="288"):
        analogs.fit(training())
