"""TimePrism as a forecaster: training, resuming, saving, loading and forecasting."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import TrainingError
from powerphase.evaluation import forecast, score
from powerphase.models.framework import Forecaster, Progress, RunFolder, TrainingConfig, describe
from powerphase.models.timeprism import TimePrism, TimePrismConfig, memory_gib
from powerphase.models.timeprism import model as model_module
from powerphase.registry import model_class
from powerphase.scenarios import Context, Scenarios
from powerphase.task import Task
from tests.models.factorforge import World, training_of
from tests.models.timeprism import CONTEXT, HORIZON, small
from tests.models.toys import curve_of, same_weights


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=96, horizon=24, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trained model with a run folder."""
    model = TimePrism(small(), device="cpu", run=tmp_path_factory.mktemp("prism") / "run")
    model.fit(task.training)
    return model


def joined(blocks: Any) -> Scenarios:
    """All channels of a forecast that comes in blocks."""
    parts = [part for _, part in blocks]
    values = torch.cat([part.values for part in parts], dim=-1)
    return Scenarios(values, torch.cat([part.weights for part in parts], dim=-1))


def equal(a: Scenarios, b: Scenarios) -> bool:
    return torch.equal(a.values, b.values) and torch.equal(a.weights, b.weights)


class Interrupted(Exception):
    """Ends a training in these tests."""


def interrupt(now: Progress) -> None:
    if now.step == 5:
        raise Interrupted


def test_it_is_a_registered_forecaster() -> None:
    model = model_class("timeprism")()
    assert isinstance(model, Forecaster)
    assert describe(model).config["hypotheses"] == 625


def test_a_loaded_model_forecasts_the_same_to_the_last_bit(task: Task, fitted: Any) -> None:
    loaded: Any = TimePrism.load(fitted.run)
    context = task.training.validation.context(0)
    assert same_weights(fitted.network, loaded.network)
    assert equal(joined(loaded.predict(context)), joined(fitted.predict(context)))


def test_a_forecast_does_not_depend_on_earlier_ones(task: Task, fitted: Any) -> None:
    windows = task.training.validation
    first = joined(fitted.predict(windows.context(0)))
    assert not equal(joined(fitted.predict(windows.context(1))), first)
    assert equal(joined(fitted.predict(windows.context(0))), first)


@pytest.mark.parametrize("objective", ["relaxed", "annealed"])
def test_an_interrupted_training_ends_with_the_same_weights(
    task: Task, tmp_path: Path, objective: str
) -> None:
    """The annealed loss too: the number of steps is saved."""
    config = small(objective=objective, cooling=0.5)
    straight: Any = TimePrism(config, device="cpu", run=tmp_path / "straight")
    straight.fit(task.training)
    interrupted = TimePrism(config, device="cpu", run=tmp_path / "cut", on_progress=interrupt)
    with pytest.raises(Interrupted):
        interrupted.fit(task.training)
    resumed: Any = TimePrism(config, device="cpu", run=tmp_path / "cut")
    resumed.fit(task.training)
    assert same_weights(straight.network, resumed.network)
    assert curve_of(tmp_path / "straight") == curve_of(tmp_path / "cut")


def test_the_validation_loss_chooses_the_epoch_and_the_log_has_its_parts(fitted: Any) -> None:
    curve = RunFolder.open(fitted.run).curve()
    best = min(line["validation_loss"] for line in curve)
    assert fitted.outcome["validation_loss"] == best
    for line in curve:
        assert line["loss"] == pytest.approx(line["loss/distance"] + line["loss/score"])
        assert line["loss/largest input"] > 0
        assert 0 < line["loss/winning share"] <= 1


def test_training_lowers_the_loss(task: Task) -> None:
    model = TimePrism(small(epochs=8), device="cpu")
    history: list[Progress] = []
    model.on_progress = history.append
    model.fit(task.training)
    losses = [now.validation for now in history if now.validation is not None]
    assert losses[-1] < losses[0]


