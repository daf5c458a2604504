"""Scores of some channels: those of the whole grid, restricted to them; never a row."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase import Context, Result, Scenarios, Store, Task, forecast, score, score_channels
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


def test_scores_of_whole_states_are_absent_and_it_says_so(task: Task) -> None:
    """A loading follows from four channels, and needs one weight a scenario."""
    part = score_channels(forecast(LastWeek(), task), task, range(task.layout.n_channels))
    assert set(part.absent) == {name for name, about in SCORES.items() if not about.pointwise}
    assert {"distortion", "energy", "loading_crps", "variogram_theta"} <= set(part.absent)
    assert set(part.absent).isdisjoint(part.scores)
    *_, last = str(part).splitlines()
    assert all(SCORES[name].title in last for name in part.absent)


def test_weights_that_differ_by_channel_are_those_of_each_channel(task: Task) -> None:
    """Unlike scores of lines, for which a scenario has its mean weight over all channels."""

    class Weighted(LastSevenDays):
        """Some day for every channel, by weight."""

        name = "weighted"

        def predict(self, context: Context) -> Scenarios:
            values = super().predict(context).values
            weights = torch.zeros_like(values[:, :, 0])
            weights[:, torch.arange(weights.shape[2]) % 7, torch.arange(weights.shape[2])] = 1
            return Scenarios(values, weights)

    class One(LastSevenDays):
        """One day for all channels."""

        name = "one"

        def predict(self, context: Context) -> Scenarios:
            return Scenarios.equal(super().predict(context).values[:, 3:4])

    channels = [3, 10, 17]  # all of the fourth day
    weighted, single = (
        score_channels(forecast(model, task), task, channels) for model in (Weighted(), One())
    )
    np.testing.assert_allclose(weighted.by_channel["crps"], single.by_channel["crps"], rtol=1e-5)


@pytest.mark.parametrize("limits", ["case", "0-1.01"])
def test_voltages_are_scored_by_the_limits_of_the_task(sixty_days: Store, limits: str) -> None:
    task = Task(sixty_days, windows=2, limits=limits)
    made = forecast(LastSevenDays(), task)
    row, part = score(made, task).row, score_channels(made, task, "V")
    for name in ("brier", "necv", "twcrps"):
        assert part.scores[name] == pytest.approx(row.scores[name], rel=1e-9), name
    assert limits == "case" or (part.scores["necv"] or 0) > 0


@pytest.mark.parametrize("channels", [[], [-1], [56], [3, 3], np.array([], dtype=int)])
def test_channels_that_do_not_exist_are_rejected(task: Task, channels: Any) -> None:
    with pytest.raises(ForecastError, match="channel"):
        score_channels(forecast(LastWeek(), task), task, channels)


def test_an_unknown_variable_is_rejected(task: Task) -> None:
    with pytest.raises(UnknownName, match="theta"):
        score_channels(forecast(LastWeek(), task), task, "angle")
