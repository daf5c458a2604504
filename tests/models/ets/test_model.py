"""ETS as a forecaster: its paths, what it says of itself, where it is kept, what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import KINDS, STEPS_PER_DAY
from powerphase.bench.evaluation import score
from powerphase.bench.forecasting import forecast
from powerphase.bench.models import load_run, model_for
from powerphase.dataset.store import Store
from powerphase.errors import CheckpointError, ConfigError, ForecastError, TrainingError
from powerphase.models.base import Forecaster, describe
from powerphase.models.ets import model as ets
from powerphase.models.ets.config import ETSConfig
from powerphase.models.ets.fitting import gains_of
from powerphase.models.ets.model import ETS
from powerphase.models.variants import with_variants
from powerphase.scenarios import Context
from powerphase.task.windows import Task
from tests.models.ets import process, random, waves
from tests.models.factorforge import layout, moments, training_of
from tests.models.toys import files_in

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


def made(n_steps: int, n_channels: int = 8, seed: int = 0) -> Tensor:
    """Processes with a season of 12."""
    smoothing = torch.tensor([0.4, 0.05, 0.2], dtype=torch.float64)[:, None].repeat(1, n_channels)
    errors = 0.1 * random(n_steps, n_channels, seed=seed)
    return process(gains_of(smoothing), waves(12, n_channels), errors)[0]


def model_of(values: np.ndarray, config: ETSConfig = SMALL, **options: object) -> ETS:
    model = ETS(config, device="cpu", **options)
    model.fit(training_of(values, context=STEPS_PER_DAY, horizon=24))
    return model


def window(values: Tensor, start: str = "2015-03-01", context: int = STEPS_PER_DAY) -> Context:
    """One that follows after these values."""
    time = moments(context + 24, start)[None]
    return Context(values[-context:].float()[None], time, layout(values.shape[1] // KINDS))


def test_it_is_a_forecaster() -> None:
    assert isinstance(ETS(), Forecaster)


def test_predict_before_fit_is_refused_in_a_sentence(task: Task) -> None:
    with pytest.raises(ForecastError, match="ets is not trained; call fit, or load"):
        ETS().predict(task.test.context(0))


def test_paths_have_the_law_of_the_process() -> None:
    """Means and deviations at all steps, and the share of futures in the central interval."""
    values = made(6000 + 24)
    model = model_of(values[:6000].numpy(), replace(SMALL, samples=4000))
    past = values[:6000]
    found = model.predict(window(past, context=STEPS_PER_DAY)).values[0]
    chosen = model.learned.smoothing
    errors = random(4000, 24, 8, seed=5) * model.learned.deviation
    states = model._states(model.learned, past[-STEPS_PER_DAY:].float())
    wanted = torch.stack([process(gains_of(chosen), states, path)[0] for path in errors])
    assert torch.allclose(found.mean(0).double(), wanted.mean(0), atol=0.05)
    assert torch.allclose(found.std(0).double(), wanted.std(0), rtol=0.1)
    futures = []
    for path in 0.1 * random(200, 24, 8, seed=6):
        true = gains_of(torch.tensor([[0.4], [0.05], [0.2]]).double().repeat(1, 8))
        futures.append(process(true, states, path)[0])
    low, high = found.double().quantile(torch.tensor([0.1, 0.9]).double(), dim=0)
    inside = torch.stack([(low <= future) & (future <= high) for future in futures])
    assert 0.75 < inside.double().mean() < 0.85


def test_the_stale_law_ignores_the_context_and_the_default_does_not() -> None:
    values = made(1200)
    updated = model_of(values.numpy())
    stale = model_of(values.numpy(), replace(SMALL, origin="training-end"))
    near, far = window(values), window(values + 5)
    first, other = (stale.predict(context).values for context in (near, far))
    assert torch.equal(first, other)
    first, other = (updated.predict(context).values for context in (near, far))
    assert torch.allclose(other - first, torch.tensor(5.0), atol=1e-3)


def test_the_stale_law_goes_on_where_the_training_record_ends() -> None:
    values = made(1200)
    stale = model_of(values.numpy(), replace(SMALL, origin="training-end", samples=1))
    stale.learned.deviation.zero_()
    found = stale.predict(window(values)).values[0, 0]
    nothing = torch.zeros(24, 8).double()
    gains = gains_of(stale.learned.smoothing)
    wanted, _ = process(gains, stale.learned.states, nothing)
    assert torch.allclose(found.double(), wanted, atol=1e-6)
    assert (
        wanted
        - process(
            gains_of(torch.tensor([[0.4], [0.05], [0.2]]).double()),
            *(
                process(
                    gains_of(torch.tensor([[0.4], [0.05], [0.2]]).double().repeat(1, 8)),
                    waves(12, 8),
                    0.1 * random(1200, 8),
                )[1],
                nothing,
            ),
        )[0]
    ).abs().max() < 0.6


def test_trend_noise_drives_the_trend_by_beta_alone() -> None:
    values = made(1200)
    plain, noisy = (
        model_of(values.numpy(), replace(SMALL, trend_noise=noise)) for noise in (False, True)
    )
    first, other = (model.predict(window(values)).values[0] for model in (plain, noisy))
    assert torch.equal(first[:, 0], other[:, 0])
    alpha, beta, _ = plain.learned.smoothing
    step = (other - first)[:, 1]
    errors = first[:, 0] - first[:, 0].mean(0)
    wanted = (beta * (1 - alpha)).float() * errors
    assert torch.allclose(step - step.mean(0), wanted, atol=1e-4)


def test_two_forecasts_of_a_window_are_equal_whatever_was_asked_before(
    task: Task, fitted: ETS
) -> None:
    first = fitted.predict(task.test.context(1)).values
    fitted.predict(task.test.context(0))
    assert torch.equal(fitted.predict(task.test.context(1)).values, first)
    ((several, _),) = task.test.load(len(task.test))
    assert torch.equal(fitted.predict(several).values[1:2], first)
    assert not torch.equal(fitted.predict(task.test.context(2)).values, first)
    other = ETS.load(fitted.run)
    other.seed = 7
    assert not torch.equal(other.predict(task.test.context(1)).values, first)


def test_a_loaded_model_gives_the_same_scenarios_to_the_last_bit(task: Task, fitted: ETS) -> None:
    assert files_in(fitted.run) == {"model.json", "weights.safetensors"}
    loaded, context = load_run(fitted.run, task), task.test.context(0)
    assert torch.equal(loaded.predict(context).values, fitted.predict(context).values)
    assert loaded.outcome == fitted.outcome
    assert describe(loaded) == describe(fitted)


def test_by_its_name_it_is_fitted_anew_and_to_the_same_bits(task: Task, fitted: ETS) -> None:
    again = model_for("ets", task, 42)
    assert isinstance(again, ETS)
    again.device = "cpu"
    again.fit(task.training)
    for one, other in zip(vars(again.learned).values(), vars(fitted.learned).values(), strict=True):
        assert torch.equal(one, other)


def test_a_row_tells_the_fit_s_cost(task: Task, fitted: ETS) -> None:
    found = forecast(load_run(fitted.run, task), task, device="cpu")
    assert found.cost["train_s"] == fitted.outcome["train_s"] > 0
    assert found.cost["steps"] is None
    assert fitted.n_parameters == 56 * (96 + 5)
    assert score(found, task, device="cpu").scores["crps"] > 0


def test_blocks_of_channels_change_nothing_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    values, told = made(600).numpy(), []
    whole = model_of(values)
    monkeypatch.setitem(ets.BLOCK, "cpu", 3)
    parts = model_of(values, on_block=lambda done, total: told.append((done, total)))
    assert told == [(3, 8), (6, 8), (8, 8)]
    assert torch.allclose(parts.learned.deviation, whole.learned.deviation, rtol=1e-6)
    assert torch.allclose(parts.learned.smoothing, whole.learned.smoothing, atol=1e-3)


def test_channels_that_hardly_move_stay_finite_and_are_counted() -> None:
    values = made(600).numpy()
    values[:, 1], values[:, 2] = 0.0, 1.02
    values[:, 3] *= 1e-12
    model = model_of(values)
    facts = model.outcome["ets"]
    assert (facts["constant"], facts["tiny"]) == (2, 1)
    assert model.learned.deviation[1] == model.learned.deviation[2] == 0
    for config in (SMALL, replace(SMALL, origin="training-end")):
        model.config = config
        found = model.predict(window(torch.from_numpy(values))).values[0]
        assert found.isfinite().all()
        assert torch.allclose(found[..., 1], torch.tensor(0.0), atol=1e-6)
        assert torch.allclose(found[..., 2], torch.tensor(1.02), atol=1e-6)
        assert found[..., 3].abs().max() < 1e-10


def test_parameters_at_their_bounds_are_counted() -> None:
    """Noise around a season that stays: neither trend nor season should learn anything."""
    states = waves(12, 4)
    values, _ = process(torch.zeros(3, 4).double(), states, 0.1 * random(1200, 4))
    facts = model_of(values.numpy()).outcome["ets"]
    assert facts["gamma_at_bound"] >= 3
    assert 0 <= facts["median"]["alpha"] < 0.1


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_is_refused_with_its_channel(broken: float, tmp_path: Path) -> None:
    values = made(600).numpy()
    values[17, 6] = broken
    with pytest.raises(TrainingError, match=r"V of bus 2 is (nan|inf) in step 17"):
        model_of(values, run=tmp_path / "run")
    with pytest.raises(CheckpointError):
        ETS.load(tmp_path / "run")


def test_an_interrupted_fit_is_fitted_again(tmp_path: Path) -> None:
    values = made(600).numpy()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_of(values, run=tmp_path / "run", on_block=stop)
    again, whole = model_of(values, run=tmp_path / "run"), model_of(values)
    assert torch.equal(again.learned.smoothing, whole.learned.smoothing)
    assert ETS.load(tmp_path / "run").is_fitted


@pytest.mark.parametrize("n_steps", [47, 300])
def test_what_is_too_short_for_the_season_is_refused(n_steps: int) -> None:
    season = 12 if n_steps == 47 else 75
    training = training_of(made(n_steps).numpy(), context=60, horizon=24)
    if n_steps == 47:
        training.time = training.time[:47]
    with pytest.raises(TrainingError, match=f"a season of {season} steps needs 4 of them"):
        ETS(replace(SMALL, season=season)).fit(training)


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ets, "free_memory_gib", lambda device: 1e-9)
    with pytest.raises(TrainingError, match=r"fitting ets takes about 0.0 GiB, and cpu has 0.0"):
        model_of(made(600).numpy())


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
def test_what_is_not_the_default_has_a_name(changes: dict[str, object], word: str | None) -> None:
    assert ETSConfig(**changes).variant("any") == word
    if word in ETSConfig.VARIANTS:
        assert with_variants(ETSConfig(), [word], ETSConfig.VARIANTS) == ETSConfig(**changes)


@pytest.mark.parametrize("wrong", [{"season": 1}, {"samples": 0}, {"origin": "yesterday"}])
def test_a_wrong_config_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ETSConfig(**wrong)
