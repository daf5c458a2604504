"""The forecasts in OPSD's file count as issued when they had to be published."""

from pathlib import Path

import numpy as np
import pytest

from powerphase.clock import berlin_time
from powerphase.errors import SignalError
from powerphase.synthesis import (
    FORECAST_COLUMNS,
    TIME_COLUMN,
    read_opsd_forecasts,
)

STEP, DAY = np.timedelta64(900, "s"), np.timedelta64(1, "D")
N_STEPS = 4 * 96
START = np.datetime64("2015-03-27T00:00:00", "s")
"""Two days later, clocks in Berlin skip an hour."""


def write(path: Path, cells: dict[int, str], column: str = FORECAST_COLUMNS["load"]) -> Path:
    rows = [f"{START + k * STEP}Z,{cells.get(k, str(50_000 + k))},{k}\n" for k in range(N_STEPS)]
    path.write_text(f"{TIME_COLUMN},{column},other\n" + "".join(rows))
    return path


def test_a_value_is_issued_at_ten_in_berlin_on_the_day_before(tmp_path: Path) -> None:
    (series,) = read_opsd_forecasts(write(tmp_path / "opsd.csv", {})).series
    assert (series.name, series.unit) == ("load", "MW")
    wall = berlin_time(series.issued)
    assert (wall - wall.astype("datetime64[D]") == np.timedelta64(10, "h")).all()
    ahead = berlin_time(series.valid).astype("datetime64[D]") - wall.astype("datetime64[D]")
    assert (ahead == DAY).all()
    assert (series.values == 50_000 + np.arange(N_STEPS)).all()


def test_missing_values_are_left_out(tmp_path: Path) -> None:
    table = read_opsd_forecasts(write(tmp_path / "opsd.csv", {5: "", 7: "nan"}))
    (series,) = table.series
    assert len(series.values) == N_STEPS - 2
    origin = np.asarray(START + STEP)
    seen = table.seen_from(origin, START + np.arange(4, 9) * STEP)
    assert np.isnan(seen.values[:, 0]).tolist() == [False, True, False, True, False]


def test_a_day_from_midnight_utc_was_not_complete_at_midnight(tmp_path: Path) -> None:
    """Its last hour belongs to the next day in Berlin, whose forecast was issued in between."""
    table = read_opsd_forecasts(write(tmp_path / "opsd.csv", {}))
    for hour, missing in ((0, 4), (22, 0)):
        origin = np.asarray(START + np.timedelta64(hour, "h"))
        seen = table.seen_from(origin, origin + np.arange(96) * STEP)
        assert np.isnan(seen.values).sum() == missing


@pytest.mark.parametrize(
    ("cells", "column"),
    [({3: "many"}, None), ({3: "-1"}, None), ({3: "inf"}, None), ({}, "DE_load_forecast")],
)
def test_a_file_without_sound_forecasts_is_rejected(
    tmp_path: Path, cells: dict[int, str], column: str | None
) -> None:
    file = write(tmp_path / "opsd.csv", cells, column or FORECAST_COLUMNS["load"])
    with pytest.raises(SignalError, match=FORECAST_COLUMNS["load"]):
        read_opsd_forecasts(file)
