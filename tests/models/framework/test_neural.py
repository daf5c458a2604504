"""NeuralForecaster forecasters: what they say of themselves, and where they refuse to forecast."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.cost import hardware
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ForecastError, TrainingError, UnknownName
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import score
from powerphase.models.framework import neural as neural_module
from powerphase.models.framework.base import Forecaster, describe
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.training import Progress
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.model import PowerForge
from powerphase.scenarios import Context
from powerphase.task.windows import Task
from tests.models.toys import (
    CPU,
    ToyModel,
    same_weights,
    tiny,
    wavy_training,
)


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=192, horizon=24, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> PowerForge:
    """A model that was trained in a folder."""
    model = PowerForge(tiny(), run=tmp_path_factory.mktemp("fitted") / "run")
    model.fit(task.training)
    return model


@pytest.fixture
def loaded(fitted: PowerForge) -> PowerForge:
    return PowerForge.load(fitted.run)


def test_a_trained_model_is_a_forecaster() -> None:
    assert isinstance(PowerForge(), Forecaster)


def test_predict_before_fit_is_refused(task: Task) -> None:
    with pytest.raises(ForecastError, match="powerforge is not trained; call fit, or load"):
        PowerForge().predict(task.test.context(0))


def test_a_loaded_model_gives_the_same_scenarios_to_the_last_bit(
    task: Task, fitted: PowerForge, loaded: PowerForge
) -> None:
    assert same_weights(fitted.network, loaded.network)
    for window in range(2):
        context = task.test.context(window)
        one, other = fitted.predict(context), loaded.predict(context)
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.weights, other.weights)


def test_loading_and_forecasting_leave_the_caller_s_random_state(
    task: Task, fitted: PowerForge
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    PowerForge.load(fitted.run).predict(task.test.context(0))
    assert torch.equal(torch.rand(4), expected)


def test_a_forecast_does_not_depend_on_what_was_asked_before(
    task: Task, loaded: PowerForge
) -> None:
    first = loaded.predict(task.test.context(0))
    loaded.predict(task.test.context(1))
    loaded.network.train()  # as after a step of training; dropout must not reach a forecast
    assert torch.equal(loaded.predict(task.test.context(0)).values, first.values)


def test_noise_at_prediction_is_that_of_the_window(task: Task) -> None:
    noisy, other = (PowerForge(tiny(noise_at_prediction=True), seed=seed) for seed in (42, 1))
    plain = PowerForge(tiny())
    plain.configure(task.training)
    network = plain._initial_network()
    for model in (noisy, other, plain):
        model.configure(task.training)
        model.network = network
    context, next_context = (task.test.context(window) for window in (0, 1))
    first, second = (noisy.predict(one).values for one in (context, next_context))
    torch.manual_seed(5)
    assert torch.equal(noisy.predict(context).values, first)
    assert not torch.equal(other.predict(context).values, first)
    noises = [first - plain.predict(context).values, second - plain.predict(next_context).values]
    assert all(noise.abs().max() > 1e-4 for noise in noises)
    assert not torch.allclose(*noises, atol=1e-5)


def test_fit_leaves_a_loaded_model_as_it_is(task: Task, loaded: PowerForge) -> None:
    before = {name: tensor.clone() for name, tensor in loaded.network.state_dict().items()}
    seen: list[Progress] = []
    loaded.on_progress = seen.append
    loaded.fit(task.training)
    assert seen == []
    assert all(torch.equal(before[k], v) for k, v in loaded.network.state_dict().items())


def changed_layout(context: Context, **changes: Any) -> Context:
    return replace(context, layout=replace(context.layout, **changes))


def test_another_grid_or_scale_is_refused_by_name(task: Task, fitted: PowerForge) -> None:
    context, run = task.test.context(0), re.escape(str(fitted.run))
    own = task.layout
    cases = {
        "grid ieee14 and cannot forecast grid ieee15": {"grid": "ieee15"},
        f"p_scale_mw {own.p_scale_mw} and cannot forecast p_scale_mw 7.0": {"p_scale_mw": 7.0},
        f"q_scale_mvar {own.q_scale_mvar} and cannot forecast q_scale_mvar 7.0": {
            "q_scale_mvar": 7.0
        },
        "buses [0-9a-f]{16} and cannot forecast buses": {"bus_id": own.bus_id[::-1].copy()},
    }
    for words, changes in cases.items():
        with pytest.raises(CheckpointError, match=f"{run} was trained for {words}.*; a model"):
            fitted.predict(changed_layout(context, **changes))


def test_fewer_buses_are_refused(task: Task, fitted: PowerForge) -> None:
    own, context = task.layout, task.test.context(0)
    layout = replace(
        own, bus_id=own.bus_id[:13], bus_type=own.bus_type[:13], nominal_kv=own.nominal_kv[:13]
    )
    with pytest.raises(
        CheckpointError, match=r"trained for n_buses 14.* cannot forecast n_buses 13"
    ):
        fitted.predict(Context(context.past[..., :52], context.time, layout))


def test_other_windows_are_refused(sixty_days: Store, fitted: PowerForge) -> None:
    longer = Task(sixty_days, context=288, horizon=24).test.context(0)
    with pytest.raises(CheckpointError, match="context 192 and cannot forecast context 288"):
        fitted.predict(longer)
    shorter = Task(sixty_days, context=192, horizon=12).test.context(0)
    with pytest.raises(CheckpointError, match="horizon 24 and cannot forecast horizon 12"):
        fitted.predict(shorter)


def test_a_model_without_a_folder_is_called_by_its_name_when_it_refuses() -> None:
    model = ToyModel()
    model.fit(wavy_training())
    other = changed_layout(wavy_training().validation.context(0), grid="three")
    with pytest.raises(CheckpointError, match="toy was trained for grid two and cannot forecast"):
        model.predict(other)


def test_a_model_describes_itself(fitted: PowerForge, loaded: PowerForge) -> None:
    found = describe(loaded)
    assert found == describe(fitted)
    assert (found.model, found.variant, found.seed) == ("powerforge", "short-custom", 42)
    assert found.config["hidden"] == 8
    assert found.config["kernels"] == [3, 5]
    assert found.config["training"]["epochs"] == 2
    assert found.parameters == sum(p.numel() for p in fitted.network.parameters())
    assert loaded.n_steps == fitted.n_steps == 6


def test_the_paper_s_own_model_has_no_variant_and_the_grid_s_batch(task: Task) -> None:
    model = PowerForge()
    assert describe(model).parameters is None
    model.configure(task.training)
    assert model.variant is None
    assert describe(model).variant is None
    assert describe(model).config["training"]["batch_size"] == 32
    assert model.n_steps is None


def test_a_loaded_model_has_the_config_that_it_was_trained_with(
    fitted: PowerForge, loaded: PowerForge
) -> None:
    assert loaded.config == fitted.config == tiny()
    assert isinstance(loaded.config, PowerForgeConfig)
    assert loaded.outcome == fitted.outcome


def test_the_outcome_is_what_the_folder_says(fitted: PowerForge) -> None:
    folder = RunFolder.open(fitted.run)
    curve, outcome = folder.curve(), folder.header.outcome
    assert outcome == fitted.outcome
    found = [line["validation_crps"] for line in curve]
    assert outcome["best_epoch"] == 1 + found.index(min(found))
    assert outcome["validation_crps"] == min(found)
    assert outcome["train_s"] == curve[-1]["seconds"]
    assert outcome["hardware"] == hardware(CPU)
    assert outcome["steps"] == curve[-1]["step"] == 6


def test_a_row_tells_the_cost_of_the_training_and_not_of_the_loading(
    task: Task, loaded: PowerForge
) -> None:
    own = {**loaded.outcome, "train_s": 1234.5, "hardware": "a large GPU", "peak_memory_gib": 99.0}
    loaded.outcome = own
    row = score(forecast(loaded, task, device="cpu"), task, device="cpu").row
    assert row.cost["train_s"] == 1234.5
    assert row.cost["steps"] == 6
    assert row.cost["hardware"] == f"a large GPU; prediction: {hardware(CPU)}"
    assert row.cost["peak_memory_gib"] == 99.0
    assert row.cost["predict_s"] > 0
    assert (row.model, row.variant, row.seed) == ("powerforge", "short-custom", 42)
    assert row.parameters == loaded.n_parameters
    assert row.scenarios == 4


def test_a_row_of_a_training_in_several_goes_claims_no_peak(task: Task, loaded: PowerForge) -> None:
    """What prediction took is known, but it is not the peak."""
    loaded.outcome = {**loaded.outcome, "peak_memory_gib": None}
    row = score(forecast(loaded, task, device="cpu"), task, device="cpu").row
    assert row.cost["peak_memory_gib"] is None


def test_a_model_is_trained_by_forecast_itself(task: Task, fitted: PowerForge) -> None:
    model = PowerForge(tiny(), device="cpu")
    made = forecast(model, task, device="cpu")
    assert same_weights(model.network, fitted.network)
    assert made.cost["train_s"] == model.outcome["train_s"]
    assert made.cost["steps"] == 6
    assert made.cost["hardware"] == hardware(CPU)
    assert made.description == describe(fitted)


class Stopped(Exception):
    """What ends a training in these tests."""


def stop(now: Progress) -> None:
    if now.step == 5:
        raise Stopped


def test_an_unfinished_training_is_never_taken_for_a_finished_one(
    task: Task, fitted: PowerForge, tmp_path: Path
) -> None:
    """Its row must not stand where the finished one's belongs, nor say that training was free."""
    with pytest.raises(Stopped):
        PowerForge(tiny(), run=tmp_path / "run", on_progress=stop).fit(task.training)
    model = PowerForge.load(tmp_path / "run")
    assert describe(model).variant != describe(fitted).variant
    cost = forecast(model, task, device="cpu").cost
    assert cost["train_s"] is None or cost["train_s"] > 0.01


