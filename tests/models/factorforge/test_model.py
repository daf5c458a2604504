"""FactorForge as a forecaster: what it says of itself, where it is kept, what it refuses."""

import re
import shutil
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ConfigError, ForecastError, TrainingError
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import driving_signals, load_training, make_forecaster
from powerphase.evaluation.scoring import score
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.base import Forecaster, describe
from powerphase.models.framework.checkpoint import read_tensors
from powerphase.models.framework.configuration import configured
from powerphase.models.framework.run import WEIGHTS, RunFolder
from powerphase.models.naive import Climatology
from powerphase.models.powerforge.model import PowerForge
from powerphase.scenarios import Context, Training
from powerphase.task.windows import Task
from tests.models.toys import files_in

WINDOWS = {"context": 192, "horizon": 24}


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, **WINDOWS, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    """A model that is kept in a folder, with what its factors follow."""
    model = FactorForge(run=tmp_path_factory.mktemp("fitted") / "run")
    model.fit(task.training)
    model.follow(driving_signals(task))
    return model


@pytest.fixture
def loaded(fitted: FactorForge) -> FactorForge:
    return FactorForge.load(fitted.run)


def same_bits(one: FactorForge, other: FactorForge) -> bool:
    (mine, facts), (theirs, other_facts) = one.forge.packed(), other.forge.packed()
    same = all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
    return same and mine.keys() == theirs.keys() and facts == other_facts


def batch_of(task: Task) -> Context:
    ((context, _),) = task.test.load(len(task.test))
    return context


def test_it_is_a_forecaster() -> None:
    assert isinstance(FactorForge(), Forecaster)


def test_predict_before_fit_is_refused_in_a_sentence(task: Task) -> None:
    with pytest.raises(ForecastError, match="factorforge is not trained; call fit, or load"):
        FactorForge().predict(task.test.context(0))


def test_by_its_name_it_is_fitted_anew_and_to_the_same_bits(
    task: Task, fitted: FactorForge
) -> None:
    again = make_forecaster("factorforge", task, 42)
    assert isinstance(again, FactorForge)
    again.fit(task.training)
    assert same_bits(again, fitted)
    context = task.test.context(0)
    assert torch.equal(again.predict(context).values, fitted.predict(context).values)


@pytest.fixture(scope="module")
def other(task: Task, tmp_path_factory: pytest.TempPathFactory) -> FactorForge:
    """One that draws three scenarios with one factor."""
    config = FactorForgeConfig(coupling="draws", scenarios=3, factors=1)
    model = FactorForge(config, seed=7, run=tmp_path_factory.mktemp("other") / "run")
    model.fit(task.training)
    return model


def test_a_loaded_model_gives_the_same_scenarios_to_the_last_bit(
    task: Task, fitted: FactorForge, other: FactorForge
) -> None:
    for model in (fitted, other):
        loaded = FactorForge.load(model.run)
        assert same_bits(loaded, model)
        assert (loaded.config, loaded.seed) == (model.config, model.seed)
        for window in range(2):
            context = task.test.context(window)
            one, again = model.predict(context), loaded.predict(context)
            assert torch.equal(one.values, again.values)
            assert torch.equal(one.weights, again.weights)


def test_there_are_as_many_scenarios_and_factors_as_asked_for(
    task: Task, other: FactorForge
) -> None:
    assert other.predict(task.test.context(0)).values.shape == (1, 3, 24, 56)
    assert len(other.forge.factors) == len(other.outcome["factors"]["each"]) == 1


def drawing(task: Task, fitted: FactorForge, seed: int) -> FactorForge:
    """The fitted model, made to draw."""
    model = FactorForge(replace(fitted.config, coupling="draws"), seed=seed)
    model.settle(task.training)
    model.forge = fitted.forge
    return model


def test_windows_together_are_forecast_as_each_alone(task: Task, fitted: FactorForge) -> None:
    for model in (fitted, drawing(task, fitted, seed=7)):
        together = model.predict(batch_of(task))
        for window in range(len(task.test)):
            alone = model.predict(task.test.context(window))
            torch.testing.assert_close(alone.values[0], together.values[window])


