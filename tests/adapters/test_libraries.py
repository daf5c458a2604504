"""Models of the libraries themselves: a day ago is the same forecast in all of them."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import Context, Task
from powerphase.adapters import (
    SeriesForecaster,
    adapt,
    from_darts,
    from_gluonts,
    from_nixtla,
    from_sktime,
)
from powerphase.errors import ConfigError, ForecastError, PowerphaseError, TrainingError
from powerphase.models.framework import describe
from tests.adapters.test_forecaster import predict, varying

# The libraries warn of their own future, and of each other.
pytestmark = pytest.mark.filterwarnings("ignore")

DAY = 96


def library(name: str) -> Any:
    """The module, or the test is skipped where it is not installed."""
    pytest.importorskip(name.split(".")[0])
    return importlib.import_module(name)


def statsforecast_naive(season: int = DAY) -> Any:
    return library("statsforecast.models").SeasonalNaive(season_length=season)


def gluonts_naive(length: int = DAY) -> Any:
    module = library("gluonts.model.seasonal_naive")
    return module.SeasonalNaivePredictor(prediction_length=length, season_length=DAY)


def sktime_naive() -> Any:
    return library("sktime.forecasting.naive").NaiveForecaster(sp=DAY)


def darts_naive() -> Any:
    return library("darts.models").NaiveSeasonal(K=DAY)


NAIVE: dict[str, Callable[[], SeriesForecaster]] = {
    "statsforecast": lambda: from_nixtla(statsforecast_naive(), levels=None),
    "gluonts": lambda: from_gluonts(gluonts_naive()),
    "sktime": lambda: from_sktime(sktime_naive(), levels=None),
    "darts": lambda: from_darts(darts_naive()),
}


@pytest.mark.parametrize("name", NAIVE)
def test_a_day_ago_is_the_mean_in_every_library(name: str, task: Task, context: Context) -> None:
    model = NAIVE[name]()
    values = predict(model, task, context).values
    assert torch.allclose(values[:, 0], context.past[:, -DAY:], atol=1e-6)
    assert not model.failures
    description = describe(model)
    assert description.model.startswith(f"{name}-")
    assert description.config["library_version"]
    assert description.joint is False


def test_intervals_of_statsforecast_are_quantiles(task: Task, context: Context) -> None:
    scenarios = predict(from_nixtla(statsforecast_naive(), levels=(0.1, 0.5, 0.9)), task, context)
    moving = scenarios.values[0][..., varying(context)]
    assert (moving.diff(dim=0) > 0).all()
    assert torch.allclose(scenarios.values[:, 1], context.past[:, -DAY:], atol=1e-6)
    assert torch.allclose((moving[0] + moving[2]) / 2, moving[1], atol=1e-5)


def test_a_model_of_statsforecast_without_intervals_asks_for_its_mean(
    task: Task, context: Context
) -> None:
    model = library("statsforecast.models").CrostonClassic()
    with pytest.raises(ForecastError, match="prediction_intervals"):
        predict(from_nixtla(model), task, context)
    assert predict(from_nixtla(model, levels=None), task, context).values.shape[1] == 1


def test_forecasts_of_sktime_have_the_levels_that_were_asked_for(
    task: Task, context: Context
) -> None:
    theta = library("sktime.forecasting.theta").ThetaForecaster(deseasonalize=False)
    values = predict(from_sktime(theta, levels=(0.25, 0.75), on="factors"), task, context).values
    assert values.shape[1] == 100
    croston = library("sktime.forecasting.croston").Croston()
    with pytest.raises(ConfigError, match="levels=None"):
        from_sktime(croston)


def test_an_estimator_of_gluonts_is_trained(
    task: Task, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # lightning writes its checkpoints here
    estimator = library("gluonts.torch").SimpleFeedForwardEstimator(
        prediction_length=DAY,
        context_length=2 * DAY,
        num_batches_per_epoch=2,
        trainer_kwargs=QUIET | {"max_epochs": 1},
    )
    scenarios = predict(from_gluonts(estimator, samples=7, on="factors"), task, context)
    assert scenarios.values.shape[1] == 100
    again = predict(from_gluonts(gluonts_draws(), samples=7), task, context).values
    assert again.shape[1] == 7
    assert torch.equal(
        again, predict(from_gluonts(gluonts_draws(), samples=7), task, context).values
    )


QUIET: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}


def gluonts_draws() -> Any:
    class Draws(library("gluonts.model.predictor").RepresentablePredictor):  # type: ignore[misc]
        """Random samples, as any model that draws returns them."""

        def predict(self, dataset: Any, num_samples: int) -> Any:
            forecasts = library("gluonts.model.forecast")
            for entry in dataset:
                samples = np.random.standard_normal((num_samples, DAY))  # noqa: NPY002
                start = entry["start"] + len(entry["target"])
                yield forecasts.SampleForecast(samples, start_date=start)

    return Draws(prediction_length=DAY)


def test_stored_quantiles_of_gluonts_keep_their_levels(task: Task, context: Context) -> None:
    class Quantiles(library("gluonts.model.predictor").RepresentablePredictor):  # type: ignore[misc]
        def predict(self, dataset: Any) -> Any:
            forecasts = library("gluonts.model.forecast")
            for entry in dataset:
                arrays = np.stack([np.zeros(DAY), np.ones(DAY)])
                start = entry["start"] + len(entry["target"])
                yield forecasts.QuantileForecast(
                    arrays, start_date=start, forecast_keys=["0.2", "0.6"]
                )

    scenarios = predict(from_gluonts(Quantiles(prediction_length=DAY)), task, context)
    assert scenarios.weights[0, :, 0].tolist() == pytest.approx([0.4, 0.6])


def test_a_network_of_neuralforecast_is_trained(
    task: Task, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models, losses = library("neuralforecast.models"), library("neuralforecast.losses.pytorch")
    options = QUIET | {"enable_checkpointing": False, "enable_model_summary": False}
    network = models.DLinear(
        h=DAY, input_size=2 * DAY, max_steps=2, loss=losses.MQLoss(level=[50, 80]), **options
    )
    model = from_nixtla(network, on="factors", rearrange=True)
    assert predict(model, task, context).values.shape[1] == 100
    assert model._runner is not None and model._runner._form is not None  # noqa: PT018
    assert model._runner._form.levels == (0.1, 0.25, 0.5, 0.75, 0.9)
    with pytest.raises(TrainingError, match="h=96"):
        from_nixtla(models.DLinear(h=24, input_size=DAY, **options)).fit(task.training)


def test_global_models_of_darts_are_trained_and_draw_samples(task: Task, context: Context) -> None:
    models = library("darts.models")
    regression = models.LinearRegressionModel(lags=DAY, output_chunk_length=DAY)
    values = predict(from_darts(regression, on="factors"), task, context).values
    assert values.shape[1] == 100
    smoothing = models.ExponentialSmoothing(seasonal_periods=4)
    draws = [predict(from_darts(smoothing, samples=3, on="factors"), task, context) for _ in "ab"]
    assert torch.equal(draws[0].values, draws[1].values)


def darts_with_covariates() -> SeriesForecaster:
    models = library("darts.models")
    return from_darts(
        models.LinearRegressionModel(lags=2, lags_past_covariates=2, output_chunk_length=DAY)
    )


def gluonts_with_covariates() -> SeriesForecaster:
    estimator = library("gluonts.torch").DeepAREstimator
    return from_gluonts(estimator(freq="15min", prediction_length=DAY, num_feat_dynamic_real=1))


def statsforecast_with_covariates() -> SeriesForecaster:
    regression = library("sklearn.linear_model").LinearRegression()
    return from_nixtla(library("statsforecast.models").SklearnModel(regression), levels=None)


def neuralforecast_with_covariates() -> SeriesForecaster:
    network = library("neuralforecast.models").NHITS
    return from_nixtla(network(h=DAY, input_size=DAY, hist_exog_list=["price"], **QUIET))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (darts_with_covariates, "darts-linear-regression-model"),
        (gluonts_with_covariates, "gluonts-deep-ar-estimator"),
        (statsforecast_with_covariates, "statsforecast-sklearn-model"),
        (neuralforecast_with_covariates, "neuralforecast-nhits"),
    ],
)
def test_covariates_raise_with_the_name_of_the_model(
    make: Callable[[], SeriesForecaster], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*covariates"):
        make()


Change = Callable[[Any], Any]
"""What a bad model does to the values that its library answers."""


def bad_statsforecast(change: Change, on_quantiles: bool) -> SeriesForecaster:
    class Bad(library("statsforecast.models").SeasonalNaive):  # type: ignore[misc]
        def forecast(self, y: Any, h: int, **options: Any) -> Any:
            answer = super().forecast(y=y, h=h, **options)
            return {name: change(values) for name, values in answer.items()}

    return from_nixtla(Bad(season_length=DAY), levels=(0.1, 0.9) if on_quantiles else None)


def bad_gluonts(change: Change, on_quantiles: bool) -> SeriesForecaster:
    forecasts = library("gluonts.model.forecast")

    class Bad(library("gluonts.model.predictor").RepresentablePredictor):  # type: ignore[misc]
        def predict(self, dataset: Any) -> Any:
            for entry in dataset:
                start = entry["start"] + len(entry["target"])
                values = np.stack([change(np.full(DAY, value)) for value in (-1.0, 1.0)])
                keys = {"forecast_keys": ["0.1", "0.9"]}
                if on_quantiles:
                    yield forecasts.QuantileForecast(values, start_date=start, **keys)
                else:
                    yield forecasts.SampleForecast(values, start_date=start)

    return from_gluonts(Bad(prediction_length=DAY))


def bad_sktime(change: Change, on_quantiles: bool) -> SeriesForecaster:
    class Bad(library("sktime.forecasting.naive").NaiveForecaster):  # type: ignore[misc]
        def predict(self, fh: Any = None, X: Any = None) -> Any:
            return change(super().predict(fh, X))

        def predict_quantiles(self, fh: Any = None, X: Any = None, alpha: Any = None) -> Any:
            return change(super().predict_quantiles(fh, X, alpha))

    return from_sktime(Bad(sp=DAY), levels=(0.1, 0.9) if on_quantiles else None)


def bad_darts(change: Change, on_quantiles: bool) -> SeriesForecaster:
    assert not on_quantiles, "models of Darts answer samples"

    class Bad(library("darts.models").NaiveSeasonal):  # type: ignore[misc]
        def predict(self, n: int, **options: Any) -> Any:
            return change(super().predict(n, **options))

    return from_darts(Bad(K=DAY))


CHANGES: dict[str, tuple[Change, bool, str]] = {
    "length": (lambda values: values[:-1], False, "95.*96"),
    "nan": (lambda values: values * np.nan, False, "finite"),
    "quantiles": (lambda values: -values, True, "rearrange"),
}


BAD = [
    (make, kind)
    for make in (bad_statsforecast, bad_gluonts, bad_sktime, bad_darts)
    for kind, (_, on_quantiles, _) in CHANGES.items()
    if not (make is bad_darts and on_quantiles)
]


@pytest.mark.parametrize(("make", "kind"), BAD)
def test_a_bad_answer_raises_with_the_name_of_the_model_and_the_fault(
    make: Callable[[Change, bool], SeriesForecaster], kind: str, task: Task, context: Context
) -> None:
    change, on_quantiles, fact = CHANGES[kind]
    model = make(change, on_quantiles)
    with pytest.raises(ForecastError, match=f"{model.name}.*{fact}"):
        predict(model, task, context)


def test_series_without_a_forecast_raise(task: Task, context: Context) -> None:
    class Silent(library("gluonts.model.predictor").RepresentablePredictor):  # type: ignore[misc]
        def predict(self, dataset: Any) -> Any:
            return iter(())

    with pytest.raises(ForecastError, match=r"gluonts-silent.*0 series.* 1"):
        predict(from_gluonts(Silent(prediction_length=DAY)), task, context)


def test_another_horizon_or_frequency_raises(task: Task) -> None:
    with pytest.raises(TrainingError, match="prediction_length is 24"):
        from_gluonts(gluonts_naive(24)).fit(task.training)
    collection = library("statsforecast").StatsForecast([statsforecast_naive()], freq="h")
    with pytest.raises(TrainingError, match="15min"):
        from_nixtla(collection).fit(task.training)
    hourly = library("gluonts.torch").DeepAREstimator(freq="h", prediction_length=DAY)
    with pytest.raises(TrainingError, match=r"'h'.*'15min'"):
        from_gluonts(hourly).fit(task.training)
    network = library("neuralforecast.models").DLinear(h=DAY, input_size=DAY, **QUIET)
    daily = library("neuralforecast").NeuralForecast(models=[network], freq="D")
    with pytest.raises(TrainingError, match=r"'D'.*'15min'"):
        from_nixtla(daily).fit(task.training)
    right = library("statsforecast").StatsForecast([statsforecast_naive()], freq="15min")
    assert from_nixtla(right).name == "statsforecast-seasonal-naive"


def test_forecasts_of_other_steps_raise(task: Task, context: Context) -> None:
    class Late(library("gluonts.model.predictor").RepresentablePredictor):  # type: ignore[misc]
        def predict(self, dataset: Any, num_samples: int) -> Any:
            forecasts = library("gluonts.model.forecast")
            for entry in dataset:
                yield forecasts.SampleForecast(np.zeros((1, DAY)), start_date=entry["start"])

    with pytest.raises(ForecastError, match="it forecast from"):
        predict(from_gluonts(Late(prediction_length=DAY)), task, context)


@pytest.mark.parametrize("adapter", [from_nixtla, from_gluonts, from_sktime, from_darts, adapt])
@pytest.mark.parametrize("wrong", [3, "AutoTheta", object()])
def test_what_is_no_model_raises(adapter: Any, wrong: Any) -> None:
    with pytest.raises(PowerphaseError, match=type(wrong).__name__):
        adapter(wrong)


@pytest.mark.parametrize("levels", [(0.5, 0.1), (0.0, 0.5), (), (0.5, 1.0)])
def test_levels_ascend_between_0_and_1(levels: Sequence[float]) -> None:
    with pytest.raises(ConfigError, match="levels"):
        from_nixtla(statsforecast_naive(), levels=levels)


@pytest.mark.parametrize("make", [statsforecast_naive, gluonts_naive, sktime_naive, darts_naive])
def test_an_object_of_any_library_is_recognised(make: Callable[[], Any]) -> None:
    model = adapt(make(), on="factors")
    assert isinstance(model, SeriesForecaster)
    assert model.variant == "factors"