@pytest.mark.parametrize("block", [28, 14, 7])
def test_what_does_not_fit_is_refused_and_the_advice_helps(
    task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int
) -> None:
    config = tiny(epochs=1, training={"batches_per_epoch": 1})
    there = PowerForge(config).memory_gib(task.training, block)
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: there)
    start = "training powerforge on 56 channels with a batch of 8 takes about .* GiB, and cpu has"
    advice = f"give --channel-block {block}, which takes longer and computes the same"
    with pytest.raises(TrainingError, match=f"{start} .* GiB free; {advice}"):
        PowerForge(config, run=tmp_path / "run").fit(task.training)
    assert not (tmp_path / "run").exists()
    PowerForge(config, channel_block=block).fit(task.training)


def test_what_fits_in_no_way_asks_for_a_smaller_batch(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: 1e-6)
    with pytest.raises(TrainingError, match="give a smaller --batch-size, or use another machine"):
        PowerForge(tiny()).fit(task.training)


def test_unknown_memory_is_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: None)
    monkeypatch.setattr(ToyModel, "memory_gib", lambda self, train, channel_block=None: 1e9)
    model = ToyModel()
    model.fit(wavy_training())
    assert model.network is not None


def test_blocks_of_channels_change_no_result(task: Task) -> None:
    """Of a few steps: later, what was rounding may fall on the two sides of a kink of the loss."""
    models = [
        PowerForge(tiny(1, training={"batches_per_epoch": 2}), channel_block=block)
        for block in (None, 8, 20, 1000)
    ]
    for model in models:
        model.fit(task.training)
    whole, context = models[0], task.test.context(0)
    for model in models[1:]:
        close = {"rtol": 0, "atol": 1e-5}
        for name, wanted in whole.network.state_dict().items():
            torch.testing.assert_close(model.network.state_dict()[name], wanted, **close)
        found, wanted = model.predict(context).values, whole.predict(context).values
        torch.testing.assert_close(found, wanted, **close)


def test_a_training_goes_on_in_blocks(task: Task, fitted: PowerForge, tmp_path: Path) -> None:
    """They are no part of what a training is: one that ran out of memory is not lost."""
    with pytest.raises(Stopped):
        PowerForge(tiny(), run=tmp_path / "run", on_progress=stop).fit(task.training)
    seen: list[int] = []
    model = PowerForge(
        tiny(), run=tmp_path / "run", channel_block=8, on_progress=lambda now: seen.append(now.step)
    )
    model.fit(task.training)
    assert seen == [4, 5, 6]
    wanted = fitted.outcome["validation_crps"]
    assert model.outcome["validation_crps"] == pytest.approx(wanted, rel=1e-2)


def test_another_device_is_refused(task: Task) -> None:
    with pytest.raises(UnknownName, match="no device 'gpu'; did you mean"):
        PowerForge(tiny(), device="gpu").fit(task.training)


def test_only_what_is_given_changes_the_training() -> None:
    config = with_training(tiny(), {"epochs": 9, "batch_size": None})
    assert config == replace(tiny(), training=replace(tiny().training, epochs=9))
    assert asdict(with_training(tiny(), {})) == asdict(tiny())
    assert isinstance(config.training, TrainingConfig)
