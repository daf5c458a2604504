"""A data set in the hands of xarray and pandas, which must show what `read` returns."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import powerphase as pp
from powerphase.axes import UNITS, VARIABLES
from powerphase.dataset import Store, static_files
from powerphase.errors import StoreError, UnknownName

HOUR = slice("2015-01-02T11:00", "2015-01-02T12:00")


@pytest.fixture(scope="module")
def store(undisturbed: Path) -> Store:
    return pp.open(undisturbed)


def test_xarray_opens_the_directory_without_a_warning(undisturbed: Path, store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = xr.open_zarr(undisturbed)
    assert data.state.dims == ("time", "channel")
    assert (data.time.values == store.time.astype("datetime64[ns]")).all()
    assert data.attrs["fingerprint"] == store.manifest.fingerprint
    np.testing.assert_array_equal(data.bus, np.repeat(store.grid.bus_id, 4))
    assert [str(name) for name in data["variable"].values[:5]] == [*VARIABLES, "P"]
    by_bus = data.state.set_index(channel=("bus", "variable")).unstack("channel")
    selected = by_bus.sel(time=slice("2015-01-02T11:00", "2015-01-02T11:45"), variable="V")
    np.testing.assert_array_equal(
        selected.sel(bus=[9, 4]), store.read(HOUR, bus=[9, 4], variable="V")
    )


def test_xarray_opens_the_grid(undisturbed: Path, store: Store) -> None:
    grid = xr.open_zarr(undisturbed, group="grid")
    assert grid.bus_id.dims == ("n_bus",)
    assert grid.sizes["n_branch"] == len(store.grid.branch)
    np.testing.assert_array_equal(grid.bus, store.grid.bus)


def test_every_array_has_named_axes(undisturbed: Path) -> None:
    root = pp.open(undisturbed).manifest.static_sha256
    names = [file.removesuffix("/zarr.json") for file in root if file.endswith("/zarr.json")]
    arrays = {name: pp.open(undisturbed).array(name) for name in names if name != "grid"}
    for name, array in arrays.items():
        axes: Any = array.metadata.to_dict()["dimension_names"]
        assert axes is not None, name
        assert len(set(axes)) == array.ndim, name
        assert None not in axes, name


def test_an_array_that_is_not_listed_has_axes_of_its_own() -> None:
    extra = {"extra/mask": (np.zeros((2, 3)), "of a test")}
    (text,) = (c for f, c in static_files(1, 1, {}, extra).items() if f == "extra/mask/zarr.json")
    assert b"mask_0" in text
    assert b"mask_1" in text


@pytest.mark.parametrize(
    "selection",
    [
        {"time": HOUR},
        {"time": "2015-01-02", "bus": 9},
        {"time": HOUR, "bus": [9, 4], "variable": "theta"},
        {"time": HOUR, "variable": ("V", "P")},
    ],
)
def test_labels_belong_to_their_values(store: Store, selection: dict[str, Any]) -> None:
    lists = {
        "time": selection["time"],
        "bus": np.atleast_1d(selection.get("bus", store.grid.bus_id)).tolist(),
        "variable": np.atleast_1d(selection.get("variable", VARIABLES)).tolist(),
    }
    values = store.read(**lists)
    array = store.to_xarray(**selection)
    assert array.dims == ("time", "bus", "variable")
    np.testing.assert_array_equal(array.values, values)
    assert array.bus.values.tolist() == lists["bus"]
    assert array["variable"].values.tolist() == lists["variable"]
    assert array.unit.values.tolist() == [UNITS[name] for name in lists["variable"]]
    long = store.to_long(**selection)
    assert len(long) == values.size
    series = long.astype({"variable": str}).set_index(["time", "bus", "variable"])["value"]
    wide = store.to_pandas(**selection)
    assert (wide.index == array.time.values).all()
    for column in wide.columns[:6]:
        bus, name = column if isinstance(column, tuple) else (selection["bus"], column)
        expected = array.sel(bus=bus, variable=name).values
        np.testing.assert_array_equal(wide[column], expected)
        np.testing.assert_array_equal(series.loc[:, bus, name], expected)


def test_no_steps_make_empty_tables(store: Store) -> None:
    nothing = slice(0, 0)
    assert store.to_pandas(time=nothing).shape == (0, 56)
    assert store.to_long(nothing).shape == (0, 4)
    assert store.to_xarray(nothing).shape == (0, 14, 4)


def test_one_bus_has_plain_columns(store: Store) -> None:
    table = store.to_pandas(bus=9, time="2015-01-02")
    assert list(table.columns) == list(VARIABLES)
    assert isinstance(table.index, pd.DatetimeIndex)
    assert table.index.tz is None
    assert str(table.index[-1]) == "2015-01-02 23:45:00"


def test_an_unknown_bus_or_variable_raises(store: Store) -> None:
    for table in (store.to_xarray, store.to_pandas, store.to_long):
        with pytest.raises(pp.PowerphaseError, match="99"):
            table(bus=[1, 99])
        with pytest.raises(UnknownName, match="W"):
            table(variable=["V", "W"])


def test_without_xarray_the_error_says_what_to_install(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(StoreError, match=r"powerphase\[xarray\]"):
        store.to_xarray(HOUR)
    assert len(store.to_pandas(time=HOUR)) == 4
