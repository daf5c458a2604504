"""Trained forecasters: their descriptions, their costs, and the domains they raise for."""

import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.cost import hardware
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ForecastError, TrainingError, UnknownName
from powerphase.evaluation import forecast, score
from powerphase.models.framework import (
    Forecaster,
    Progress,
    RunFolder,
    TrainingConfig,
    describe,
    with_training,
)
from powerphase.models.framework import neural as neural_module
from powerphase.models.powerforge import PowerForge, PowerForgeConfig
from powerphase.scenarios import Context
from powerphase.task import Task
from tests.models.toys import (
    CPU,
    ToyModel,
    same_weights,
    tiny,
    wavy_training,
)
from tests.models.typed import network_of, outcome_of, reload, run_of, scenarios_of


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
    return reload(fitted)


def test_a_trained_model_is_a_forecaster() -> None:
    assert isinstance(PowerForge(), Forecaster)


def test_predict_before_fit_raises(task: Task) -> None:
    with pytest.raises(ForecastError, match="powerforge"):
        PowerForge().predict(task.test.context(0))


def test_a_loaded_model_returns_bit_identical_scenarios(
    task: Task, fitted: PowerForge, loaded: PowerForge
) -> None:
    assert same_weights(fitted.network, loaded.network)
    for window in range(2):
        context = task.test.context(window)
        first, second = (scenarios_of(model, context) for model in (fitted, loaded))
        assert torch.equal(first.values, second.values)
        assert torch.equal(first.weights, second.weights)


