"""FactorForge as a forecaster: fitting, saving, loading, descriptions and errors."""

import json
import re
import shutil
from copy import copy, deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import Task, forecast, score
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ConfigError, ForecastError, TrainingError
from powerphase.evaluation import driving_signals, load_training, make_forecaster
from powerphase.models import Climatology, FactorForge, FactorForgeConfig, PowerForge
from powerphase.models.framework import (
    WEIGHTS,
    Forecaster,
    RunFolder,
    describe,
    make_config,
    read_tensors,
)
from powerphase.registry import results_version
from powerphase.scenarios import Context, Training
from tests.models.toys import files_in
from tests.models.typed import outcome_of, reload, run_of, scenarios_of

WINDOWS: dict[str, Any] = {"context": 192, "horizon": 24}


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, **WINDOWS, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    """A model with a run folder and the correlations of its factors."""
    model = FactorForge(run=tmp_path_factory.mktemp("fitted") / "run")
    model.fit(task.training)
    model.follow(driving_signals(task))
    return model


@pytest.fixture
def loaded(fitted: FactorForge) -> FactorForge:
    return reload(fitted)


def same_bits(first: FactorForge, second: FactorForge) -> bool:
    assert first.fitted is not None
    assert second.fitted is not None
    (tensors, facts), (others, other_facts) = (
        first.fitted.to_tensors(),
        second.fitted.to_tensors(),
    )
    equal = all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    return equal and tensors.keys() == others.keys() and facts == other_facts


def batch_of(task: Task) -> Context:
    ((context, _),) = task.test.load(len(task.test))
    return context


def test_factorforge_is_a_forecaster() -> None:
    assert isinstance(FactorForge(), Forecaster)


def test_predict_before_fit_raises(task: Task) -> None:
    with pytest.raises(ForecastError, match="factorforge"):
        FactorForge().predict(task.test.context(0))


def test_a_model_created_by_name_fits_to_the_same_bits(task: Task, fitted: FactorForge) -> None:
    again = make_forecaster("factorforge", task, 42)
    assert isinstance(again, FactorForge)
    again.fit(task.training)
    assert same_bits(again, fitted)
    context = task.test.context(0)
    assert torch.equal(scenarios_of(again, context).values, scenarios_of(fitted, context).values)