def odd_states(n_steps: int = 200) -> np.ndarray:
    """Two buses: one channel is zero, one constant, one tiny, and one tiny at times."""
    states = World(n_buses=2).states(3, seed=0)[:n_steps].astype(np.float32)
    states[:, 0], states[:, 1] = 0, 1.0
    states[:, 3] *= 1e-9
    states[:, 7] = np.where(np.arange(n_steps) % 40 < 28, 1e-9, 0.3)
    return states


@pytest.mark.parametrize("changes", [{}, {"least_scale": 1e-10, "zero_scale": "batch"}])
def test_odd_channels_stay_finite_and_the_log_has_their_largest_input(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    training = training_of(odd_states(), context=CONTEXT, horizon=HORIZON)
    model: Any = TimePrism(small(**changes), device="cpu", run=tmp_path / "run")
    model.fit(training)
    largest = max(line["loss/largest input"] for line in curve_of(tmp_path / "run"))
    assert largest > (1e7 if changes else 100)
    assert np.isfinite(model.outcome["validation_loss"])
    assert joined(model.predict(training.validation.context(0))).values.isfinite().all()


def test_missing_values_stop_the_training_at_the_first_step() -> None:
    states = World(n_buses=2).states(3, seed=0)[:200].astype(np.float32)
    states[:150, 2] = np.nan
    training = training_of(states, context=CONTEXT, horizon=HORIZON)
    with pytest.raises(TrainingError, match=r"step 1: .*distance"):
        TimePrism(small(), device="cpu").fit(training)


def test_training_in_blocks_of_channels_gives_the_same_forecast(task: Task, fitted: Any) -> None:
    context = task.training.validation.context(0)
    expected = joined(fitted.predict(context))
    for block in (20, 7):
        model = TimePrism(small(), device="cpu", channel_block=block)
        model.fit(task.training)
        blocks = model.predict(context)
        torch.testing.assert_close(joined(blocks).values, expected.values, rtol=0, atol=1e-4)


def test_a_forecast_comes_in_blocks_that_cover_all_channels(
    task: Task, fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = task.training.validation.context(0)
    expected = joined(fitted.predict(context))
    monkeypatch.setattr(model_module, "ANSWER_BYTES", 20 * 6 * 24 * 4)
    blocks = list(fitted.predict(context))
    assert [(channels.start, channels.stop) for channels, _ in blocks] == [
        (0, 20),
        (20, 40),
        (40, 56),
    ]
    torch.testing.assert_close(joined(iter(blocks)).values, expected.values)


def test_windows_of_one_request_are_independent(task: Task, fitted: Any) -> None:
    first, second = (task.training.validation.context(k) for k in range(2))
    past, time = torch.cat([first.past, second.past]), np.concatenate([first.time, second.time])
    both = joined(fitted.predict(Context(past, time, first.layout)))
    for k, context in enumerate((first, second)):
        alone = joined(fitted.predict(context))
        torch.testing.assert_close(both.values[k : k + 1], alone.values)
        torch.testing.assert_close(both.weights[k : k + 1], alone.weights)


def test_a_forecast_in_blocks_can_be_scored(task: Task, fitted: Any) -> None:
    row = score(forecast(fitted, task, device="cpu"), task, device="cpu").row
    assert (row.model, row.variant, row.scenarios) == ("timeprism", "short-custom", 6)
    assert row.parameters == 97 * (5 * 24 + 6)


def test_smaller_blocks_take_less_memory(task: Task) -> None:
    model = TimePrism(TimePrismConfig(training=TrainingConfig(batch_size=32)), device="cpu")
    sizes = [model.memory_gib(task.training, block) for block in (4, 20, 56, None)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] == sizes[3]


@pytest.mark.parametrize(
    ("channels", "captured", "limit"), [(36_964, True, 40), (36_964, False, 24), (2_000, False, 4)]
)
def test_the_estimate_for_a_batch_of_a_hundred_is_plausible(
    channels: int, captured: bool, limit: float
) -> None:
    size = (100, channels, 51_552, 10, (672, 96))
    estimate = memory_gib(TimePrismConfig(), *size, channel_block=None, captured=captured)
    data = 4 * channels * (51_552 + (10 + 100 * (1 + captured)) * 768) / 2**30
    assert data < estimate < limit
