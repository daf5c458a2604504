"""Models of Darts: local ones are fitted to each context, global ones to the training record."""

from copy import deepcopy
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer
from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.adapters.series import (
    LibraryModel,
    SeriesRecord,
    check_no_covariates,
    check_times,
    is_made_by,
    require,
    time_index,
)
from powerphase.errors import ConfigError

COVARIATES = ("lags_past_covariates", "lags_future_covariates")


class DartsModel(LibraryModel):
    """A model of Darts."""

    library = "darts"
    is_random = True

    def __init__(self, model: Any, samples: int) -> None:
        arguments = getattr(model, "model_params", {})
        super().__init__(model, arguments, None)
        check_no_covariates(
            self.name, {name: arguments.get(name) is not None for name in COVARIATES}
        )
        models = require("darts.models.forecasting.forecasting_model", self.library)
        self.is_global = isinstance(model, models.GlobalForecastingModel)
        self.samples = samples if model.supports_probabilistic_prediction else 1
        self.config["samples"] = self.samples
        self.block = 256 if self.is_global else 1
        self._fitted: Any = None

    def fit(self, record: SeriesRecord) -> None:
        """Train a global model on all series that vary."""
        if self.is_global:
            self._fitted = deepcopy(self.source)
            self._fitted.fit([_series(series, record.time) for _, series in record])

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """Its samples, or its single forecast if it is deterministic."""
        n_past = past.shape[1]
        contexts = [_series(series, time[:n_past]) for series in past]
        draw = {"num_samples": self.samples, "random_state": int(np.random.randint(2**31))}  # noqa: NPY002
        if self.is_global:
            forecasts = self._fitted.predict(horizon, series=contexts, **draw)
        else:
            fitted = [self.source.untrained_model().fit(context) for context in contexts]
            forecasts = [model.predict(horizon, **draw) for model in fitted]
        for forecast in forecasts:
            check_times(forecast.time_index, time_index(time)[n_past:])
        values = [forecast.all_values(copy=False)[:, 0].T for forecast in forecasts]
        return np.stack(values)


def _series(values: Float32[np.ndarray, " S"], time: Shaped[np.ndarray, " S"]) -> Any:
    darts = require("darts", "darts")
    return darts.TimeSeries.from_times_and_values(time_index(time), values)


def from_darts(model: Any, *, samples: int = 100, **options: Any) -> SeriesForecaster:
    """A forecaster from a model of Darts.

    A local model is fitted to the context of each series, a global one to all series of the
    training record. A probabilistic model draws samples; another has one scenario, its forecast.

    Args:
        model: the model, not fitted, without covariates.
        samples: of each series, for models that draw.
        options: see `SeriesForecaster`.
    """
    if not is_made_by(model, "darts") or not hasattr(model, "untrained_model"):
        raise ConfigError(
            f"{type(model).__name__} is no model of Darts; give an object such as "
            "LinearRegressionModel(lags=672, output_chunk_length=96, likelihood='quantile')"
        )
    if samples < 1:
        raise ConfigError(f"samples must be 1 or more, found {samples}")
    return SeriesForecaster(DartsModel(model, samples), **options)
