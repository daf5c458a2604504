"""What a string means: models by name, by class and by training, and what is rejected."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase import Oracle, Scenarios, Store, Task, Training, forecast, generate
from powerphase.errors import CheckpointError, ForecastError, TrainingError, UnknownName
from powerphase.evaluation import (
    find_forecast,
    load_training,
    make_forecaster,
    request_training,
    resolve_model,
)
from powerphase.models import Climatology, ETSConfig, FactorForge, LastWeek, PowerForge
from powerphase.models.framework import describe
from powerphase.registry import MODELS
from tests.dataset.exact import exact_signals
from tests.models.toys import same_weights, tiny

WINDOWS: dict[str, Any] = {"context": 192, "horizon": 24}


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, **WINDOWS, windows=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs") / "powerforge"
    return folder


@pytest.fixture(scope="module")
def fitted(task: Task, run: Path) -> PowerForge:
    model = PowerForge(tiny(epochs=1), seed=7, run=run)
    model.fit(task.training)
    return model


def make(text: str, task: Task, seed: int = 7, device: str = "auto") -> Any:
    return make_forecaster(text, task, seed, device)


def test_models_are_found_by_name(task: Task) -> None:
    assert isinstance(make("last-week", task), LastWeek)
    assert make("factorforge", task).seed == 7
    oracle = make("oracle", task)
    assert isinstance(oracle, Oracle)
    assert oracle.seed == 7


@pytest.mark.parametrize(("text", "near"), [("orakle", "oracle"), ("last-weak", "last-week")])
def test_an_unknown_name_raises_with_its_near_miss(task: Task, text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"{text}.*{near}"):
        make(text, task)


JOINT = {
    **dict.fromkeys(("last-week", "last-7-days", "oracle", "deepar", "tempflow"), True),
    **dict.fromkeys(("transformer-tempflow", "timegrad", "timemcl", "factorforge+draws"), True),
    **dict.fromkeys(("climatology", "ets", "powerforge", "factorforge", "timeprism"), False),
    **dict.fromkeys(("flat-week", "tactis-2", "conformal-climatology"), False),
    **dict.fromkeys(("analogs", "boosting", "dynamic-factors"), True),
    "tactis-2+copula": True,
}
"""Whether a model's scenarios are futures of the whole grid, rather than of each channel."""


@pytest.mark.parametrize(("text", "joint"), JOINT.items())
def test_a_description_says_whether_scenarios_are_joint(text: str, joint: bool) -> None:
    spec = resolve_model(text)
    assert spec.description("ieee14", 7).joint is joint
    if spec.is_saved:
        assert describe(spec.model_class(spec.config)).joint is joint


def test_it_is_known_of_every_model() -> None:
    assert {text.partition("+")[0] for text in JOINT} == set(MODELS)


def test_a_class_of_the_user_may_say_what_its_scenarios_are() -> None:
    class Plain:
        pass

    assert (describe(Plain()).joint, describe(Plain()).version) == (None, 1)
    stated = type("Stated", (), {"joint_scenarios": False, "results_version": 4})
    assert (describe(stated()).joint, describe(stated()).version) == (False, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"joint_scenarios": 1}, {"results_version": 0}, {"results_version": "2"}],
)
def test_what_a_row_cannot_hold_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ForecastError, match=next(iter(wrong))):
        describe(type("Wrong", (), wrong)())


def test_a_folder_without_a_training_is_not_a_model(task: Task, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=re.escape(str(tmp_path))):
        make(str(tmp_path), task)


def test_a_training_is_found_by_its_folder_and_keeps_its_seed(
    task: Task, fitted: PowerForge, run: Path
) -> None:
    loaded = make(str(run), task, seed=99)
    assert isinstance(loaded, PowerForge)
    assert loaded.seed == 7
    assert loaded.network is not None
    assert fitted.network is not None
    assert same_weights(loaded.network, fitted.network)


def test_a_training_forecasts_other_windows_of_the_same_data(
    task: Task, fitted: PowerForge, run: Path
) -> None:
    loaded = load_training(run, Task(task.store, **WINDOWS, windows="all"))
    context = task.test.context(0)
    scenarios, expected = loaded.predict(context), fitted.predict(context)
    assert isinstance(scenarios, Scenarios)
    assert isinstance(expected, Scenarios)
    assert torch.equal(scenarios.values, expected.values)


def test_an_untrained_network_raises_with_the_command_to_train_it(task: Task) -> None:
    for name in ("powerforge", "deepar+reference"):
        command = f"powerphase train {name} --data {task.store.path} --out RUN"
        with pytest.raises(TrainingError, match=re.escape(command)):
            make(name, task)


