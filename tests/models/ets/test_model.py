"""ETS as a forecaster: paths, saving, loading, descriptions and errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase import Task, forecast
from powerphase.axes import KINDS, STEPS_PER_DAY
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ConfigError, ForecastError, TrainingError
from powerphase.evaluation import load_training, make_forecaster
from powerphase.models.ets import ETS, ETSConfig, Smoothing, expected_path, fit, gains_of
from powerphase.models.ets import model as ets
from powerphase.models.framework import Forecaster, apply_variants, describe, make_config
from powerphase.scenarios import Context
from tests.models.ets import process, random, waves
from tests.models.factorforge import layout, moments, training_of
from tests.models.toys import files_in
from tests.models.typed import outcome_of, reload, run_of, scenarios_of

SMALL = ETSConfig(season=12, samples=400)
"""For records of a few hundred steps."""


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=192, horizon=24, windows=3)


@pytest.fixture(scope="module")
def fitted(task: Task, tmp_path_factory: pytest.TempPathFactory) -> ETS:
    model = ETS(run=tmp_path_factory.mktemp("fitted") / "run", device="cpu")
    model.fit(task.training)
    return model


TRUE = gains_of(torch.tensor([[0.4], [0.05], [0.2]], dtype=torch.float64).repeat(1, 8))


def processes(n_steps: int) -> Tensor:
    """Random processes with a season of 12."""
    return process(TRUE, waves(12, 8), 0.1 * random(n_steps, 8))[0]


def model_of(values: np.ndarray, config: ETSConfig = SMALL, **options: Any) -> ETS:
    model = ETS(config, device="cpu", **options)
    model.fit(training_of(values, context=STEPS_PER_DAY, horizon=24))
    return model


def smoothing_of(model: ETS) -> Smoothing:
    assert model.fitted is not None
    return model.fitted


@pytest.fixture(scope="module")
def toy() -> ETS:
    """A model that is fitted to a known process."""
    return model_of(processes(1200).numpy())


def variant_of(toy: ETS, **changes: Any) -> ETS:
    """The same fit with other options."""
    model = ETS(replace(SMALL, **changes))
    model.fitted, model._domain = toy.fitted, toy._domain
    return model


def window(values: Tensor, start: str = "2015-03-01") -> Context:
    """The window after these values."""
    time = moments(STEPS_PER_DAY + 24, start)[None]
    past = values[-STEPS_PER_DAY:].float()[None]
    return Context(past, time, layout(values.shape[1] // KINDS))


def test_ets_is_a_forecaster() -> None:
    assert isinstance(ETS(), Forecaster)


def test_predict_before_fit_raises(task: Task) -> None:
    with pytest.raises(ForecastError, match="ets"):
        ETS().predict(task.test.context(0))


def test_paths_have_the_distribution_of_the_process(toy: ETS) -> None:
    """The central 80 % of paths cover 80 % of other futures of the process."""
    past = processes(1200)
    values = scenarios_of(variant_of(toy, samples=2000), window(past)).values[0].double()
    _, states = process(TRUE, waves(12, 8), 0.1 * random(1200, 8))
    futures = torch.stack([process(TRUE, states, path)[0] for path in 0.1 * random(150, 24, 8)])
    low, high = values.quantile(torch.tensor([0.1, 0.9]).double(), dim=0)
    inside = ((low <= futures) & (futures <= high)).double()
    assert 0.74 < inside.mean() < 0.86
    assert (inside.mean((0, 2)) > 0.65).all()


def test_the_deviation_corrects_for_the_number_of_fitted_values(toy: ETS) -> None:
    result = fit(processes(1200).float(), season=12)
    assert torch.allclose(smoothing_of(toy).deviation.square() * (1200 - 17), result.sse)
    assert torch.allclose(smoothing_of(toy).deviation, torch.tensor(0.1).double(), rtol=0.1)


def test_the_stale_variant_ignores_the_context_and_the_default_does_not(toy: ETS) -> None:
    stale, record = variant_of(toy, origin="training-end"), processes(1200)
    first, second = (scenarios_of(stale, window(past)).values for past in (record, record + 5))
    assert torch.equal(first, second)
    first, second = (scenarios_of(toy, window(past)).values for past in (record, record + 5))
    assert torch.allclose(second - first, torch.tensor(5.0), atol=1e-3)


def test_the_stale_variant_continues_the_training_record(toy: ETS) -> None:
    """Its next steps are close to those of the process without errors."""
    stale = variant_of(toy, origin="training-end", samples=1)
    stale.fitted = replace(smoothing_of(toy), deviation=torch.zeros(8).double())
    result = scenarios_of(stale, window(torch.zeros(1200, 8))).values[0, 0].double()
    _, states = process(TRUE, waves(12, 8), 0.1 * random(1200, 8))
    expected, _ = process(TRUE, states, torch.zeros(24, 8).double())
    assert (result - expected).abs().max() < 0.3
    assert (result - expected.flip(0)).abs().max() > 0.5


def test_trend_noise_changes_the_trend_by_beta(toy: ETS) -> None:
    """At the second step, the weight of an error is larger by (1 − α)β."""
    noisy, context = variant_of(toy, trend_noise=True), window(processes(1200))
    plain, more = (scenarios_of(model, context).values[0].double() for model in (toy, noisy))
    assert torch.equal(plain[:, 0], more[:, 0])
    alpha, beta, _ = smoothing_of(toy).smoothing
    errors = plain[:, 0] - expected_path(toy._states(smoothing_of(toy), context.past[0], 12), 1)
    assert torch.allclose((more - plain)[:, 1], (1 - alpha) * beta * errors, atol=1e-4)


def test_the_forecast_of_a_window_does_not_depend_on_other_windows(task: Task, fitted: ETS) -> None:
    first = scenarios_of(fitted, task.test.context(1)).values
    fitted.predict(task.test.context(0))
    assert torch.equal(scenarios_of(fitted, task.test.context(1)).values, first)
    ((batch, _),) = task.test.load(len(task.test))
    assert torch.equal(scenarios_of(fitted, batch).values[1:2], first)
    assert not torch.equal(scenarios_of(fitted, task.test.context(2)).values, first)
    reseeded = reload(fitted)
    reseeded.seed = 7
    assert not torch.equal(scenarios_of(reseeded, task.test.context(1)).values, first)


def test_a_loaded_model_forecasts_the_same_bits(task: Task, fitted: ETS) -> None:
    assert files_in(run_of(fitted)) == {"model.json", "weights.safetensors"}
    loaded, context = load_training(run_of(fitted), task), task.test.context(0)
    assert torch.equal(scenarios_of(loaded, context).values, scenarios_of(fitted, context).values)
    assert loaded.outcome == outcome_of(fitted)
    assert describe(loaded) == describe(fitted)


def test_a_model_created_by_name_fits_to_the_same_bits(task: Task, fitted: ETS) -> None:
    again = make_forecaster("ets", task, 42)
    assert isinstance(again, ETS)
    again.device = "cpu"
    again.fit(task.training)
    pairs = zip(vars(again.fitted).values(), vars(fitted.fitted).values(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_a_forecast_contains_the_cost_of_the_fit(task: Task, fitted: ETS) -> None:
    result = forecast(load_training(run_of(fitted), task), task, device="cpu")
    assert result.cost["train_s"] == outcome_of(fitted)["train_s"] > 0
    assert result.cost["steps"] is None
    assert fitted.n_parameters == 56 * (96 + 5)


def test_the_block_size_does_not_matter_and_progress_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = processes(600).numpy()
    progress: list[tuple[int, int]] = []
    whole = model_of(values)
    monkeypatch.setitem(ets.BLOCK, "cpu", 3)
    parts = model_of(values, on_block=lambda done, total: progress.append((done, total)))
    assert progress == [(3, 8), (6, 8), (8, 8)]
    assert torch.allclose(smoothing_of(parts).deviation, smoothing_of(whole).deviation, rtol=1e-6)
    assert torch.allclose(smoothing_of(parts).smoothing, smoothing_of(whole).smoothing, atol=1e-3)


def test_nearly_constant_channels_stay_finite_and_are_counted() -> None:
    values = processes(600).numpy()
    values[:, 1], values[:, 2] = 0.0, 1.02
    values[:, 3] *= 1e-12
    model = model_of(values)
    facts = outcome_of(model)["ets"]
    assert (facts["constant"], facts["tiny"]) == (2, 1)
    assert smoothing_of(model).deviation[1] == smoothing_of(model).deviation[2] == 0
    for config in (SMALL, replace(SMALL, origin="training-end")):
        model.config = config
        result = scenarios_of(model, window(torch.from_numpy(values))).values[0]
        assert result.isfinite().all()
        assert torch.allclose(result[..., 1], torch.tensor(0.0), atol=1e-6)
        assert torch.allclose(result[..., 2], torch.tensor(1.02), atol=1e-6)
        assert result[..., 3].abs().max() < 1e-10


def test_parameters_at_their_bounds_are_counted() -> None:
    """For noise around a fixed season, trend and season should not follow the errors."""
    states = waves(12, 4)
    values, _ = process(torch.zeros(3, 4).double(), states, 0.1 * random(1200, 4))
    model = model_of(values.numpy())
    facts = outcome_of(model)["ets"]
    assert facts["gamma_at_bound"] == (smoothing_of(model).smoothing[2] == 0).sum() >= 3
    assert 0 <= facts["median"]["alpha"] < 0.1


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_value_that_is_not_finite_raises_with_its_channel(broken: float, tmp_path: Path) -> None:
    values = processes(600).numpy()
    values[17, 6] = broken
    with pytest.raises(TrainingError, match=r"V of bus 2 .*(nan|inf).* 17 "):
        model_of(values, run=tmp_path / "run")
    with pytest.raises(CheckpointError):
        ETS.load(tmp_path / "run")


def test_an_interrupted_fit_is_repeated(tmp_path: Path) -> None:
    values = processes(600).numpy()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_of(values, run=tmp_path / "run", on_block=stop)
    with pytest.raises(CheckpointError, match="run: "):
        ETS.load(tmp_path / "run")
    again, whole = model_of(values, run=tmp_path / "run"), model_of(values)
    assert torch.equal(smoothing_of(again).smoothing, smoothing_of(whole).smoothing)
    assert ETS.load(tmp_path / "run").is_fitted


@pytest.mark.parametrize(("season", "context"), [(76, 96), (70, 60)])
def test_records_that_are_too_short_for_the_season_raise(season: int, context: int) -> None:
    training = training_of(processes(300).numpy(), context=context, horizon=24)
    with pytest.raises(TrainingError, match=rf"{season} .*300 .*{context}"):
        ETS(replace(SMALL, season=season)).fit(training)


def test_a_fit_that_needs_more_memory_than_is_free_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ets, "free_memory_gib", lambda device: 1e-9)
    with pytest.raises(TrainingError, match=r"0.0 GiB.* cpu"):
        model_of(processes(600).numpy())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, None),
        ({"season": 24}, "season-24"),
        ({"origin": "training-end"}, "stale"),
        ({"season": 24, "origin": "training-end"}, "season-24-stale"),
        ({"trend_noise": True}, "trend-noise"),
        ({"season": 24, "origin": "training-end", "trend_noise": True}, "reference"),
        ({"samples": 7}, "custom"),
    ],
)
def test_the_variant_names_options_that_are_not_the_default(
    changes: dict[str, Any], word: str | None
) -> None:
    assert ETSConfig(**changes).variant("any") == word
    if word is not None and word in ETSConfig.VARIANTS:
        assert apply_variants(ETSConfig(), [word], ETSConfig.VARIANTS) == ETSConfig(**changes)


@pytest.mark.parametrize("wrong", [{"season": 1}, {"samples": 0}, {"origin": "yesterday"}])
def test_invalid_options_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        make_config(ETSConfig, wrong)
