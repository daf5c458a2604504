"""Parquet and NetCDF: read back by pyarrow, pandas and xarray they are the forecast."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
from numpy.typing import NDArray

from powerphase import Forecast, Task, export
from tests.exports.conftest import WEIGHT

QUANTITIES = ["p_mw", "q_mvar", "vm_pu", "va_rad"]


def test_a_long_table_has_a_row_for_each_bus_and_step(
    weighted_days: Forecast, task: Task, states: NDArray[np.float32], tmp_path: Path
) -> None:
    file = export(weighted_days, task.store, to="parquet", out=tmp_path / "long.parquet")
    table = pd.read_parquet(file)
    n_windows, n_scenarios, n_steps, n_buses, _ = states.shape
    assert len(table) == n_windows * n_scenarios * n_steps * n_buses
    np.testing.assert_array_equal(table[QUANTITIES].to_numpy(), states.reshape(-1, 4))
    assert (table.bus.to_numpy().reshape(-1, n_buses) == task.layout.bus_id).all()
    np.testing.assert_array_equal(table.scenario.unique(), np.arange(n_scenarios))
    starts = table.window.drop_duplicates().dt.strftime("%Y-%m-%dT%H:%M").tolist()
    assert starts == weighted_days.facts["windows"]
    weights = table.groupby(["window", "scenario"]).weight.first()
    np.testing.assert_allclose(weights.to_numpy(), np.tile(WEIGHT, n_windows), atol=1e-7)
    assert weights.groupby("window").sum().to_numpy() == pytest.approx(1, abs=1e-12)
    one = table[(table.scenario == 1) & (table.bus == 5)]
    steps = one.time.drop_duplicates().groupby(one.window).diff().dropna()
    assert set(steps) == {pd.Timedelta("15min")}
    assert one.time.iloc[0] == one.window.iloc[0]
    assert str(one.time.dt.tz) == "UTC"


def test_a_table_says_what_it_is_of(weighted_days: Forecast, task: Task, tmp_path: Path) -> None:
    file = export(weighted_days, task.store, to="parquet", out=tmp_path / "long.parquet")
    facts = json.loads(pq.read_schema(file).metadata[b"powerphase"])
    assert facts["model"] == "weighted-days"
    assert facts["fingerprint"] == task.store.manifest.fingerprint
    assert facts["units"] == {"P": "MW", "Q": "MVAr", "V": "p.u.", "theta": "rad"}
    assert facts["solved"] is False


def test_a_wide_table_has_a_column_for_each_channel(
    weighted_days: Forecast, task: Task, states: NDArray[np.float32], tmp_path: Path
) -> None:
    file = export(weighted_days, task.store, to="parquet-wide", out=tmp_path / "wide.parquet")
    table = pd.read_parquet(file)
    assert len(table) == np.prod(states.shape[:3])
    for k, quantity in enumerate(QUANTITIES):
        names = [f"{quantity}_{bus}" for bus in task.layout.bus_id]
        flat = states[..., k].reshape(len(table), -1)
        np.testing.assert_array_equal(table[names].to_numpy(), flat)
    expected = table.p_mw_5 @ table.weight
    mean = np.tensordot(WEIGHT, states[:, :, :, 4, 0].sum(axis=(0, 2)), axes=1)
    assert expected == pytest.approx(mean, rel=1e-6)


def test_netcdf_has_labelled_axes(
    weighted_days: Forecast, task: Task, states: NDArray[np.float32], tmp_path: Path
) -> None:
    file = export(weighted_days, task.store, to="netcdf", out=tmp_path / "scenarios.nc")
    with xr.open_dataset(file, engine="h5netcdf") as content:
        for k, quantity in enumerate(QUANTITIES):
            assert content[quantity].dims == ("window", "scenario", "step", "bus")
            np.testing.assert_array_equal(content[quantity], states[..., k])
        np.testing.assert_array_equal(content.bus, task.layout.bus_id)
        assert content.weight.sum("scenario").values == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(content.weight[0], WEIGHT, atol=1e-7)
        starts = content.window.values.astype("datetime64[m]").astype(str).tolist()
        assert starts == weighted_days.facts["windows"]
        assert content.time.values[0, 1] - content.time.values[0, 0] == np.timedelta64(15, "m")
        assert content.p_mw.attrs["units"] == "MW"
        at_noon = content.vm_pu.sel(bus=5).isel(window=1, step=48)
        np.testing.assert_array_equal(at_noon, states[1, :, 48, 4, 2])


def test_one_day_of_a_forecast_is_exported_alone(
    weighted_days: Forecast, task: Task, states: NDArray[np.float32], tmp_path: Path
) -> None:
    day = weighted_days.facts["windows"][1].split("T")[0]
    out = tmp_path / "day.nc"
    with xr.open_dataset(
        export(weighted_days, task.store, to="netcdf", out=out, day=day), engine="h5netcdf"
    ) as content:
        np.testing.assert_array_equal(content.vm_pu, states[1:, ..., 2])


def test_what_happened_is_one_scenario(weighted_days: Forecast, task: Task, tmp_path: Path) -> None:
    out = tmp_path / "actual.nc"
    export(weighted_days, task.store, to="netcdf", out=out, actual=True)
    with xr.open_dataset(out, engine="h5netcdf") as content:
        assert content.weight.values.tolist() == [[1.0], [1.0]]
        for window, start in enumerate(weighted_days.facts["windows"]):
            recorded = task.store.read(start.split("T")[0], variable="P")
            np.testing.assert_array_equal(content.p_mw[window, 0], recorded)