def test_loading_and_forecasting_keep_the_caller_s_random_state(
    task: Task, fitted: PowerForge
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    reload(fitted).predict(task.test.context(0))
    assert torch.equal(torch.rand(4), expected)


def test_a_forecast_does_not_depend_on_earlier_forecasts(task: Task, loaded: PowerForge) -> None:
    first = scenarios_of(loaded, task.test.context(0))
    loaded.predict(task.test.context(1))
    network_of(loaded).train()  # as after a training step; dropout must not reach a forecast
    assert torch.equal(scenarios_of(loaded, task.test.context(0)).values, first.values)


def test_noise_at_prediction_depends_on_window_and_seed(task: Task) -> None:
    noisy, other = (PowerForge(tiny(noise_at_prediction=True), seed=seed) for seed in (42, 1))
    plain = PowerForge(tiny())
    plain.configure(task.training)
    network = plain._initial_network()
    for model in (noisy, other, plain):
        model.configure(task.training)
        model.network = model._initial_network()
        model.network.load_state_dict(network.state_dict())
    context, next_context = (task.test.context(window) for window in (0, 1))
    first, second = (scenarios_of(noisy, window).values for window in (context, next_context))
    torch.manual_seed(5)
    assert torch.equal(scenarios_of(noisy, context).values, first)
    assert not torch.equal(scenarios_of(other, context).values, first)
    noise = first - scenarios_of(plain, context).values
    next_noise = second - scenarios_of(plain, next_context).values
    assert noise.abs().max() > 1e-4
    assert next_noise.abs().max() > 1e-4
    assert not torch.allclose(noise, next_noise, atol=1e-5)


def test_fit_does_not_change_a_loaded_model(task: Task, loaded: PowerForge) -> None:
    before = {name: tensor.clone() for name, tensor in network_of(loaded).state_dict().items()}
    seen: list[Progress] = []
    loaded.on_progress = seen.append
    loaded.fit(task.training)
    assert seen == []
    assert all(torch.equal(before[k], v) for k, v in network_of(loaded).state_dict().items())


def changed_layout(context: Context, **changes: Any) -> Context:
    return replace(context, layout=replace(context.layout, **changes))


def test_another_grid_or_scale_raises_and_is_named(task: Task, fitted: PowerForge) -> None:
    context, run = task.test.context(0), re.escape(str(fitted.run))
    layout = task.layout
    cases: dict[str, dict[str, Any]] = {
        "grid ieee14 and cannot forecast grid ieee15": {"grid": "ieee15"},
        f"p_scale_mw {layout.p_scale_mw} and cannot forecast p_scale_mw 7.0": {"p_scale_mw": 7.0},
        f"q_scale_mvar {layout.q_scale_mvar} and cannot forecast q_scale_mvar 7.0": {
            "q_scale_mvar": 7.0
        },
        "buses [0-9a-f]{16} and cannot forecast buses": {"bus_id": layout.bus_id[::-1].copy()},
    }
    for words, changes in cases.items():
        with pytest.raises(CheckpointError, match=f"{run} was trained for {words}"):
            fitted.predict(changed_layout(context, **changes))


def test_fewer_buses_raise(task: Task, fitted: PowerForge) -> None:
    whole, context = task.layout, task.test.context(0)
    layout = replace(
        whole,
        bus_id=whole.bus_id[:13],
        bus_type=whole.bus_type[:13],
        nominal_kv=whole.nominal_kv[:13],
    )
    with pytest.raises(
        CheckpointError, match=r"trained for n_buses 14.* cannot forecast n_buses 13"
    ):
        fitted.predict(Context(context.past[..., :52], context.time, layout))


def test_other_windows_raise(sixty_days: Store, fitted: PowerForge) -> None:
    longer = Task(sixty_days, context=288, horizon=24).test.context(0)
    with pytest.raises(CheckpointError, match="context 192 and cannot forecast context 288"):
        fitted.predict(longer)
    shorter = Task(sixty_days, context=192, horizon=12).test.context(0)
    with pytest.raises(CheckpointError, match="horizon 24 and cannot forecast horizon 12"):
        fitted.predict(shorter)


def test_errors_of_a_model_without_a_folder_have_its_name() -> None:
    model = ToyModel()
    model.fit(wavy_training())
    other = changed_layout(wavy_training().validation.context(0), grid="three")
    with pytest.raises(CheckpointError, match="toy was trained for grid two and cannot forecast"):
        model.predict(other)


def test_a_model_describes_itself(fitted: PowerForge, loaded: PowerForge) -> None:
    result = describe(loaded)
    assert result == describe(fitted)
    assert (result.model, result.variant, result.seed) == ("powerforge", "short-custom", 42)
    assert result.config["hidden"] == 8
    assert result.config["kernels"] == [3, 5]
    assert result.config["training"]["epochs"] == 2
    assert result.parameters == sum(p.numel() for p in network_of(fitted).parameters())
    assert loaded.n_steps == fitted.n_steps == 6


def test_the_paper_s_model_has_no_variant_and_the_grid_s_batch_size(task: Task) -> None:
    model = PowerForge()
    assert describe(model).parameters is None
    model.configure(task.training)
    assert model.variant is None
    assert describe(model).variant is None
    assert describe(model).config["training"]["batch_size"] == 32
    assert model.n_steps is None


def test_a_loaded_model_has_the_config_of_its_training(
    fitted: PowerForge, loaded: PowerForge
) -> None:
    assert loaded.config == fitted.config == tiny()
    assert isinstance(loaded.config, PowerForgeConfig)
    assert loaded.outcome == fitted.outcome


def test_the_outcome_agrees_with_the_folder(fitted: PowerForge) -> None:
    folder = RunFolder.open(run_of(fitted))
    curve, outcome = folder.curve(), outcome_of(fitted)
    assert outcome == folder.header.outcome
    result = [line["validation_loss"] for line in curve]
    assert outcome["best_epoch"] == 1 + result.index(min(result))
    assert outcome["validation_loss"] == min(result)
    assert outcome["train_s"] == curve[-1]["seconds"]
    assert outcome["hardware"] == hardware(CPU)
    assert outcome["steps"] == curve[-1]["step"] == 6


def test_a_row_states_how_the_network_was_trained(
    task: Task, fitted: PowerForge, loaded: PowerForge, tmp_path: Path
) -> None:
    training = score(forecast(loaded, task, device="cpu"), task, device="cpu").row.training
    assert training is not None
    assert training == fitted.training
    assert training["windows_seen"] == 6 * fitted.config.training.batch_size
    assert training["best_epoch"] == outcome_of(fitted)["best_epoch"]
    lines = RunFolder.open(run_of(fitted)).curve()
    assert training["curve"]["step"] == [line["step"] for line in lines]
    for column, name in (("loss", "loss"), ("validation", "validation_loss")):
        assert training["curve"][column] == pytest.approx([line[name] for line in lines], rel=1e-4)
    written = forecast(loaded, task, out=tmp_path / "forecast", device="cpu")
    assert score(written, task, device="cpu").row.training == training


def test_a_row_has_the_cost_of_the_training_not_of_loading(task: Task, loaded: PowerForge) -> None:
    cost = {"train_s": 1234.5, "hardware": "a large GPU", "peak_memory_gib": 99.0}
    loaded.outcome = {**outcome_of(loaded), **cost}
    row = score(forecast(loaded, task, device="cpu"), task, device="cpu").row
    assert row.cost["train_s"] == 1234.5
    assert row.cost["steps"] == 6
    assert row.cost["hardware"] == f"a large GPU; prediction: {hardware(CPU)}"
    assert row.cost["peak_memory_gib"] == 99.0
    predict_s = row.cost["predict_s"]
    assert isinstance(predict_s, float)
    assert predict_s > 0
    assert (row.model, row.variant, row.seed) == ("powerforge", "short-custom", 42)
    assert row.parameters == loaded.n_parameters
    assert row.scenarios == 4


def test_a_row_of_an_interrupted_training_has_no_peak_memory(
    task: Task, loaded: PowerForge
) -> None:
    """The memory of the prediction is known, but it is not the peak."""
    loaded.outcome = {**outcome_of(loaded), "peak_memory_gib": None}
    row = score(forecast(loaded, task, device="cpu"), task, device="cpu").row
    assert row.cost["peak_memory_gib"] is None


def test_forecast_trains_a_model(task: Task, fitted: PowerForge) -> None:
    model = PowerForge(tiny(), device="cpu")
    prediction = forecast(model, task, device="cpu")
    assert same_weights(model.network, fitted.network)
    assert prediction.cost["train_s"] == outcome_of(model)["train_s"]
    assert prediction.cost["steps"] == 6
    assert prediction.cost["hardware"] == hardware(CPU)
    assert prediction.description == describe(fitted)


class Stopped(Exception):
    """Stops a training in these tests."""


def stop(now: Progress) -> None:
    if now.step == 5:
        raise Stopped


def test_an_unfinished_training_cannot_pass_for_a_finished_one(
    task: Task, fitted: PowerForge, tmp_path: Path
) -> None:
    """Its row must not replace that of the finished training, nor have no cost."""
    with pytest.raises(Stopped):
        PowerForge(tiny(), run=tmp_path / "run", on_progress=stop).fit(task.training)
    model = PowerForge.load(tmp_path / "run")
    assert describe(model).variant != describe(fitted).variant
    cost = forecast(model, task, device="cpu").cost
    assert cost["train_s"] is None or cost["train_s"] > 0.01


@pytest.mark.parametrize("block", [28, 14, 7])
def test_a_training_that_does_not_fit_raises_with_advice_that_works(
    task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int
) -> None:
    config = tiny(epochs=1, training={"batches_per_epoch": 1})
    free = PowerForge(config).memory_gib(task.training, block)
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: free)
    with pytest.raises(TrainingError, match=f"--channel-block {block}\\b"):
        PowerForge(config, run=tmp_path / "run").fit(task.training)
    assert not (tmp_path / "run").exists()
    PowerForge(config, channel_block=block).fit(task.training)