def test_the_seed_fixes_what_is_drawn(task: Task, fitted: FactorForge) -> None:
    context = task.test.context(0)
    first, again, other = (
        drawing(task, fitted, seed).predict(context).values for seed in (7, 7, 8)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fit_leaves_a_loaded_model_as_it_is(
    task: Task, fitted: FactorForge, loaded: FactorForge
) -> None:
    seen: list[int] = []
    loaded.on_block = lambda now, of: seen.append(now)
    loaded.fit(task.training)
    assert seen == []
    assert same_bits(loaded, fitted)


def test_a_finished_folder_is_taken_as_it_is(task: Task, fitted: FactorForge) -> None:
    before = {name: (fitted.run / name).read_bytes() for name in files_in(fitted.run)}
    assert before.keys() == {"model.json", WEIGHTS}
    seen: list[int] = []
    again = FactorForge(run=fitted.run, on_block=lambda now, of: seen.append(now))
    again.fit(task.training)
    again.follow(driving_signals(task))
    assert seen == []
    assert same_bits(again, fitted)
    assert again.outcome == RunFolder.open(fitted.run).header.outcome
    assert {name: (fitted.run / name).read_bytes() for name in files_in(fitted.run)} == before


class Stopped(Exception):
    pass


def test_a_fit_that_was_stopped_is_made_again(
    task: Task, fitted: FactorForge, tmp_path: Path
) -> None:
    def stop(now: int, of: int) -> None:
        if now > of / 2:
            raise Stopped

    with pytest.raises(Stopped):
        FactorForge(run=tmp_path / "run", on_block=stop).fit(task.training)
    with pytest.raises(CheckpointError, match="run: the fit was interrupted; fit it again"):
        FactorForge.load(tmp_path / "run")
    model = FactorForge(run=tmp_path / "run")
    model.fit(task.training)
    assert same_bits(model, fitted)
    assert RunFolder.open(tmp_path / "run").header.outcome == model.outcome


def test_another_seed_or_config_in_the_folder_is_refused(task: Task, fitted: FactorForge) -> None:
    for name, model in {
        "seed": FactorForge(seed=1, run=fitted.run),
        "config": FactorForge(FactorForgeConfig(factors=3), run=fitted.run),
    }.items():
        with pytest.raises(
            CheckpointError, match=f"of factorforge, seed 42, that differs in {name}"
        ):
            model.fit(task.training)


def test_other_data_are_refused(task: Task, fitted: FactorForge) -> None:
    """By every word that a data set is known by."""
    training = task.training
    for name in training.data:
        other = Training(training.record, training.validation, {**training.data, name: "other"})
        found = re.escape(repr(training.data[name]))
        refusal = f"was trained on {name} {found}, and the data set has 'other'; give"
        with pytest.raises(CheckpointError, match=refusal):
            FactorForge.load(fitted.run).fit(other)


@pytest.mark.parametrize("name", ["context", "horizon"])
def test_other_windows_are_refused(sixty_days: Store, fitted: FactorForge, name: str) -> None:
    asked = Task(sixty_days, **{**WINDOWS, name: 96}, windows=3)
    with pytest.raises(CheckpointError, match=f"was trained on {name} {WINDOWS[name]}, .* has 96"):
        load_training(fitted.run, asked)
    with pytest.raises(CheckpointError, match=f"for {name} {WINDOWS[name]} and is asked for"):
        fitted.predict(asked.test.context(0))


def test_another_grid_is_refused_by_name(task: Task, fitted: FactorForge) -> None:
    context, own, run = task.test.context(0), task.layout, re.escape(str(fitted.run))
    cases: dict[str, dict[str, Any]] = {
        "grid ieee14 and is asked for grid ieee15": {"grid": "ieee15"},
        f"p_scale_mw {own.p_scale_mw} and is asked for p_scale_mw 7.0": {"p_scale_mw": 7.0},
        "buses [0-9a-f]{16} and is asked for buses": {"bus_id": own.bus_id[::-1].copy()},
    }
    for words, changes in cases.items():
        with pytest.raises(CheckpointError, match=f"{run} was trained for {words}"):
            fitted.predict(replace(context, layout=replace(own, **changes)))


def test_the_folder_of_another_model_is_refused(fitted: FactorForge) -> None:
    with pytest.raises(CheckpointError, match="holds a training of factorforge, not of powerforge"):
        PowerForge.load(fitted.run)


def test_a_damaged_folder_is_refused(fitted: FactorForge, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fitted.run, tmp_path / "run"))
    whole = (run / WEIGHTS).read_bytes()
    (run / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        FactorForge.load(run)


def test_it_tells_what_it_is(task: Task, fitted: FactorForge) -> None:
    told = describe(fitted)
    assert (told.model, told.variant, told.seed) == ("factorforge", None, 42)
    assert configured(FactorForgeConfig, told.config) == fitted.config
    tensors, _ = read_tensors(fitted.run / WEIGHTS)
    assert told.parameters == fitted.n_parameters == sum(one.numel() for one in tensors.values())
    fresh = describe(FactorForge(seed=5))
    assert (fresh.parameters, fresh.seed) == (None, 5)


@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, None),
        ({"scenarios": 3}, "custom"),
        ({"coupling": "draws"}, "draws"),
        ({"coupling": "draws", "factors": 2}, "draws-custom"),
    ],
)
def test_a_model_with_other_constants_is_named_as_such(
    task: Task, changes: dict[str, Any], variant: str | None
) -> None:
    model = FactorForge(FactorForgeConfig(**changes))
    assert model.variant is None  # no grid is known yet
    model.settle(task.training)
    assert model.variant == variant