@pytest.mark.usefixtures("fitted")
def test_a_training_on_another_record_is_rejected(
    run: Path, sixty_days: Store, tmp_path: Path
) -> None:
    other = generate("ieee14", tmp_path / "s", signals=exact_signals(60), seed=3)
    fingerprints = [store.manifest.fingerprint for store in (sixty_days, other)]
    with pytest.raises(CheckpointError, match=".*".join(fingerprints)):
        make(str(run), Task(other, **WINDOWS))


@pytest.mark.usefixtures("fitted")
def test_a_training_on_another_edition_is_rejected(run: Path, tmp_path: Path) -> None:
    signals = replace(exact_signals(60), edition="inexact")
    store = generate("ieee14", tmp_path / "s", signals=signals)
    with pytest.raises(CheckpointError, match=r"'exact'.*'inexact'"):
        load_training(run, Task(store, **WINDOWS))


@pytest.mark.usefixtures("fitted")
@pytest.mark.parametrize("name", ["context", "horizon"])
def test_a_training_for_other_windows_is_rejected(run: Path, sixty_days: Store, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name} {WINDOWS[name]}.* 96"):
        load_training(run, Task(sixty_days, **{**WINDOWS, name: 96}))


def test_a_training_that_does_not_name_its_data_is_rejected(task: Task, tmp_path: Path) -> None:
    unnamed = Training(task.training.record, task.training.validation)
    config = tiny(epochs=1, training={"batches_per_epoch": 1})
    PowerForge(config, run=tmp_path / "run").fit(unnamed)
    with pytest.raises(CheckpointError, match="grid None"):
        load_training(tmp_path / "run", task)


def test_a_loaded_model_can_continue_a_forecast(
    task: Task, fitted: PowerForge, run: Path, tmp_path: Path
) -> None:
    written = forecast(fitted, task, out=tmp_path / "f", device="cpu")
    again = forecast(load_training(run, task), task, out=tmp_path / "f", device="cpu")
    assert written.description == again.description
    for (_, _, first), (_, _, second) in zip(written.pieces(()), again.pieces(()), strict=True):
        assert torch.equal(first.values, second.values)


def test_variants_may_follow_a_name(task: Task) -> None:
    assert make("ets", task).config == ETSConfig()
    ets = make("ets+season-24+stale", task, device="cpu")
    assert (ets.config.season, ets.config.origin) == (24, "training-end")
    assert (ets.seed, ets.device) == (7, "cpu")
    assert make("factorforge+draws", task).config.coupling == "draws"


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("ets+stail", "stale"),
        ("last-week+draws", "last-week"),
        ("oracle+short", "oracle"),
        ("deepar+referense", "reference"),
    ],
)
def test_an_unknown_variant_raises(task: Task, text: str, fact: str) -> None:
    with pytest.raises(UnknownName, match=fact):
        make(text, task)


def test_only_models_that_are_saved_can_be_trained() -> None:
    assert request_training("powerforge").spec.model_class is PowerForge
    assert request_training("factorforge").spec.model_class is FactorForge
    with pytest.raises(TrainingError, match=r"last-week.*timeprism.* ets"):
        request_training("last-week")
    with pytest.raises(UnknownName, match="powerforge"):
        request_training("powerfrog")
    with pytest.raises(TrainingError, match="powerphase score mynetwork:Linear"):
        request_training("mynetwork:Linear")


def test_a_training_request_takes_config_variants_and_options(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("hidden = 8\n")
    file = tmp_path / "c.toml"
    network = request_training("powerforge+short", file, batch_size=3, backend="torch")
    assert network.is_network
    assert network.options == {"channel_block": None, "backend": "torch"}
    config = network.spec.config
    assert (config.hidden, config.training.epochs, config.training.batch_size) == (8, 20, 3)
    single_pass = request_training("ets+stale", device="cuda")
    assert not single_pass.is_network
    assert single_pass.spec.config.origin == "training-end"
    with pytest.raises(TrainingError, match="--device: factorforge"):
        request_training("factorforge", device="cuda")


def test_the_spec_of_a_training_is_its_class_and_folder(fitted: PowerForge, run: Path) -> None:
    spec = resolve_model(str(run))
    assert (spec.model_class, spec.run) == (type(fitted), run)
    assert not spec.is_user_class


def test_a_forecast_is_found_in_its_folder_or_made(task: Task, tmp_path: Path) -> None:
    written = forecast(Climatology(), task, out=tmp_path / "f", device="cpu")
    for text in (str(tmp_path / "f"), "climatology"):
        source = find_forecast(text, task, 7, "cpu")
        assert (source.facts, source.description) == (written.facts, written.description)
    with pytest.raises(ForecastError, match="nowhere"):
        find_forecast(str(tmp_path / "nowhere"), task, 7)