@pytest.fixture(scope="module")
def one_factor(task: Task, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    """A model that draws three scenarios with one factor."""
    config = FactorForgeConfig(coupling="draws", scenarios=3, factors=1)
    model = FactorForge(config, seed=7, run=tmp_path_factory.mktemp("other") / "run")
    model.fit(task.training)
    return model


def test_a_loaded_model_forecasts_the_same_bits(
    task: Task, fitted: FactorForge, one_factor: FactorForge
) -> None:
    for model in (fitted, one_factor):
        loaded = reload(model)
        assert same_bits(loaded, model)
        assert (loaded.config, loaded.seed) == (model.config, model.seed)
        for window in range(2):
            context = task.test.context(window)
            scenarios, again = scenarios_of(model, context), scenarios_of(loaded, context)
            assert torch.equal(scenarios.values, again.values)
            assert torch.equal(scenarios.weights, again.weights)


def test_the_config_sets_the_number_of_scenarios_and_factors(
    task: Task, one_factor: FactorForge
) -> None:
    assert scenarios_of(one_factor, task.test.context(0)).values.shape == (1, 3, 24, 56)
    assert one_factor.fitted is not None
    assert len(one_factor.fitted.factors) == len(outcome_of(one_factor)["factors"]["each"]) == 1


def drawing_model(task: Task, fitted: FactorForge, seed: int) -> FactorForge:
    """The fitted model with random scenarios."""
    model = FactorForge(replace(fitted.config, coupling="draws"), seed=seed)
    model.configure(task.training)
    model.fitted = fitted.fitted
    return model


def test_a_batch_is_forecast_like_its_single_windows(task: Task, fitted: FactorForge) -> None:
    for model in (fitted, drawing_model(task, fitted, seed=7)):
        batch = scenarios_of(model, batch_of(task))
        for window in range(len(task.test)):
            alone = scenarios_of(model, task.test.context(window))
            torch.testing.assert_close(alone.values[0], batch.values[window])


def test_draws_depend_on_the_seed(task: Task, fitted: FactorForge) -> None:
    context = task.test.context(0)
    first, again, different = (
        scenarios_of(drawing_model(task, fitted, seed), context).values for seed in (7, 7, 8)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, different)


def test_fit_does_not_change_a_loaded_model(
    task: Task, fitted: FactorForge, loaded: FactorForge
) -> None:
    seen: list[int] = []
    loaded.on_block = lambda done, total: seen.append(done)
    loaded.fit(task.training)
    assert seen == []
    assert same_bits(loaded, fitted)


def test_a_finished_run_is_loaded_instead_of_fitted(task: Task, fitted: FactorForge) -> None:
    before = {name: (run_of(fitted) / name).read_bytes() for name in files_in(run_of(fitted))}
    assert before.keys() == {"model.json", WEIGHTS}
    seen: list[int] = []
    again = FactorForge(run=run_of(fitted), on_block=lambda done, total: seen.append(done))
    again.fit(task.training)
    again.follow(driving_signals(task))
    assert seen == []
    assert same_bits(again, fitted)
    assert again.outcome == RunFolder.open(run_of(fitted)).header.outcome
    assert {
        name: (run_of(fitted) / name).read_bytes() for name in files_in(run_of(fitted))
    } == before


def test_a_training_of_an_older_version_is_loaded_as_such_but_not_trained_again(
    task: Task, fitted: FactorForge, tmp_path: Path
) -> None:
    assert describe(fitted).version == results_version("factorforge") > 1
    run = shutil.copytree(run_of(fitted), tmp_path / "run")
    values = json.loads((run / "model.json").read_text())
    del values["outcome"]["results_version"]
    (run / "model.json").write_text(json.dumps(values))
    assert describe(FactorForge.load(run)).version == 1
    with pytest.raises(CheckpointError, match="version 1"):
        FactorForge(run=run).fit(task.training)


class InterruptError(Exception):
    pass


def test_an_interrupted_fit_is_repeated(task: Task, fitted: FactorForge, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total / 2:
            raise InterruptError

    with pytest.raises(InterruptError):
        FactorForge(run=tmp_path / "run", on_block=stop).fit(task.training)
    with pytest.raises(CheckpointError, match="run: "):
        FactorForge.load(tmp_path / "run")
    model = FactorForge(run=tmp_path / "run")
    model.fit(task.training)
    assert same_bits(model, fitted)
    assert RunFolder.open(tmp_path / "run").header.outcome == outcome_of(model)


def test_another_seed_or_config_in_the_folder_raises(task: Task, fitted: FactorForge) -> None:
    for name, model in {
        "seed": FactorForge(seed=1, run=run_of(fitted)),
        "config": FactorForge(FactorForgeConfig(factors=3), run=run_of(fitted)),
    }.items():
        with pytest.raises(CheckpointError, match=name):
            model.fit(task.training)


def test_other_data_raise(task: Task, fitted: FactorForge) -> None:
    """If any fact that identifies the data set differs."""
    training = task.training
    for name in training.data:
        changed = {**training.data, name: "other"}
        different = Training(training.record, training.validation, changed)
        actual = re.escape(repr(training.data[name]))
        with pytest.raises(CheckpointError, match=f"{name} {actual}.*'other'"):
            reload(fitted).fit(different)


@pytest.mark.parametrize("name", ["context", "horizon"])
def test_windows_of_another_length_raise(sixty_days: Store, fitted: FactorForge, name: str) -> None:
    different = Task(sixty_days, **{**WINDOWS, name: 96}, windows=3)
    with pytest.raises(CheckpointError, match=f"{name} {WINDOWS[name]}.*96"):
        load_training(run_of(fitted), different)
    with pytest.raises(CheckpointError, match=f"{name} {WINDOWS[name]}"):
        scenarios_of(fitted, different.test.context(0))


def test_another_grid_raises(task: Task, fitted: FactorForge) -> None:
    context, layout, run = task.test.context(0), task.layout, re.escape(str(run_of(fitted)))
    cases: dict[str, dict[str, Any]] = {
        "grid ieee14 .*ieee15": {"grid": "ieee15"},
        f"p_scale_mw {layout.p_scale_mw} .*7.0": {"p_scale_mw": 7.0},
        "buses [0-9a-f]{16}": {"bus_id": layout.bus_id[::-1].copy()},
    }
    for fact, changes in cases.items():
        with pytest.raises(CheckpointError, match=f"{run} .*{fact}"):
            scenarios_of(fitted, replace(context, layout=replace(layout, **changes)))


def test_the_folder_of_another_model_raises(fitted: FactorForge) -> None:
    with pytest.raises(CheckpointError, match=r"factorforge.*powerforge"):
        PowerForge.load(run_of(fitted))


def test_a_damaged_folder_raises(fitted: FactorForge, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of(fitted), tmp_path / "run"))
    whole = (run / WEIGHTS).read_bytes()
    (run / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        FactorForge.load(run)


def test_the_description_matches_the_saved_model(task: Task, fitted: FactorForge) -> None:
    description = describe(fitted)
    assert (description.model, description.variant, description.seed) == ("factorforge", None, 42)
    assert make_config(FactorForgeConfig, description.config) == fitted.config
    tensors, _ = read_tensors(run_of(fitted) / WEIGHTS)
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    assert description.parameters == fitted.n_parameters == n_parameters
    unfitted = describe(FactorForge(seed=5))
    assert (unfitted.parameters, unfitted.seed) == (None, 5)


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, None),
        ({"scenarios": 3}, "custom"),
        ({"coupling": "draws"}, "draws"),
        ({"coupling": "draws", "factors": 2}, "draws-custom"),
        ({"coupling": "days", "scenarios": 100}, "days"),
    ],
)
def test_the_variant_names_options_that_are_not_the_default(
    task: Task, changes: dict[str, Any], variant: str | None
) -> None:
    model = FactorForge(FactorForgeConfig(**changes))
    assert model.variant is None  # the grid is not known yet
    model.configure(task.training)
    assert model.variant == variant


