"""Scores of some channels: those of the whole grid, restricted to them; never a row."""

from typing import Any

import numpy as np
import pytest

from powerphase import Result, Store, Task, forecast, score, score_channels
from powerphase.axes import VARIABLES, V
from powerphase.errors import ForecastError, UnknownName
from powerphase.models import LastSevenDays, LastWeek
from powerphase.records import SCORES


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


@pytest.mark.parametrize("model", [LastSevenDays(), LastWeek()])
def test_the_scores_of_a_variable_are_those_of_the_row(task: Task, model: Any) -> None:
    made = forecast(model, task)
    row = score(made, task).row
    for variable in VARIABLES:
        part = score_channels(made, task, variable)
        for name, value in part.scores.items():
            expected = row.by_type[variable].get(name)
            assert value == (None if expected is None else pytest.approx(expected, rel=1e-9)), name
        assert part.names[0] == task.layout.name_of(VARIABLES.index(variable))


def test_any_channels_are_scored_in_their_order(task: Task) -> None:
    made = forecast(LastSevenDays(), task)
    everything = score_channels(made, task, range(task.layout.n_channels))
    assert everything.by_channel.keys() == {n for n, about in SCORES.items() if about.pointwise}
    chosen = [41, 6, 3]
    part = score_channels(made, task, np.array(chosen))
    for name, values in part.by_channel.items():
        np.testing.assert_allclose(values, everything.by_channel[name][chosen], rtol=1e-9)
    assert np.isnan(part.by_channel["brier"]).tolist() == [number % 4 != V for number in chosen]
    assert part.to_pandas().shape == (3, len(part.by_channel))
    assert not isinstance(part, Result)


@pytest.mark.parametrize("channels", [[], [-1], [56], [3, 3], np.array([], dtype=int)])
def test_channels_that_do_not_exist_are_rejected(task: Task, channels: Any) -> None:
    with pytest.raises(ForecastError, match="channel"):
        score_channels(forecast(LastWeek(), task), task, channels)


def test_an_unknown_variable_is_rejected(task: Task) -> None:
    with pytest.raises(UnknownName, match="theta"):
        score_channels(forecast(LastWeek(), task), task, "angle")
