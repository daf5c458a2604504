"""Models of Nixtla: statsforecast, which fits every context, and neuralforecast, which trains."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from inspect import Parameter, signature
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
    is_made_by,
    require,
)
from powerphase.errors import ConfigError

INPUTS = ("X", "X_future")
"""The names of covariates in statsforecast; most models have defaults for them."""

EXOGENOUS = ("futr_exog_list", "hist_exog_list", "stat_exog_list")


class StatsForecastModel(LibraryModel):
    """A model of statsforecast, fitted to the context of each series."""

    library = "statsforecast"

    def __init__(self, model: Any, levels: Sequence[float] | None, frequency: Any = None) -> None:
        super().__init__(model, vars(model), levels)
        needed = signature(model.forecast).parameters
        check_no_covariates(
            self.name,
            {name: name in needed and needed[name].default is Parameter.empty for name in INPUTS},
        )
        self.frequency = frequency
        self._keys = None if self.levels is None else _interval_keys(self.levels)

    def fit(self, record: SeriesRecord) -> None:
        """Compare the frequency, if one was given; nothing is learned from the record."""
        if self.frequency is not None:
            check_frequency(self.frequency, record.time)

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """The ends of its prediction intervals as quantiles; its mean if none are asked for."""
        (series,) = past.astype(np.float64)
        if self._keys is None:
            return np.asarray(self.source.forecast(y=series, h=horizon)["mean"])[None]
        widths = sorted({float(key[3:]) for key in self._keys.values() if key != "mean"})
        answer = self.source.forecast(y=series, h=horizon, level=widths)
        if not answer.keys() >= set(self._keys.values()):
            raise ConfigError(
                "it has no prediction intervals; give it prediction_intervals, or levels=None for "
                "its mean"
            )
        return {level: np.asarray(answer[key])[None] for level, key in self._keys.items()}


def _interval_keys(levels: Sequence[float]) -> dict[float, str]:
    """The names of quantiles in an answer of statsforecast: ends of intervals in percent."""
    sides = {level: "lo" if level < 0.5 else "hi" for level in levels if level != 0.5}
    widths = {level: round(100 * abs(1 - 2 * level), 9) for level in sides}
    return {
        level: f"{sides[level]}-{widths[level]}" if level in sides else "mean" for level in levels
    }


class NeuralForecastModel(LibraryModel):
    """A network of neuralforecast, trained on the record."""

    library = "neuralforecast"
    is_random = True
    block = 1024

    def __init__(self, model: Any, frequency: Any = None) -> None:
        arguments = {k: v for k, v in dict(model.hparams).items() if k not in ("alias",)}
        super().__init__(model, arguments, None)
        check_no_covariates(
            self.name, {name: bool(getattr(model, name, None)) for name in EXOGENOUS}
        )
        self.frequency = frequency
        self._fitted: Any = None

    def fit(self, record: SeriesRecord) -> None:
        """Train it on all series that vary."""
        if self.frequency is not None:
            check_frequency(self.frequency, record.time)
        if self.source.h != record.horizon:
            raise ConfigError(f"its h is {self.source.h}; the task needs h={record.horizon}")
        core, frequency = require("neuralforecast", self.library), frequency_of(record.time)
        self._fitted = core.NeuralForecast(models=[deepcopy(self.source)], freq=frequency)
        self._fitted.fit(_table(record, record.time))

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """The quantiles of its loss; its single output if that is a point."""
        table = self._fitted.predict(df=_table(enumerate(past), time[: past.shape[1]]))
        alias = str(self._fitted.models[0])
        outputs = [name for name in table.columns if str(name).startswith(alias)]
        columns = {level: name for name in outputs if (level := _level(name[len(alias) :]))}
        shape = (len(past), horizon)
        if not columns:
            return table[outputs[0]].to_numpy().reshape(shape)
        return {level: table[name].to_numpy().reshape(shape) for level, name in columns.items()}


def _level(suffix: str) -> float | None:
    """The quantile level in the name of an output, such as `-lo-80` or `-median`."""
    side, _, width = suffix.removeprefix("-").partition("-")
    if side == "median":
        return 0.5
    if side not in ("lo", "hi"):
        return None
    half = float(width) / 200
    return round(0.5 - half if side == "lo" else 0.5 + half, 9)


def _table(
    series: Iterable[tuple[int, Float32[np.ndarray, " S"]]], time: Shaped[np.ndarray, " S"]
) -> Any:
    """Numbered series in Nixtla's long format."""
    from pandas import DataFrame, concat

    parts = [{"unique_id": f"{number:06}", "ds": time, "y": values} for number, values in series]
    return concat([DataFrame(part) for part in parts])


def from_nixtla(
    model: Any, *, levels: Sequence[float] | None = LEVELS, **options: Any
) -> SeriesForecaster:
    """A forecaster from a model of statsforecast or neuralforecast.

    A model of statsforecast is fitted to the context of each series, and its prediction intervals
    are asked for at the levels. A network of neuralforecast is trained on the training record, and
    returns the quantiles of its loss. A `StatsForecast` or `NeuralForecast` with one model stands
    for that model.

    Args:
        model: the model, not fitted.
        levels: of the quantiles, in pairs that are symmetric to ½; None for the mean.
        options: see `SeriesForecaster`.
    """
    frequency = None
    if hasattr(model, "models") and hasattr(model, "freq"):
        frequency = model.freq
        if len(model.models) != 1:
            raise ConfigError(f"{type(model).__name__} has {len(model.models)} models; give one")
        (model,) = model.models
    if is_made_by(model, "neuralforecast"):
        return SeriesForecaster(NeuralForecastModel(model, frequency), **options)
    if not is_made_by(model, "statsforecast") or not hasattr(model, "forecast"):
        raise ConfigError(
            f"{type(model).__name__} is no model of statsforecast or neuralforecast; give an "
            "object such as AutoTheta(season_length=96)"
        )
    return SeriesForecaster(StatsForecastModel(model, levels, frequency), **options)