def test_a_training_that_never_fits_suggests_a_smaller_batch(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: 1e-6)
    with pytest.raises(TrainingError, match="--batch-size"):
        PowerForge(tiny()).fit(task.training)


def test_unknown_memory_does_not_stop_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: None)
    monkeypatch.setattr(ToyModel, "memory_gib", lambda self, train, channel_block=None: 1e9)
    model = ToyModel()
    model.fit(wavy_training())
    assert model.network is not None


def test_channel_blocks_do_not_change_the_result(task: Task) -> None:
    """After a few steps: later, rounding may fall on the two sides of a kink of the loss."""
    models = [
        PowerForge(tiny(1, training={"batches_per_epoch": 2}), channel_block=block)
        for block in (None, 8, 20, 1000)
    ]
    for model in models:
        model.fit(task.training)
    whole, context = models[0], task.test.context(0)
    for model in models[1:]:
        for name, expected in network_of(whole).state_dict().items():
            weight = network_of(model).state_dict()[name]
            torch.testing.assert_close(weight, expected, rtol=0, atol=1e-5)
        result, expected = (scenarios_of(m, context).values for m in (model, whole))
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_a_training_can_continue_in_blocks(task: Task, fitted: PowerForge, tmp_path: Path) -> None:
    """Blocks are not part of a training's identity: one that ran out of memory is not lost."""
    with pytest.raises(Stopped):
        PowerForge(tiny(), run=tmp_path / "run", on_progress=stop).fit(task.training)
    seen: list[int] = []
    model = PowerForge(
        tiny(), run=tmp_path / "run", channel_block=8, on_progress=lambda now: seen.append(now.step)
    )
    model.fit(task.training)
    assert seen == [4, 5, 6]
    expected = outcome_of(fitted)["validation_loss"]
    assert outcome_of(model)["validation_loss"] == pytest.approx(expected, rel=1e-2)


def test_an_unknown_device_of_a_model_raises(task: Task) -> None:
    with pytest.raises(UnknownName, match="'gpu'"):
        PowerForge(tiny(), device="gpu").fit(task.training)


@dataclass(frozen=True)
class Sizeless:
    """The config of a user who knows nothing of batch sizes."""

    training: TrainingConfig = field(default_factory=TrainingConfig)

    def for_grid(self, grid: str) -> "Sizeless":
        return self


def test_a_config_without_a_batch_size_raises_and_says_what_to_do(tmp_path: Path) -> None:
    model = ToyModel(Sizeless(), device="cpu", run=tmp_path / "run")
    with pytest.raises(TrainingError, match=r"toy: Sizeless .*two.*NetworkConfig.*batch_size"):
        model.fit(wavy_training())
    assert not model.is_fitted
    assert not (tmp_path / "run").exists()


def test_with_training_changes_only_what_is_set() -> None:
    config = with_training(tiny(), {"epochs": 9, "batch_size": None})
    assert config == replace(tiny(), training=replace(tiny().training, epochs=9))
    assert asdict(with_training(tiny(), {})) == asdict(tiny())
    assert isinstance(config.training, TrainingConfig)
