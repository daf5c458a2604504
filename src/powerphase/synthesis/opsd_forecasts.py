"""The day-ahead forecasts in Open Power System Data's file, which has no times of issue.

The file repeats what was published on ENTSO-E's Transparency Platform. A day-ahead forecast of the
load must be published two hours before the day-ahead market closes at noon (Regulation (EU)
543/2013, article 6), so a value counts as issued at 10:00 in Berlin on the day before. Updates may
have been published later; the file has the last one. Only the load of Germany is read: release
2020-10-06 has no forecast of its sun or wind.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from powerphase.clock import GERMANY, berlin_time
from powerphase.issued import DAY, Issued, IssuedSeries
from powerphase.synthesis.signals import read_column
from powerphase.synthesis.sources import opsd_file

FORECAST_COLUMNS = {"load": "DE_load_forecast_entsoe_transparency"}
"""The column of each signal's forecast [MW]."""

ISSUE_TIME = np.timedelta64(10, "h")
"""The time of day in Berlin at which the forecasts of the next day are issued."""


def load_opsd_forecasts(folder: Path | None = None) -> Issued:
    """The forecasts in the cached official file."""
    return read_opsd_forecasts(opsd_file(folder))


def read_opsd_forecasts(path: Path) -> Issued:
    """The forecasts in a file with OPSD's column names; missing values are left out."""
    series = []
    for name, column in FORECAST_COLUMNS.items():
        time, values = read_column(path, column)
        exists = np.isfinite(values)
        valid = time[exists]
        numbers = values[exists].astype(np.float32)
        series.append(IssuedSeries(name, "MW", _issue_times(valid), valid, numbers))
    return Issued(series)


def _issue_times(valid: Shaped[np.ndarray, " S"]) -> Shaped[np.ndarray, " S"]:
    """When the forecasts of these steps had been issued, UTC."""
    days, day = np.unique(berlin_time(valid).astype("datetime64[D]"), return_inverse=True)
    wall = pd.DatetimeIndex((days - DAY + ISSUE_TIME).astype("datetime64[s]"))
    utc = wall.tz_localize(GERMANY.zone).tz_convert("UTC").tz_localize(None)
    return utc.to_numpy().astype("datetime64[s]")[day]