@pytest.mark.parametrize(
    "options",
    [
        *({"rank": 0}, {"factors": 0}, {"fold_days": 0}, {"scenarios": 0}),
        *({"lag_days": []}, {"lag_days": [0]}, {"strengths": []}, {"coupling": "chain"}),
    ],
)
def test_invalid_options_raise(options: dict[str, Any]) -> None:
    (name,) = options
    assert name in asdict(FactorForgeConfig())
    with pytest.raises(ConfigError, match=name):
        make_config(FactorForgeConfig, options)
    assert make_config(FactorForgeConfig, asdict(FactorForgeConfig())) == FactorForgeConfig()


def test_a_record_that_is_too_short_raises_and_leaves_no_folder(
    sixty_days: Store, tmp_path: Path
) -> None:
    short = Task(sixty_days, context=28 * 96, horizon=96, windows=3)
    with pytest.raises(TrainingError, match="2688 steps"):
        FactorForge(run=tmp_path / "run").fit(short.training)
    assert not (tmp_path / "run").exists()


def test_contexts_that_are_not_whole_days_are_forecast(sixty_days: Store) -> None:
    """Windows start at midnight for any length of the context."""
    task = Task(sixty_days, context=100, horizon=4, windows=2)
    model = FactorForge()
    model.fit(task.training)
    assert scenarios_of(model, batch_of(task)).values.isfinite().all()