@pytest.mark.parametrize(
    "given",
    [
        *({"rank": 0}, {"factors": 0}, {"fold_days": 0}, {"scenarios": 0}),
        *({"lag_days": []}, {"lag_days": [0]}, {"strengths": []}, {"coupling": "chain"}),
    ],
)
def test_constants_that_cannot_work_are_refused(given: dict[str, Any]) -> None:
    (name,) = given
    assert name in asdict(FactorForgeConfig())
    with pytest.raises(ConfigError, match=name):
        configured(FactorForgeConfig, given)
    assert configured(FactorForgeConfig, asdict(FactorForgeConfig())) == FactorForgeConfig()


def test_too_short_a_record_is_refused_and_leaves_no_training(
    sixty_days: Store, tmp_path: Path
) -> None:
    short = Task(sixty_days, context=28 * 96, horizon=96, windows=3)
    with pytest.raises(TrainingError, match=r"learns from .* days or more"):
        FactorForge(run=tmp_path / "run").fit(short.training)
    assert not (tmp_path / "run").exists()


def test_contexts_that_are_no_whole_days_are_forecast(sixty_days: Store) -> None:
    """Windows begin at midnight whatever the context is."""
    task = Task(sixty_days, context=100, horizon=4, windows=2)
    model = FactorForge()
    model.fit(task.training)
    assert model.predict(batch_of(task)).values.isfinite().all()


def test_the_drivers_are_the_signals_of_the_steps_that_are_fitted_on(task: Task) -> None:
    found = driving_signals(task)
    assert list(found) == ["load", "solar", "wind"]
    signals, time = task.store.signals_mw, task.training.time
    (first,) = np.flatnonzero(task.store.time == time[0])
    for column, driver in enumerate(found.values()):
        np.testing.assert_array_equal(driver, signals[first : first + len(time), column])


def test_what_the_factors_follow_is_noted_and_kept(task: Task, fitted: FactorForge) -> None:
    for outcome in (fitted.outcome, FactorForge.load(fitted.run).outcome):
        each = outcome["factors"]["each"]
        for factor, fact in zip(fitted.series.T, each, strict=True):
            for name, driver in driving_signals(task).items():
                wanted = ((factor - factor.mean()) * (driver - driver.mean())).mean()
                wanted /= factor.std() * driver.std()
                assert fact["follows"][name] == pytest.approx(wanted)


def test_a_driver_that_never_moves_is_followed_by_nothing(fitted: FactorForge) -> None:
    model, n_steps = FactorForge(), len(fitted.series)
    model.series, model.outcome = fitted.series, deepcopy(fitted.outcome)
    model.follow({"solar": np.zeros(n_steps), "load": np.arange(float(n_steps))})
    assert list(model.outcome["factors"]["each"][0]["follows"]) == ["load"]


def test_a_loaded_model_has_nothing_to_follow_with(task: Task, loaded: FactorForge) -> None:
    before = (loaded.run / "model.json").read_bytes()
    loaded.follow({"anything": np.arange(3.0)})
    assert (loaded.run / "model.json").read_bytes() == before


def test_a_row_tells_the_fit_s_cost_wherever_it_is_forecast(
    task: Task, fitted: FactorForge
) -> None:
    found = forecast(load_training(fitted.run, task), task, device="cpu")
    assert found.cost["train_s"] == fitted.outcome["train_s"] > 0
    assert found.cost["steps"] is None
    assert found.description == describe(fitted)


def test_it_forecasts_better_than_the_climate(task: Task, fitted: FactorForge) -> None:
    ours, theirs = (
        score(forecast(model, task, device="cpu"), task, device="cpu").scores
        for model in (FactorForge.load(fitted.run), Climatology())
    )
    assert ours["crps"] < theirs["crps"]
