"""Forecasters of sktime."""

from collections.abc import Sequence
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer
from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.adapters.series import (
    LEVELS,
    LibraryModel,
    check_times,
    is_made_by,
    time_index,
)
from powerphase.errors import ConfigError


class SktimeModel(LibraryModel):
    """A forecaster of sktime, fitted to the context of each series."""

    library = "sktime"
    is_random = True

    def __init__(self, forecaster: Any, levels: Sequence[float] | None) -> None:
        if levels is not None and not forecaster.get_tag("capability:pred_int", False):
            raise ConfigError(
                f"sktime's {type(forecaster).__name__} has no prediction intervals; wrap it in one "
                "that makes them, such as ConformalIntervals, or give levels=None for its mean"
            )
        super().__init__(forecaster, forecaster.get_params(deep=False), levels)

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """Its quantiles at the levels, or its mean if none are asked for."""
        index, n_past = time_index(time), past.shape[1]
        (series,) = past.astype(np.float64)
        steps = np.arange(1, horizon + 1)
        with catch_warnings():  # about what forecasters will remember, for every one that is made
            filterwarnings("ignore", ".*remember_data", FutureWarning)
            fitted = self.source.clone().fit(_series(series, index[:n_past]), fh=steps)
            if self.levels is None:
                mean = fitted.predict(steps)
                check_times(mean.index, index[n_past:])
                return mean.to_numpy()[None]
            table = fitted.predict_quantiles(steps, alpha=list(self.levels))
        check_times(table.index, index[n_past:])
        return {level: table.iloc[:, k].to_numpy()[None] for k, level in enumerate(self.levels)}


def _series(values: np.ndarray, index: Any) -> Any:
    from pandas import Series

    return Series(values, index=index)


def from_sktime(
    forecaster: Any, *, levels: Sequence[float] | None = LEVELS, **options: Any
) -> SeriesForecaster:
    """A forecaster from one of sktime, which is fitted to the context of each series.

    Args:
        forecaster: the forecaster, not fitted, without exogenous data.
        levels: of the quantiles; None for the mean.
        options: see `SeriesForecaster`.
    """
    if not is_made_by(forecaster, "sktime") or not hasattr(forecaster, "get_tag"):
        raise ConfigError(
            f"{type(forecaster).__name__} is no forecaster of sktime; give an object such as "
            "ThetaForecaster(sp=96)"
        )
    return SeriesForecaster(SktimeModel(forecaster, levels), **options)
