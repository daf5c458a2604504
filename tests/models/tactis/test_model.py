"""TACTiS-2 as a forecaster: training, keeping, forecasting, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ConfigError, TrainingError
from powerphase.models.framework import neural as neural_module
from powerphase.models.framework.base import Forecaster
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.training import Progress
from powerphase.models.framework.training_config import TrainingConfig
from powerphase.models.framework.variants import with_variants
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.model import TACTiS
from powerphase.registry import model_class
from tests.models.recurrent.test_models import odd_waves
from tests.models.recurrent.toys import training_of, waves, window, windows_of
from tests.models.tactis.toys import tiny
from tests.models.toys import curve_of, same_weights


def fitted(changes: dict[str, Any] | None = None, **options: Any) -> TACTiS:
    model = TACTiS(tiny(**(changes or {})), device="cpu", **options)
    model.fit(training_of(waves()))
    return model


def test_it_is_a_forecaster_that_the_command_line_knows() -> None:
    assert isinstance(TACTiS(), Forecaster)
    assert model_class("tactis-2") is TACTiS


CASES: list[dict[str, Any]] = [{}, {"epochs": 3, "margin_epochs": 1, "copula": True}]


@pytest.mark.parametrize("changes", CASES)
def test_a_training_that_is_cut_ends_with_the_same_weights(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == 5:
            raise Stopped

    changes = {"bag": 3, **changes}
    whole = fitted(changes, run=tmp_path / "whole")
    with pytest.raises(Stopped):
        fitted(changes, run=tmp_path / "cut", on_progress=stop)
    cut = fitted(changes, run=tmp_path / "cut")
    assert whole.network is not None
    assert cut.network is not None
    assert same_weights(whole.network, cut.network)
    assert curve_of(tmp_path / "whole") == curve_of(tmp_path / "cut")
    assert {"best_epoch", "validation_loss"} <= whole.outcome.keys()  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", CASES)
def test_a_loaded_model_forecasts_the_same_whatever_was_asked_before(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model: Any = fitted(changes, run=tmp_path / "run")
    loaded: Any = TACTiS.load(tmp_path / "run")
    windows = training_of(waves()).validation
    first, second = (model.predict(windows.context(number)) for number in (0, 1))
    torch.manual_seed(7)
    loaded.network.train()
    for expected, number in ((second, 1), (first, 0)):
        assert torch.equal(loaded.predict(windows.context(number)).values, expected.values)
    assert not torch.equal(first.values, second.values)


def test_weights_of_both_stages_are_counted_and_kept(tmp_path: Path) -> None:
    model: Any = fitted(CASES[1], run=tmp_path / "run")
    count = sum(one.numel() for one in model.network.parameters())
    kept = TACTiS.learned_in(RunFolder.open(tmp_path / "run"))
    assert model.n_parameters == sum(one.numel() for one in kept.values()) == count


def test_windows_that_are_asked_for_together_do_not_meet() -> None:
    model, (context, _) = fitted(), windows_of(dtype=torch.float32)
    together: Any = model.predict(context)
    for number in range(3):
        alone: Any = model.predict(window(context, number))
        torch.testing.assert_close(alone.values[0], together.values[number], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("least", [1e-4, 1e-8])
def test_zero_and_constant_channels_stay_finite_and_are_told_of(
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
    with pytest.raises(TrainingError, match=r"step 1: .*loss became nan.*; nothing is kept; lower"):
        TACTiS(tiny(), device="cpu").fit(training_of(values))


def test_doubles_are_forecast_as_doubles() -> None:
    model, (context, _) = fitted(), windows_of()
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


def test_an_open_batch_size_is_the_largest_that_fits_and_no_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = training_of(waves())
    there = TACTiS(TactisConfig(training=TrainingConfig(batch_size=64))).memory_gib(train)
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: 1.2 * there)
    model = TACTiS()
    model.settle(train)
    assert model.config.training.batch_size == 64
    assert model.variant is None


@pytest.mark.parametrize("word", TactisConfig.VARIANTS)
def test_every_variant_has_the_name_that_sets_it(word: str) -> None:
    config = with_variants(TactisConfig(), [word], TactisConfig.VARIANTS)
    assert config.variant("ieee14") == word


@pytest.mark.parametrize(
    ("training", "name"),
    [
        ({"epochs": 19}, "short"),
        ({"batches_per_epoch": 5}, "short"),
        ({"epochs": 40, "batches_per_epoch": 5}, "short"),
        ({"epochs": 30}, "custom"),
        ({"epochs": 10, "learning_rate": 1e-4}, "short-custom"),
    ],
)
def test_short_is_what_trains_less_than_the_twenty_epochs_of_the_default(
    training: dict[str, Any], name: str
) -> None:
    budget: dict[str, Any] = {"epochs": 20, "weight_decay": 1e-8, **training}
    assert TactisConfig(training=TrainingConfig(**budget)).variant("ieee14") == name


def test_odd_configurations_are_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"bag must be 1.*; width must be an even.*; tail must"):
        TactisConfig(bag=0, width=7, tail=0.5)
    with pytest.raises(ConfigError, match=r"after 20 epochs of margins and .* is 20; give more"):
        TactisConfig(copula=True)


def test_a_planted_margin_is_learned_and_drawn() -> None:
    """Noise with two humps that no context foretells: 0 or 2, one and a half times as often 2."""
    generator = np.random.default_rng(0)
    values = np.where(generator.random((400, 4)) < 0.4, 0.0, 2.0)
    values = values + 0.1 * generator.normal(size=values.shape)
    train = training_of(values)
    rate = {"learning_rate": 1e-2, "batches_per_epoch": 100, "batch_size": 16}
    model = TACTiS(tiny(1, training=rate, paths=400, encoder_layers=1), device="cpu", seed=3)
    model.fit(train)
    drawn: Any = model.predict(train.validation.context(0))
    low = float((drawn.values < 1.0).float().mean())
    between = float(((drawn.values > 0.5) & (drawn.values < 1.5)).float().mean())
    assert 0.3 < low < 0.5
    assert between < 0.1
