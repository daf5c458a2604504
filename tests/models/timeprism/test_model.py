"""TimePrism as a forecaster: trained, cut and continued, kept, loaded, and asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import TrainingError
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import score
from powerphase.models.framework import neural as neural_module
from powerphase.models.framework.base import Forecaster, describe
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.training import Progress
from powerphase.models.timeprism import model as model_module
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.model import TimePrism, memory_gib
from powerphase.registry import model_class
from powerphase.scenarios import Context, Scenarios
from powerphase.task.windows import Task
from tests.models.factorforge import World, training_of
from tests.models.timeprism import CONTEXT, HORIZON, small
from tests.models.toys import curve_of, same_weights


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=96, horizon=24, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> TimePrism:
    """A model that was trained in a folder."""
    model = TimePrism(small(), device="cpu", run=tmp_path_factory.mktemp("prism") / "run")
    model.fit(task.training)
    return model


def whole(blocks: Scenarios | Iterator[tuple[slice, Scenarios]]) -> Scenarios:
    """All channels of an answer that comes in blocks."""
    assert not isinstance(blocks, Scenarios)
    parts = [part for _, part in blocks]
    values = torch.cat([part.values for part in parts], dim=-1)
    return Scenarios(values, torch.cat([part.weights for part in parts], dim=-1))


def same(one: Scenarios, other: Scenarios) -> bool:
    return torch.equal(one.values, other.values) and torch.equal(one.weights, other.weights)


class Stopped(Exception):
    """What ends a training in these tests."""


def stop(now: Progress) -> None:
    if now.step == 5:
        raise Stopped


def test_it_is_a_forecaster_by_its_name() -> None:
    model = model_class("timeprism")()
    assert isinstance(model, Forecaster)
    assert describe(model).config["hypotheses"] == 625


def test_a_loaded_model_forecasts_the_same_to_the_last_bit(task: Task, fitted: TimePrism) -> None:
    loaded, context = TimePrism.load(fitted.run), task.training.validation.context(0)
    assert same_weights(fitted.network, loaded.network)
    assert same(whole(loaded.predict(context)), whole(fitted.predict(context)))


def test_a_forecast_does_not_depend_on_what_was_asked_before(task: Task, fitted: TimePrism) -> None:
    windows = task.training.validation
    first = whole(fitted.predict(windows.context(0)))
    assert not same(whole(fitted.predict(windows.context(1))), first)
    assert same(whole(fitted.predict(windows.context(0))), first)


@pytest.mark.parametrize("objective", ["relaxed", "annealed"])
def test_a_training_that_was_cut_ends_with_the_same_weights(
    task: Task, tmp_path: Path, objective: str
) -> None:
    """Also where the loss cools as steps go by: their number is kept."""
    config = small(objective=objective, cooling=0.5)
    straight = TimePrism(config, device="cpu", run=tmp_path / "straight")
    straight.fit(task.training)
    cut = TimePrism(config, device="cpu", run=tmp_path / "cut", on_progress=stop)
    with pytest.raises(Stopped):
        cut.fit(task.training)
    again = TimePrism(config, device="cpu", run=tmp_path / "cut")
    again.fit(task.training)
    assert same_weights(straight.network, again.network)
    assert curve_of(tmp_path / "straight") == curve_of(tmp_path / "cut")


def test_it_is_chosen_by_its_own_loss_and_logs_its_parts(fitted: TimePrism) -> None:
    curve = RunFolder.open(fitted.run).curve()
    best = min(line["validation_loss"] for line in curve)
    assert fitted.outcome["validation_loss"] == best
    for line in curve:
        assert line["loss"] == pytest.approx(line["loss/distance"] + line["loss/score"])
        assert line["loss/largest input"] > 0
        assert 0 < line["loss/winning share"] <= 1


def test_training_makes_the_loss_smaller(task: Task) -> None:
    model = TimePrism(small(epochs=8), device="cpu")
    seen: list[Progress] = []
    model.on_progress = seen.append
    model.fit(task.training)
    losses = [now.validation for now in seen if now.validation is not None]
    assert losses[-1] < losses[0]


def odd_states(n_steps: int = 200) -> np.ndarray:
    """Two buses: a channel is zero, one constant, one tiny, and one tiny now and then."""
    states = World(n_buses=2).states(3, seed=0)[:n_steps].astype(np.float32)
    states[:, 0], states[:, 1] = 0, 1.0
    states[:, 3] *= 1e-9
    states[:, 7] = np.where(np.arange(n_steps) % 40 < 28, 1e-9, 0.3)
    return states


@pytest.mark.parametrize("changes", [{}, {"least_scale": 1e-10, "zero_scale": "batch"}])
def test_odd_channels_stay_finite_and_the_log_tells_how_large_they_got(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    training = training_of(odd_states(), context=CONTEXT, horizon=HORIZON)
    model = TimePrism(small(**changes), device="cpu", run=tmp_path / "run")
    model.fit(training)
    found = max(line["loss/largest input"] for line in curve_of(tmp_path / "run"))
    assert found > (1e7 if changes else 100)
    assert np.isfinite(model.outcome["validation_loss"])
    assert whole(model.predict(training.validation.context(0))).values.isfinite().all()


def test_a_hole_in_the_data_stops_the_training_with_a_sentence() -> None:
    states = World(n_buses=2).states(3, seed=0)[:200].astype(np.float32)
    states[:150, 2] = np.nan
    training = training_of(states, context=CONTEXT, horizon=HORIZON)
    with pytest.raises(TrainingError, match=r"step 1: distance became nan, .*loss became nan"):
        TimePrism(small(), device="cpu").fit(training)


def test_blocks_of_channels_change_no_result(task: Task, fitted: TimePrism) -> None:
    context = task.training.validation.context(0)
    wanted = whole(fitted.predict(context))
    for block in (20, 7):
        model = TimePrism(small(), device="cpu", channel_block=block)
        model.fit(task.training)
        found = model.predict(context)
        torch.testing.assert_close(whole(found).values, wanted.values, rtol=0, atol=1e-4)


def test_an_answer_comes_in_blocks_that_cover_all_channels(
    task: Task, fitted: TimePrism, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = task.training.validation.context(0)
    wanted = whole(fitted.predict(context))
    monkeypatch.setattr(model_module, "ANSWER_BYTES", 20 * 6 * 24 * 4)
    blocks = list(fitted.predict(context))
    assert [(here.start, here.stop) for here, _ in blocks] == [(0, 20), (20, 40), (40, 56)]
    torch.testing.assert_close(whole(iter(blocks)).values, wanted.values)


def test_several_windows_at_once_are_what_they_are_alone(task: Task, fitted: TimePrism) -> None:
    one, other = (task.training.validation.context(k) for k in range(2))
    past, time = torch.cat([one.past, other.past]), np.concatenate([one.time, other.time])
    both = whole(fitted.predict(Context(past, time, one.layout)))
    for k, context in enumerate((one, other)):
        alone = whole(fitted.predict(context))
        torch.testing.assert_close(both.values[k : k + 1], alone.values)
        torch.testing.assert_close(both.weights[k : k + 1], alone.weights)


def test_a_forecast_is_scored_as_it_comes(task: Task, fitted: TimePrism) -> None:
    row = score(forecast(fitted, task, device="cpu"), task, device="cpu").row
    assert (row.model, row.variant, row.scenarios) == ("timeprism", "short-custom", 6)
    assert row.parameters == 97 * (5 * 24 + 6)


def test_a_batch_is_as_large_as_fits(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(there: float | None) -> int | None:
        monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: there)
        model = TimePrism(TimePrismConfig(hypotheses=16), device="cpu")
        model.settle(task.training)
        return model.config.training.batch_size

    assert settled(None) == settled(100.0) == 100
    model = TimePrism(small(), device="cpu")
    needed = model.memory_gib(task.training)
    assert settled(needed) < 100
    assert settled(0.0) == 8


def test_smaller_blocks_take_less_memory_and_none_is_free(task: Task) -> None:
    model = TimePrism(TimePrismConfig(), device="cpu")
    found = [model.memory_gib(task.training, block) for block in (4, 20, 56, None)]
    assert found == sorted(found)
    assert found[0] < found[2] == found[3]


@pytest.mark.parametrize(
    ("channels", "captured", "limit"), [(36_964, True, 40), (36_964, False, 24), (2_000, False, 4)]
)
def test_a_batch_of_a_hundred_fits(channels: int, captured: bool, limit: float) -> None:
    size = (100, channels, 51_552, 10, (672, 96))
    found = memory_gib(TimePrismConfig(), *size, channel_block=None, captured=captured)
    kept = 4 * channels * (51_552 + (10 + 100 * (1 + captured)) * 768) / 2**30
    assert kept < found < limit
