"""TACTiS-2 as a forecaster: training, saving, forecasting, and rejected configurations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ConfigError, TrainingError
from powerphase.models.framework import (
    Forecaster,
    Progress,
    RunFolder,
    TrainingConfig,
    apply_variants,
)
from powerphase.models.tactis import TACTiS, TactisConfig
from powerphase.registry import model_class
from tests.models.recurrent.test_models import odd_waves
from tests.models.recurrent.toys import training_of, waves, window, windows_of
from tests.models.tactis.toys import tiny
from tests.models.toys import curve_of, same_weights

CASES: list[dict[str, Any]] = [{}, {"epochs": 3, "margin_epochs": 1, "copula": True}]


def fit(changes: dict[str, Any] | None = None, **options: Any) -> TACTiS:
    model = TACTiS(tiny(**(changes or {})), device="cpu", **options)
    model.fit(training_of(waves()))
    return model


@pytest.fixture(scope="module", params=CASES, ids=["marginals", "copula"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TACTiS, Path]:
    """A trained model and its run folder."""
    run = tmp_path_factory.mktemp("tactis") / "run"
    return fit(request.param, run=run), run


def test_it_is_a_registered_forecaster() -> None:
    assert isinstance(TACTiS(), Forecaster)
    assert model_class("tactis-2") is TACTiS


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == 5:
            raise Interrupted

    changes = {"bag": 3}
    whole = fit(changes, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(changes, run=tmp_path / "cut", on_progress=stop)
    resumed = fit(changes, run=tmp_path / "cut")
    assert whole.network is not None
    assert resumed.network is not None
    assert same_weights(whole.network, resumed.network)
    assert curve_of(tmp_path / "whole") == curve_of(tmp_path / "cut")
    assert {"best_epoch", "validation_loss"} <= whole.outcome.keys()  # type: ignore[union-attr]


def test_a_loaded_model_forecasts_the_same_in_any_order(trained: tuple[Any, Path]) -> None:
    model, run = trained
    loaded: Any = TACTiS.load(run)
    windows = training_of(waves()).validation
    first, second = (model.predict(windows.context(number)) for number in (0, 1))
    torch.manual_seed(7)
    loaded.network.train()
    for expected, number in ((second, 1), (first, 0)):
        assert torch.equal(loaded.predict(windows.context(number)).values, expected.values)
    assert not torch.equal(first.values, second.values)


def test_weights_of_all_stages_are_counted_and_saved(trained: tuple[Any, Path]) -> None:
    model, run = trained
    count = sum(value.numel() for value in model.network.parameters())
    saved = TACTiS.fitted_tensors(RunFolder.open(run))
    assert model.n_parameters == sum(value.numel() for value in saved.values()) == count


def test_windows_of_one_request_are_independent() -> None:
    model, (context, _) = fit(), windows_of(dtype=torch.float32)
    together: Any = model.predict(context)
    for number in range(3):
        alone: Any = model.predict(window(context, number))
        torch.testing.assert_close(alone.values[0], together.values[number], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("least", [1e-4, 1e-8])
def test_zero_and_constant_channels_stay_finite_and_are_logged(
    least: float, tmp_path: Path
) -> None:
    train = training_of(odd_waves())
    model = TACTiS(tiny(least_scale=least), device="cpu", run=tmp_path / "run")
    model.fit(train)
    model.predict(train.validation.context(0))
    last = RunFolder.open(tmp_path / "run").curve()[-1]
    assert last["loss/constant channels"] >= (1 / 8 if least == 1e-8 else 3 / 8)
    assert last["loss/largest input"] >= 0.09 / least  # in one of three steps, 0.3


def test_missing_values_stop_a_training() -> None:
    values = waves()
    values[:, 5] = np.nan
    with pytest.raises(TrainingError, match=r"step 1\b"):
        TACTiS(tiny(), device="cpu").fit(training_of(values))


def test_a_network_in_float64_forecasts_in_float64() -> None:
    model, (context, _) = fit(), windows_of()
    assert model.network is not None
    model.network.double()
    assert model.predict(context).values.dtype == torch.float64  # type: ignore[union-attr]


def test_smaller_blocks_and_batches_take_less_memory() -> None:
    train, sizes = training_of(waves()), []
    for batch, block in ((200, None), (200, 64), (200, 8), (8, 8)):
        sizes.append(TACTiS(tiny(training={"batch_size": batch})).memory_gib(train, block))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_a_window_takes_three_times_the_memory_with_a_copula() -> None:
    train, shares = training_of(waves()), []
    for changes in CASES:
        models = [TACTiS(tiny(training={"batch_size": size}, **changes)) for size in (200, 100)]
        more, less = (model.memory_gib(train) for model in models)
        shares.append(more - less)
    assert shares[1] == pytest.approx(3.2 * shares[0], rel=0.02)


@pytest.mark.parametrize("word", [*TactisConfig.VARIANTS, "tuned-copula", "copula-short"])
def test_every_variant_reports_its_name(word: str) -> None:
    config = apply_variants(TactisConfig(), [word], TactisConfig.VARIANTS)
    assert config.variant("ieee14") == word


@pytest.mark.parametrize(
    ("training", "name"),
    [
        ({"epochs": 199}, "short"),
        ({"batches_per_epoch": 5}, "short"),
        ({"epochs": 400, "batches_per_epoch": 5}, "short"),
        ({"epochs": 300}, "custom"),
        ({"epochs": 10, "learning_rate": 1e-4}, "short-custom"),
    ],
)
def test_fewer_steps_than_the_default_make_a_short_variant(
    training: dict[str, Any], name: str
) -> None:
    budget: dict[str, Any] = {"weight_decay": 1e-8, **training}
    assert TactisConfig(training=TrainingConfig(**budget)).variant("ieee14") == name


def test_invalid_configurations_are_rejected_with_all_their_problems() -> None:
    with pytest.raises(ConfigError, match=r"bag.*width.*tail"):
        TactisConfig(bag=0, width=7, tail=0.5)
    with pytest.raises(ConfigError, match=r"copula_heads.*copula_links is 8"):
        TactisConfig(copula=True, copula_links=8, copula_heads=0)


def test_training_fits_and_draws_a_planted_marginal() -> None:
    """Unpredictable noise with two modes, 0 (40 %) and 2 (60 %)."""
    generator = np.random.default_rng(0)
    values = np.where(generator.random((400, 4)) < 0.4, 0.0, 2.0)
    values = values + 0.1 * generator.normal(size=values.shape)
    train = training_of(values)
    rate = {"learning_rate": 1e-2, "batches_per_epoch": 100, "batch_size": 16}
    model = TACTiS(tiny(1, training=rate, paths=400, encoder_layers=1), device="cpu", seed=3)
    model.fit(train)
    scenarios: Any = model.predict(train.validation.context(0))
    low = float((scenarios.values < 1.0).float().mean())
    between = float(((scenarios.values > 0.5) & (scenarios.values < 1.5)).float().mean())
    assert 0.3 < low < 0.5
    assert between < 0.1
