"""Models for a task: found by name or by training, and refused on data that are not theirs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerphase.dataset import Store, generate
from powerphase.errors import CheckpointError, ForecastError, TrainingError, UnknownName
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import (
    forecast_for,
    load_run,
    model_for,
    trainable,
    training_request,
)
from powerphase.evaluation.oracle import Oracle
from powerphase.models.ets.config import ETSConfig
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.naive import Climatology, LastWeek
from powerphase.models.powerforge.model import PowerForge
from powerphase.scenarios import Training
from powerphase.task.windows import Task
from tests.dataset.exact import exact_signals
from tests.models.toys import same_weights, tiny

WINDOWS = {"context": 192, "horizon": 24}


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, **WINDOWS, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> PowerForge:
    run = tmp_path_factory.mktemp("runs") / "powerforge"
    model = PowerForge(tiny(epochs=1), seed=7, run=run)
    model.fit(task.training)
    return model


def test_models_are_found_by_name(task: Task) -> None:
    assert isinstance(model_for("last-week", task, 7), LastWeek)
    assert model_for("factorforge", task, 7).seed == 7
    oracle = model_for("oracle", task, 7)
    assert isinstance(oracle, Oracle)
    assert oracle.seed == 7


@pytest.mark.parametrize(("given", "meant"), [("orakle", "oracle"), ("last-weak", "last-week")])
def test_a_near_miss_is_told(task: Task, given: str, meant: str) -> None:
    with pytest.raises(
        UnknownName, match=f"no model or training '{given}'; did you mean .*{meant}"
    ):
        model_for(given, task, 7)


def test_a_folder_without_a_training_is_no_model(task: Task, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=f"no model or training '{re.escape(str(tmp_path))}'"):
        model_for(str(tmp_path), task, 7)


def test_a_training_is_found_by_its_folder_and_keeps_its_own_seed(
    task: Task, fitted: PowerForge
) -> None:
    found = model_for(str(fitted.run), task, seed=99)
    assert isinstance(found, PowerForge)
    assert found.seed == 7
    assert same_weights(found.network, fitted.network)


def test_other_test_windows_of_the_same_data_are_forecast(task: Task, fitted: PowerForge) -> None:
    more = load_run(fitted.run, Task(task.store, **WINDOWS, windows="all"))
    context = task.test.context(0)
    assert torch.equal(more.predict(context).values, fitted.predict(context).values)


def test_the_name_of_a_trained_model_gets_the_command_to_run(task: Task) -> None:
    command = f"powerphase train powerforge --data {task.store.path} --out RUN"
    with pytest.raises(TrainingError, match=re.escape(f"`{command}`, then give RUN instead")):
        model_for("powerforge", task, 42)


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    out = tmp_path_factory.mktemp("other") / "seed"
    return generate("ieee14", out, signals=exact_signals(60), seed=3)


def test_a_training_on_another_record_is_refused_by_its_fingerprint(
    fitted: PowerForge, sixty_days: Store, other_seed: Store
) -> None:
    own, other = (store.manifest.fingerprint for store in (sixty_days, other_seed))
    refusal = (
        f"powerforge: was trained on fingerprint '{own}', and the data set has '{other}'; give"
    )
    with pytest.raises(CheckpointError, match=refusal):
        model_for(str(fitted.run), Task(other_seed, **WINDOWS), 42)


def test_a_training_on_another_edition_is_refused(fitted: PowerForge, tmp_path: Path) -> None:
    signals = replace(exact_signals(60), edition="inexact")
    store = generate("ieee14", tmp_path / "s", signals=signals)
    with pytest.raises(CheckpointError, match=r"trained on edition 'exact', .* has 'inexact'"):
        load_run(fitted.run, Task(store, **WINDOWS))


@pytest.mark.parametrize("name", ["context", "horizon"])
def test_a_training_for_other_windows_is_refused(
    fitted: PowerForge, sixty_days: Store, name: str
) -> None:
    asked = {**WINDOWS, name: 96}
    with pytest.raises(CheckpointError, match=f"was trained on {name} {WINDOWS[name]}, .* has 96"):
        load_run(fitted.run, Task(sixty_days, **asked))


def test_a_training_that_does_not_say_on_what_is_refused(task: Task, tmp_path: Path) -> None:
    bare = Training(task.training.record, task.training.validation)
    config = tiny(epochs=1, training={"batches_per_epoch": 1})
    PowerForge(config, run=tmp_path / "run").fit(bare)
    with pytest.raises(CheckpointError, match="was trained on grid None, and the data set has"):
        load_run(tmp_path / "run", task)


def test_a_forecast_can_be_continued_by_the_loaded_model(
    task: Task, fitted: PowerForge, tmp_path: Path
) -> None:
    written = forecast(fitted, task, out=tmp_path / "f", device="cpu")
    again = forecast(load_run(fitted.run, task), task, out=tmp_path / "f", device="cpu")
    assert written.description == again.description
    for (_, _, one), (_, _, other) in zip(written.pieces(()), again.pieces(()), strict=True):
        assert torch.equal(one.values, other.values)


def test_a_name_may_be_followed_by_variants(task: Task) -> None:
    assert model_for("ets", task, 7).config == ETSConfig()
    found = model_for("ets+season-24+stale", task, 7, "cpu")
    assert (found.config.season, found.config.origin) == (24, "training-end")
    assert (found.seed, found.device) == (7, "cpu")
    assert model_for("factorforge+draws", task, 7).config.coupling == "draws"
    with pytest.raises(UnknownName, match="no variant 'stail'; did you mean stale"):
        model_for("ets+stail", task, 7)
    with pytest.raises(UnknownName, match="last-week has no variants, and 'last-week\\+draws'"):
        model_for("last-week+draws", task, 7)
    with pytest.raises(UnknownName, match="oracle has no variants, and 'oracle\\+short'"):
        model_for("oracle+short", task, 7)
    with pytest.raises(UnknownName, match="no variant 'referense'; did you mean reference"):
        model_for("deepar+referense", task, 7)
    with pytest.raises(TrainingError, match="`powerphase train deepar\\+reference --data"):
        model_for("deepar+reference", task, 7)


def test_only_models_that_can_be_kept_are_trained() -> None:
    assert trainable("powerforge") is PowerForge
    assert trainable("factorforge") is FactorForge
    with pytest.raises(TrainingError, match=r"last-week .*powerforge, factorforge"):
        trainable("last-week")
    with pytest.raises(UnknownName, match="no model 'powerfrog'; did you mean powerforge"):
        trainable("powerfrog")
    with pytest.raises(TrainingError, match="`powerphase score mynetwork:Linear` trains"):
        trainable("mynetwork:Linear")


def test_a_lesson_is_of_a_network_or_fitted_in_one_go(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("hidden = 8\n")
    network = training_request(
        "powerforge+short", tmp_path / "c.toml", batch_size=3, backend="torch"
    )
    assert network.is_network
    assert network.options == {"channel_block": None, "backend": "torch"}
    config = network.asked.config
    assert (config.hidden, config.training.epochs, config.training.batch_size) == (8, 20, 3)
    in_one_go = training_request("ets+stale", device="cuda")
    assert not in_one_go.is_network
    assert in_one_go.asked.config.origin == "training-end"
    with pytest.raises(TrainingError, match="--device: factorforge has nothing of the kind"):
        training_request("factorforge", device="cuda")


def test_a_forecast_is_found_in_its_folder_or_made(task: Task, tmp_path: Path) -> None:
    written = forecast(Climatology(), task, out=tmp_path / "f", device="cpu")
    for given in (str(tmp_path / "f"), "climatology"):
        found = forecast_for(given, task, 7, "cpu")
        assert (found.facts, found.description) == (written.facts, written.description)
    with pytest.raises(ForecastError, match="nowhere: "):
        forecast_for(str(tmp_path / "nowhere"), task, 7)