def test_the_drivers_are_the_signals_of_the_training_steps(task: Task) -> None:
    signals_of = driving_signals(task)
    assert list(signals_of) == ["load", "solar", "wind"]
    signals, time = task.store.signals_mw, task.training.time
    (first,) = np.flatnonzero(task.store.time == time[0])
    for column, driver in enumerate(signals_of.values()):
        np.testing.assert_array_equal(driver, signals[first : first + len(time), column])


def test_correlations_of_factors_with_drivers_are_saved(task: Task, fitted: FactorForge) -> None:
    assert fitted.series is not None
    for model in (fitted, reload(fitted)):
        each = outcome_of(model)["factors"]["each"]
        for factor, fact in zip(fitted.series.T, each, strict=True):
            for name, driver in driving_signals(task).items():
                expected = ((factor - factor.mean()) * (driver - driver.mean())).mean()
                expected /= factor.std() * driver.std()
                assert fact["follows"][name] == pytest.approx(expected)


def test_a_constant_driver_has_no_correlation(fitted: FactorForge) -> None:
    assert fitted.series is not None
    model, n_steps = FactorForge(), len(fitted.series)
    model.series, model.outcome = fitted.series, deepcopy(outcome_of(fitted))
    model.follow({"solar": np.zeros(n_steps), "load": np.arange(float(n_steps))})
    assert list(outcome_of(model)["factors"]["each"][0]["follows"]) == ["load"]


def test_a_loaded_model_ignores_drivers(task: Task, loaded: FactorForge) -> None:
    before = (run_of(loaded) / "model.json").read_bytes()
    loaded.follow({"anything": np.arange(3.0)})
    assert (run_of(loaded) / "model.json").read_bytes() == before


def test_a_forecast_contains_the_cost_of_the_fit(task: Task, fitted: FactorForge) -> None:
    result = forecast(load_training(run_of(fitted), task), task, device="cpu")
    assert result.cost["train_s"] == outcome_of(fitted)["train_s"] > 0
    assert result.cost["steps"] is None
    assert result.description == describe(fitted)


def test_factorforge_beats_climatology(task: Task, fitted: FactorForge) -> None:
    factorforge, climatology = (
        score(forecast(model, task, device="cpu"), task, device="cpu").scores["crps"]
        for model in (reload(fitted), Climatology())
    )
    assert factorforge is not None
    assert climatology is not None
    assert factorforge < climatology


@pytest.fixture(scope="module")
def informed(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    """A model that was fitted with forecasts."""
    model = FactorForge(run=tmp_path_factory.mktemp("informed") / "run")
    model.fit(Task(sixty_days, **WINDOWS, windows=3, known="made").training)
    return model


@pytest.mark.parametrize("form", ["fan", "ranked", "draws"])
def test_a_loaded_model_reads_forecasts_like_the_saved_one(
    informed: FactorForge, sixty_days: Store, form: str
) -> None:
    context = batch_of(Task(sixty_days, **WINDOWS, windows=3, known="made"))
    again = reload(informed)
    assert same_bits(informed, again)
    models = [copy(model) for model in (informed, again)]
    for model in models:
        model.config = replace(model.config, coupling=form)
    first, second = (scenarios_of(model, context).values for model in models)
    assert torch.equal(first, second)


def test_rows_state_an_option_that_is_newer_only_where_it_is_changed() -> None:
    assert "informed" not in describe(FactorForge()).config
    uninformed = make_config(FactorForgeConfig, {"informed": False})
    assert describe(FactorForge(uninformed)).config["informed"] is False
    assert uninformed.variant("ieee14") == "uninformed"


def test_an_uninformed_model_forecasts_as_if_there_were_no_forecasts(
    fitted: FactorForge, sixty_days: Store
) -> None:
    task = Task(sixty_days, **WINDOWS, windows=3, known="made")
    model = FactorForge(FactorForgeConfig(informed=False))
    model.fit(task.training)
    first, second = (scenarios_of(each, batch_of(task)).values for each in (model, fitted))
    assert torch.equal(first, second)
