"""Predictors and estimators of GluonTS."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer
from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.adapters.series import (
    LEVELS,
    LibraryModel,
    SeriesRecord,
    check_frequency,
    check_no_covariates,
    frequency_of,
)
from powerphase.errors import ConfigError, ForecastError

COVARIATES = (
    *("num_feat_dynamic_real", "num_past_feat_dynamic_real", "num_feat_dynamic_cat"),
    *("num_feat_static_real", "num_feat_static_cat"),
)


class GluonTSModel(LibraryModel):
    """A predictor, or an estimator that is trained on the record."""

    library = "gluonts"
    is_random = True
    block = 256

    def __init__(self, source: Any, levels: Sequence[float] | None, samples: int) -> None:
        super().__init__(source, getattr(source, "__init_kwargs__", {}), levels)
        self.samples = samples
        self.config["samples"] = samples
        check_no_covariates(self.name, {name: _wants(source, name) for name in COVARIATES})
        self._predictor = None if hasattr(source, "train") else source

    def fit(self, record: SeriesRecord) -> None:
        """Train an estimator on all series that vary; a predictor stays as it is."""
        length, frequency = self.source.prediction_length, getattr(self.source, "freq", None)
        if length != record.horizon:
            raise ConfigError(f"its prediction_length is {length}; the task needs {record.horizon}")
        if frequency is not None:
            check_frequency(frequency, record.time)
        if hasattr(self.source, "train"):
            self._predictor = self.source.train(_Dataset(record))

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """Its samples, or the quantiles of its distribution at the levels."""
        n_past = past.shape[1]
        entries = [_entry(k, time[:n_past], series) for k, series in enumerate(past)]
        forecasts = list(self._predict(entries))
        if len(forecasts) != len(past):
            raise ForecastError(f"it forecast {len(forecasts)} series; expected {len(past)}")
        expected = _period(time, n_past)
        for forecast in forecasts:
            if forecast.start_date != expected:
                raise ForecastError(
                    f"it forecast from {forecast.start_date!r}; expected {expected!r}"
                )
        if all(hasattr(forecast, "samples") for forecast in forecasts):
            return np.stack([forecast.samples for forecast in forecasts])
        levels = self.levels or LEVELS
        if all(hasattr(forecast, "forecast_keys") for forecast in forecasts):  # has these alone
            keys = [key for key in forecasts[0].forecast_keys if key != "mean"]
            levels = tuple(sorted(map(float, keys))) or (0.5,)
        return {q: np.stack([f.quantile(q) for f in forecasts]) for q in levels}

    def _predict(self, entries: list[dict[str, Any]]) -> Iterator[Any]:
        assert self._predictor is not None, "`fit` has trained it"
        try:
            return iter(list(self._predictor.predict(entries, num_samples=self.samples)))
        except TypeError:  # some predictors have no samples
            return iter(self._predictor.predict(entries))


class _Dataset:
    """The training record as GluonTS reads it: once for every iteration."""

    def __init__(self, record: SeriesRecord) -> None:
        self.record = record
        self._length: int | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, series in self.record:
            yield _entry(number, self.record.time, series)

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self.record)
        return self._length


def _entry(
    number: int, time: Shaped[np.ndarray, " S"], series: Float32[np.ndarray, " S"]
) -> dict[str, Any]:
    return {"item_id": str(number), "start": _period(time, 0), "target": series}


def _period(time: Shaped[np.ndarray, " S"], step: int) -> Any:
    """A step as pandas has it."""
    from pandas import Period

    return Period(time[step], freq=frequency_of(time))


def _wants(source: Any, name: str) -> bool:
    value = getattr(source, name, 0)
    return isinstance(value, int) and value > 0


def from_gluonts(
    model: Any,
    *,
    levels: Sequence[float] | None = LEVELS,
    samples: int = 100,
    **options: Any,
) -> SeriesForecaster:
    """A forecaster from a predictor or an estimator of GluonTS.

    An estimator is trained on the training record. Forecasts by samples become scenarios of equal
    weight, stored quantiles keep their own levels, and distributions are read at `levels`.

    Args:
        model: a predictor, or an estimator that is not trained; its `prediction_length` must be
            the task's horizon.
        levels: of the quantiles of forecasts that are distributions.
        samples: of each series, for models that draw.
        options: see `SeriesForecaster`.
    """
    if not hasattr(model, "prediction_length") or not (
        hasattr(model, "predict") or hasattr(model, "train")
    ):
        raise ConfigError(
            f"{type(model).__name__} is no predictor or estimator of GluonTS; give an object such "
            "as SeasonalNaivePredictor(prediction_length=96, season_length=96)"
        )
    if samples < 1:
        raise ConfigError(f"samples must be 1 or more, found {samples}")
    return SeriesForecaster(GluonTSModel(model, levels, samples), **options)
