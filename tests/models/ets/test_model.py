"""ETS as a forecaster: its paths, what it says of itself, where it is kept, what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import KINDS, STEPS_PER_DAY
from powerphase.dataset import Store
from powerphase.errors import CheckpointError, ConfigError, ForecastError, TrainingError
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import load_training, make_forecaster
from powerphase.models.ets import model as ets
from powerphase.models.ets.config import ETSConfig
from powerphase.models.ets.fitting import fit, gains_of
from powerphase.models.ets.model import ETS
from powerphase.models.ets.paths import expected
from powerphase.models.framework.base import Forecaster, describe
from powerphase.models.framework.configuration import configured
from powerphase.models.framework.variants import with_variants
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


TRUE = gains_of(torch.tensor([[0.4], [0.05], [0.2]], dtype=torch.float64).repeat(1, 8))


def made(n_steps: int) -> Tensor:
    """Processes with a season of 12."""
    return process(TRUE, waves(12, 8), 0.1 * random(n_steps, 8))[0]


def model_of(values: np.ndarray, config: ETSConfig = SMALL, **options: object) -> ETS:
    model = ETS(config, device="cpu", **options)
    model.fit(training_of(values, context=STEPS_PER_DAY, horizon=24))
    return model


@pytest.fixture(scope="module")
def toy() -> ETS:
    """Fitted to a known process."""
    return model_of(made(1200).numpy())


def other(toy: ETS, **changes: object) -> ETS:
    """The same fit, used otherwise."""
    found = ETS(replace(SMALL, **changes))
    found.learned, found._domain = toy.learned, toy._domain
    return found


def window(values: Tensor, start: str = "2015-03-01") -> Context:
    """One that follows after these values."""
    time = moments(STEPS_PER_DAY + 24, start)[None]
    past = values[-STEPS_PER_DAY:].float()[None]
    return Context(past, time, layout(values.shape[1] // KINDS))


def test_it_is_a_forecaster() -> None:
    assert isinstance(ETS(), Forecaster)


def test_predict_before_fit_is_refused_in_a_sentence(task: Task) -> None:
    with pytest.raises(ForecastError, match="ets is not trained; call fit, or load"):
        ETS().predict(task.test.context(0))


def test_paths_have_the_law_of_the_process(toy: ETS) -> None:
    """Other futures of the same process fall into the central 80 % as often."""
    past = made(1200)
    values = other(toy, samples=2000).predict(window(past)).values[0].double()
    _, states = process(TRUE, waves(12, 8), 0.1 * random(1200, 8))
    futures = torch.stack([process(TRUE, states, path)[0] for path in 0.1 * random(150, 24, 8)])
    low, high = values.quantile(torch.tensor([0.1, 0.9]).double(), dim=0)
    inside = ((low <= futures) & (futures <= high)).double()
    assert 0.74 < inside.mean() < 0.86
    assert (inside.mean((0, 2)) > 0.65).all()


def test_the_deviation_counts_what_was_fitted(toy: ETS) -> None:
    found = fit(made(1200).float(), season=12)
    assert torch.allclose(toy.learned.deviation.square() * (1200 - 17), found.sse)
    assert torch.allclose(toy.learned.deviation, torch.tensor(0.1).double(), rtol=0.1)


def test_the_stale_law_ignores_the_context_and_the_default_does_not(toy: ETS) -> None:
    stale, near = other(toy, origin="training-end"), made(1200)
    first, second = (stale.predict(window(past)).values for past in (near, near + 5))
    assert torch.equal(first, second)
    first, second = (toy.predict(window(past)).values for past in (near, near + 5))
    assert torch.allclose(second - first, torch.tensor(5.0), atol=1e-3)


def test_the_stale_law_goes_on_where_the_training_record_ends(toy: ETS) -> None:
    """Its next steps are near what the process itself would do without errors."""
    stale = other(toy, origin="training-end", samples=1)
    stale.learned = replace(toy.learned, deviation=torch.zeros(8).double())
    found = stale.predict(window(torch.zeros(1200, 8))).values[0, 0].double()
    _, states = process(TRUE, waves(12, 8), 0.1 * random(1200, 8))
    wanted, _ = process(TRUE, states, torch.zeros(24, 8).double())
    assert (found - wanted).abs().max() < 0.3
    assert (found - wanted.flip(0)).abs().max() > 0.5


def test_trend_noise_drives_the_trend_by_beta_alone(toy: ETS) -> None:
    """At the second step, an error counts (1 − α)β more than it should."""
    noisy, context = other(toy, trend_noise=True), window(made(1200))
    plain, more = (model.predict(context).values[0].double() for model in (toy, noisy))
    assert torch.equal(plain[:, 0], more[:, 0])
    alpha, beta, _ = toy.learned.smoothing
    errors = plain[:, 0] - expected(toy._states(toy.learned, context.past[0]), 1)
    assert torch.allclose((more - plain)[:, 1], (1 - alpha) * beta * errors, atol=1e-4)


def test_two_forecasts_of_a_window_are_equal_whatever_was_asked_before(
    task: Task, fitted: ETS
) -> None:
    first = fitted.predict(task.test.context(1)).values
    fitted.predict(task.test.context(0))
    assert torch.equal(fitted.predict(task.test.context(1)).values, first)
    ((several, _),) = task.test.load(len(task.test))
    assert torch.equal(fitted.predict(several).values[1:2], first)
    assert not torch.equal(fitted.predict(task.test.context(2)).values, first)
    reseeded = ETS.load(fitted.run)
    reseeded.seed = 7
    assert not torch.equal(reseeded.predict(task.test.context(1)).values, first)


def test_a_loaded_model_gives_the_same_scenarios_to_the_last_bit(task: Task, fitted: ETS) -> None:
    assert files_in(fitted.run) == {"model.json", "weights.safetensors"}
    loaded, context = load_training(fitted.run, task), task.test.context(0)
    assert torch.equal(loaded.predict(context).values, fitted.predict(context).values)
    assert loaded.outcome == fitted.outcome
    assert describe(loaded) == describe(fitted)


def test_by_its_name_it_is_fitted_anew_and_to_the_same_bits(task: Task, fitted: ETS) -> None:
    again = make_forecaster("ets", task, 42)
    assert isinstance(again, ETS)
    again.device = "cpu"
    again.fit(task.training)
    for one, other in zip(vars(again.learned).values(), vars(fitted.learned).values(), strict=True):
        assert torch.equal(one, other)


def test_a_row_tells_the_fit_s_cost(task: Task, fitted: ETS) -> None:
    found = forecast(load_training(fitted.run, task), task, device="cpu")
    assert found.cost["train_s"] == fitted.outcome["train_s"] > 0
    assert found.cost["steps"] is None
    assert fitted.n_parameters == 56 * (96 + 5)


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
    model = model_of(values.numpy())
    facts = model.outcome["ets"]
    assert facts["gamma_at_bound"] == (model.learned.smoothing[2] == 0).sum() >= 3
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
    with pytest.raises(CheckpointError, match="the fit was interrupted; fit it again"):
        ETS.load(tmp_path / "run")
    again, whole = model_of(values, run=tmp_path / "run"), model_of(values)
    assert torch.equal(again.learned.smoothing, whole.learned.smoothing)
    assert ETS.load(tmp_path / "run").is_fitted


@pytest.mark.parametrize(("season", "context"), [(76, 96), (70, 60)])
def test_what_is_too_short_for_the_season_is_refused(season: int, context: int) -> None:
    training = training_of(made(300).numpy(), context=context, horizon=24)
    found = f"a season of {season} steps needs 4 of them .* found 300 and {context} steps"
    with pytest.raises(TrainingError, match=found):
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
        configured(ETSConfig, wrong)
