"""Laws of every forecaster with lagged inputs: training, saving, forecasting."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ConfigError, ForecastError, TrainingError
from powerphase.models import DeepAR, TempFlow, TransformerTempFlow
from powerphase.models.framework import Forecaster, Progress, RunFolder, apply_variants
from powerphase.models.timegrad import TimeGrad
from powerphase.models.timemcl import TimeMCL
from powerphase.registry import model_class
from tests.models.recurrent.toys import CONTEXT, tiny, training_of, waves, window, windows_of
from tests.models.toys import curve_of, same_weights

MODELS = [DeepAR, TempFlow, TimeGrad, TimeMCL, TransformerTempFlow]
CASES = [
    (DeepAR, {}),
    (DeepAR, {"rank": 3}),
    (DeepAR, {"reduction": "first"}),
    (TempFlow, {}),
    (TimeGrad, {}),
    (TimeGrad, {"rows": 30}),
    (TimeMCL, {}),
    (TimeMCL, {"objective": "annealed", "cooling": 1e-4}),
    (TimeMCL, {"resamples": 5, "leak": True}),
    (TransformerTempFlow, {}),
    (TransformerTempFlow, {"decoding": "length-one"}),
]

each_model = pytest.mark.parametrize("kind", MODELS)
each_case = pytest.mark.parametrize(("kind", "changes"), CASES)


def fitted(kind: Any, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    model = kind(tiny(kind.config_type, **(changes or {})), device="cpu", **options)
    model.fit(training_of(waves()))
    return model


def odd_waves() -> np.ndarray:
    """Channels that are zero, constant, nearly zero, and zero until the horizon."""
    values = waves()
    values[:, 0], values[:, 1], values[:, 2] = 0.0, 1.05, 1e-9 * values[:, 2]
    values[:, 3] = np.where(np.arange(len(values)) % 60 < 50, 0.0, 0.3)
    return values


@each_model
def test_a_model_is_a_forecaster_that_the_command_line_knows(kind: Any) -> None:
    assert isinstance(kind(), Forecaster)
    assert model_class(kind.name) is kind


@each_case
def test_an_interrupted_training_ends_with_the_same_weights(
    kind: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == 5:
            raise Stopped

    whole = fitted(kind, changes, run=tmp_path / "whole")
    with pytest.raises(Stopped):
        fitted(kind, changes, run=tmp_path / "cut", on_progress=stop)
    cut = fitted(kind, changes, run=tmp_path / "cut")
    assert same_weights(whole.network, cut.network)
    assert curve_of(tmp_path / "whole") == curve_of(tmp_path / "cut")
    assert {"best_epoch", "validation_loss"} <= whole.outcome.keys()


@each_model
def test_a_loaded_model_forecasts_the_same_after_other_windows(kind: Any, tmp_path: Path) -> None:
    model = fitted(kind, run=tmp_path / "run")
    loaded, windows = kind.load(tmp_path / "run"), training_of(waves()).validation
    first, second = (model.predict(windows.context(number)) for number in (0, 1))
    torch.manual_seed(7)
    loaded.network.train()
    for expected, number in ((second, 1), (first, 0)):
        result = loaded.predict(windows.context(number))
        assert torch.equal(result.values, expected.values)
        assert torch.equal(result.weights, expected.weights)
    assert not torch.equal(first.values, second.values)


@each_case
def test_windows_that_are_forecast_together_are_independent(
    kind: Any, changes: dict[str, Any]
) -> None:
    model = fitted(kind, {**changes, "zero_scale": "batch"})
    context, _ = windows_of(dtype=torch.float32)
    context.past[1, :, 2] = 0.0
    together = model.predict(context)
    for number in range(3):
        alone = model.predict(window(context, number))
        torch.testing.assert_close(alone.values[0], together.values[number], rtol=1e-4, atol=1e-4)


@each_case
@pytest.mark.parametrize("block", [1, 3, 8])
def test_blocks_do_not_change_loss_or_gradient(
    kind: Any, changes: dict[str, Any], block: int
) -> None:
    result = []
    for size in (None, block):
        torch.manual_seed(1)
        config = tiny(kind.config_type, **changes)
        network = kind.network_type(config, 8, CONTEXT, 6, size).double().eval()
        loss, parts = network(*windows_of())
        loss.backward()
        result.append([loss, *parts.values(), *(weight.grad for weight in network.parameters())])
    for whole, part in zip(*result, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


@each_model
def test_paths_do_not_depend_on_how_many_run_at_once(kind: Any) -> None:
    model, (context, _) = fitted(kind), windows_of(dtype=torch.float32)
    whole = model.predict(context)
    model.network.paths_at_once = 3
    result = model.predict(context)
    torch.testing.assert_close(result.values, whole.values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.weights, whole.weights)


@each_case
@pytest.mark.parametrize("scale", [{}, {"least_scale": 1e-10, "zero_scale": "batch"}])
def test_zero_and_constant_channels_stay_finite_and_are_logged(
    kind: Any, changes: dict[str, Any], scale: dict[str, Any], tmp_path: Path
) -> None:
    train = training_of(odd_waves())
    model = kind(tiny(kind.config_type, **changes, **scale), device="cpu", run=tmp_path / "run")
    model.fit(train)
    model.predict(train.validation.context(0))
    last = RunFolder.open(tmp_path / "run").curve()[-1]
    assert 1 / 8 <= last["loss/zero channels"] <= 2 / 8
    assert last["loss/largest input"] >= 1


@each_model
def test_missing_values_stop_a_training(kind: Any) -> None:
    values = waves()
    values[:, 5] = np.nan
    with pytest.raises(TrainingError, match=r"step 1: .*loss became nan"):
        kind(tiny(kind.config_type), device="cpu").fit(training_of(values))


@each_model
def test_a_missing_value_in_a_context_raises_and_is_named(kind: Any) -> None:
    model, (context, _) = fitted(kind), windows_of(dtype=torch.float32)
    context.past[1, -2, 6] = torch.nan
    name = re.escape(context.layout.name_of(6))
    with pytest.raises(ForecastError, match=rf"window 1, channel 6: {name} is nan"):
        model.predict(context)


@each_model
def test_doubles_are_forecast_as_doubles(kind: Any) -> None:
    model, (context, _) = fitted(kind), windows_of()
    model.network.double()
    assert model.predict(context).values.dtype == torch.float64


@each_model
def test_smaller_blocks_and_batches_take_less_memory(kind: Any) -> None:
    train, sizes = training_of(waves()), []
    for batch, block in ((200, None), (200, 4), (200, 1), (8, 1)):
        model = kind(tiny(kind.config_type, training={"batch_size": batch}))
        sizes.append(model.memory_gib(train, block))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize(("kind", "changes"), [case for case in CASES if case[0] is not TimeGrad])
def test_a_step_stays_on_its_device_and_never_waits_for_it(
    kind: Any, changes: dict[str, Any]
) -> None:
    """Meta tensors have no numbers to wait for, and cannot be mixed with others.

    TimeGrad turns autocast off, which meta tensors do not support; it has another test.
    """
    config, (context, target) = tiny(kind.config_type, **changes), windows_of()
    network = kind.network_type(config, 8, CONTEXT, target.shape[1]).to("meta", torch.float64)
    inputs = [part.to("meta") for part in network.inputs(context, target)]
    loss, parts = network.losses(*inputs)
    loss.backward()
    assert {part.device.type for part in parts.values()} == {"meta"}


@pytest.mark.parametrize("kind", [model for model in MODELS if model.takes_backend])
def test_the_backend_reaches_the_network(kind: Any) -> None:
    train = training_of(waves())
    for backend in ("torch", "auto"):
        model = kind(tiny(kind.config_type, training={"batch_size": 8}), backend=backend)
        assert model.meta_network(train).backend == backend


@each_model
def test_variants_are_named(kind: Any) -> None:
    variants = kind.config_type.VARIANTS
    for word in variants:
        assert apply_variants(kind.config_type(), [word], variants).variant("ieee14") == word


@each_model
def test_an_invalid_config_raises(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"lags.*; least_scale"):
        kind.config_type(lags=(1, 1), least_scale=0.0)
    with pytest.raises(ConfigError, match="lags"):
        kind.config_type(lags=())
