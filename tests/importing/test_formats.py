"""A record that is exported to a format and imported again has the same states."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from powerphase.dataset import Store, open_store, verify
from powerphase.errors import CaseError, RecordError
from powerphase.grid import Grid
from powerphase.importing import import_states
from tests.importing.conftest import COLUMNS, long_table, stamps, wide_table

Export = Callable[[Store, np.ndarray, Path], Any]


def csv_long(store: Store, states: np.ndarray, folder: Path) -> Path:
    long_table(store, states).to_csv(folder / "long.csv", index=False)
    return folder / "long.csv"


def csv_wide(store: Store, states: np.ndarray, folder: Path) -> Path:
    wide_table(store, states).to_csv(folder / "wide.csv.gz", index=False)
    return folder / "wide.csv.gz"


def parquet(store: Store, states: np.ndarray, folder: Path) -> Path:
    frame = long_table(store, states).assign(time=np.repeat(stamps(store), states.shape[1]))
    frame.sample(frac=1, random_state=1).to_parquet(folder / "long.parquet")
    return folder / "long.parquet"


def frame(store: Store, states: np.ndarray, folder: Path) -> pd.DataFrame:
    return wide_table(store, states).assign(time=stamps(store)).set_index("time")


def dataset(store: Store, states: np.ndarray, folder: Path) -> xr.Dataset:
    names = ("P", "Q", "V", "theta")
    return xr.Dataset(
        {name: (("time", "bus"), states[..., k]) for k, name in enumerate(names)},
        coords={"time": store.time.astype("datetime64[ns]"), "bus": store.bus_id},
    )


def netcdf(store: Store, states: np.ndarray, folder: Path) -> Path:
    arrays = dataset(store, states, folder).rename({"P": "p_mw", "theta": "va_rad"})
    arrays.to_netcdf(folder / "states.nc", engine="h5netcdf")
    return folder / "states.nc"


def zarr_store(store: Store, states: np.ndarray, folder: Path) -> Path:
    array = dataset(store, states, folder).to_dataarray("variable").transpose("time", ...)
    array.to_dataset(name="state").to_zarr(
        folder / "states.zarr", zarr_format=3, consolidated=False
    )
    return folder / "states.zarr"


@pytest.mark.parametrize(
    "export", [csv_long, csv_wide, parquet, frame, dataset, netcdf, zarr_store]
)
def test_states_and_certificate_survive_every_format(
    export: Export, original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    source = export(original, states, tmp_path)
    zone = None if export in (csv_long, csv_wide, parquet, frame) else {"zone": "UTC"}
    store = import_states(source, tmp_path / "store", grid="ieee14", mapping=zone)
    np.testing.assert_array_equal(store.read(), original.read())
    np.testing.assert_array_equal(store.time, original.time)
    assert store.read_observed(slice(0, 9), slice(0, 9)).all()  # type: ignore[union-attr]
    assert store.kind == "simulated"
    certificate = verify(store.path)
    assert certificate.valid
    assert certificate.largest_share == verify(original.path).largest_share


def test_the_fingerprint_is_that_of_the_content(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    stores = [
        import_states(export(original, states, tmp_path), tmp_path / name, grid="ieee14")
        for name, export in (("a", csv_long), ("b", csv_wide))
    ]
    assert stores[0].manifest.fingerprint == stores[1].manifest.fingerprint
    changed = states.copy()
    changed[100, 3, 0] += 1e-3
    other = import_states(csv_long(original, changed, tmp_path), tmp_path / "c", grid="ieee14")
    assert other.manifest.fingerprint != stores[0].manifest.fingerprint


def test_a_mapping_says_units_signs_zones_and_names(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    """Local times at the end of steps, kW of generation, kVAr, kV and degrees, in words."""
    time = stamps(original).tz_convert("Europe/Berlin").tz_localize(None)
    time += pd.Timedelta(minutes=15)
    kv = np.where(original.grid.bus[:, 9] > 0, original.grid.bus[:, 9], 1.0)
    numbered = Grid(
        "named",
        original.grid.base_mva,
        np.where(np.arange(13) == 9, kv[:, None], original.grid.bus),
        original.grid.gen,
        original.grid.branch,
    )
    n_steps = len(time)
    frame = pd.DataFrame(
        {
            "Zeit": np.repeat(time.strftime("%d.%m.%Y %H:%M"), 14),
            "Station": np.tile([f"Werk {bus}" for bus in original.bus_id], n_steps),
            "Last": (states[..., 0] * 1000 + 7).ravel(),
            "Einspeisung": np.full(14 * n_steps, 7.0),
            "Blind": (-states[..., 1] * 1000).ravel(),
            "Spannung": (states[..., 2] * kv).ravel(),
            "Winkel": np.rad2deg(states[..., 3]).ravel(),
        }
    )
    file, mapping = tmp_path / "messwerte.csv", tmp_path / "mapping.toml"
    frame.to_csv(file, index=False, sep=";", decimal=",")
    names = "\n".join(f'"Werk {bus}" = "{bus}"' for bus in original.bus_id)
    mapping.write_text(
        f"""
time = "Zeit"
zone = "Europe/Berlin"
time_format = "%d.%m.%Y %H:%M"
stamp = "end"
bus = "Station"
separator = ";"
decimal = ","

[[P]]
column = "Last"
unit = "kW"
sign = "load"

[[P]]
column = "Einspeisung"
unit = "kW"
sign = "generation"

[Q]
column = "Blind"
unit = "kVAr"
sign = "generation"

[V]
column = "Spannung"
unit = "kV"

[theta]
column = "Winkel"
unit = "degree"

[buses]
{names}
"""
    )
    store = import_states(file, tmp_path / "store", grid=numbered, mapping=mapping)
    np.testing.assert_allclose(store.read(), original.read(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(store.time, original.time)


@pytest.mark.parametrize("form", ["to_long", "to_pandas", "to_xarray"])
def test_what_a_store_gives_can_be_imported_again(
    form: str, original: Store, tmp_path: Path
) -> None:
    store = import_states(getattr(original, form)(), tmp_path / "store", grid="ieee14")
    np.testing.assert_array_equal(store.read(), original.read())
    np.testing.assert_array_equal(store.time, original.time)


@pytest.mark.parametrize("nominal_kv", [110.0, {str(bus): 110.0 for bus in range(1, 15)}])
@pytest.mark.parametrize("grid", [None, "ieee14"])
def test_a_nominal_voltage_is_given_where_no_grid_states_it(
    grid: str | None, nominal_kv: Any, original: Store, table: pd.DataFrame, tmp_path: Path
) -> None:
    table["vm_kv"] = 110.0 * table.pop("vm_pu")
    mapping = {"nominal_kv": nominal_kv}
    store = import_states(table, tmp_path / "store", grid=grid, mapping=mapping)
    np.testing.assert_allclose(store.read(variable="V"), original.read(variable="V"), rtol=1e-6)


def test_without_a_grid_nothing_needs_one(
    original: Store, table: pd.DataFrame, tmp_path: Path
) -> None:
    store = import_states(table.drop(columns=["va_rad", "q_mvar"]), tmp_path / "mine")
    assert (store.kind, store.has_grid, store.manifest.grid) == ("measured", False, "mine")
    assert verify(store.path).valid
    np.testing.assert_array_equal(store.read(variable="V"), original.read(variable="V"))
    np.testing.assert_array_equal(store.read(bus=4), store.read()[:, 3])
    observed = store.read_observed(slice(0, 5), slice(0, 56))
    assert observed is not None
    np.testing.assert_array_equal(observed[0], np.tile([True, False, True, False], 14))
    with pytest.raises(Exception, match="without a grid"):
        _ = store.grid


@pytest.fixture(scope="module")
def solved_net() -> Any:
    pandapower = pytest.importorskip("pandapower")
    networks = pytest.importorskip("pandapower.networks")
    net = networks.create_cigre_network_mv(with_der="pv_wind")
    first, second = net.bus.index[-2:]
    pandapower.create_switch(net, first, pandapower.create_bus(net, net.bus.vn_kv[first]), "b")
    pandapower.create_shunt(net, second, q_mvar=-0.4, p_mw=0.1)
    return net


def test_results_of_pandapower_satisfy_its_grid(solved_net: Any, tmp_path: Path) -> None:
    """Oracle: pandapower's own power flow, with transformers, shunts and closed switches."""
    import pandapower

    tables: dict[str, list[Any]] = {}
    for scale in (1.0, 0.8, 0.6):
        net = solved_net
        net.load["scaling"] = scale
        pandapower.runpp(net, tolerance_mva=1e-10)
        for name in ("p_mw", "q_mvar", "vm_pu", "va_degree"):
            tables.setdefault(f"res_bus.{name}", []).append(net.res_bus[name].copy())
    days = {
        name: pd.DataFrame([rows[k % 3] for k in range(9 * 24)]).reset_index(drop=True)
        for name, rows in tables.items()
    }
    mapping = {"start": "2016-01-01T00:00", "step": "1h"}
    store = import_states(days, tmp_path / "store", grid=solved_net, mapping=mapping)
    assert store.kind == "simulated"
    assert verify(store.path).valid
    findings = store.manifest.recipe["segments"][0]["findings"]
    assert any("closed switches" in finding for finding in findings)
    folder = tmp_path / "results" / "res_bus"
    folder.mkdir(parents=True)
    for name, days_table in days.items():
        days_table.to_csv(folder / f"{name.partition('.')[2]}.csv", sep=";")
    from_files = import_states(folder.parent, tmp_path / "again", grid=solved_net, mapping=mapping)
    np.testing.assert_allclose(from_files.read(), store.read(), rtol=1e-6, atol=1e-7)
    with pytest.raises(RecordError, match="start"):
        import_states(days, tmp_path / "third", grid=solved_net)


def pypsa_network(original: Store, states: np.ndarray) -> SimpleNamespace:
    """The tables that PyPSA would have for IEEE 14, by its documentation."""
    grid = original.grid
    names = [f"bus {bus}" for bus in grid.bus_id]
    kv = np.full(grid.n_buses, 110.0)
    buses = pd.DataFrame({"v_nom": kv, "v_mag_pu_set": 1.02}, index=names)
    start, end = grid.branch_rows.T
    is_line = grid.branch[:, 8] == 0
    ohm = 110.0**2 / grid.base_mva
    lines = pd.DataFrame(
        {
            "bus0": np.array(names)[start[is_line]],
            "bus1": np.array(names)[end[is_line]],
            "r": grid.branch[is_line, 2] * ohm,
            "x": grid.branch[is_line, 3] * ohm,
            "b": grid.branch[is_line, 4] / ohm,
            "s_nom": 0.0,
        }
    )
    transformers = pd.DataFrame(
        {
            "bus0": np.array(names)[start[~is_line]],
            "bus1": np.array(names)[end[~is_line]],
            "x": grid.branch[~is_line, 3] * 50.0 / grid.base_mva,
            "s_nom": 50.0,
            "tap_ratio": grid.branch[~is_line, 8],
            "model": "pi",
        }
    )
    generators = pd.DataFrame(
        {
            "bus": np.array(names)[grid.generator_row],
            "control": np.where(grid.bus_type[grid.generator_row] == 3, "Slack", "PV"),
        }
    )
    loaded = np.flatnonzero(grid.bus[:, 2] > 0)
    shunt = np.flatnonzero(grid.bus[:, 5])
    series = {
        name: pd.DataFrame(factor * states[..., k], index=original.time, columns=names)
        for k, (name, factor) in enumerate(
            (("p", -1.0), ("q", -1.0), ("v_mag_pu", 1.0), ("v_ang", 1.0))
        )
    }
    return SimpleNamespace(
        name="IEEE 14",
        snapshots=pd.DatetimeIndex(original.time),
        buses=buses,
        lines=lines,
        transformers=transformers,
        generators=generators,
        loads=pd.DataFrame({"bus": np.array(names)[loaded], "p_set": grid.bus[loaded, 2]}),
        shunt_impedances=pd.DataFrame(
            {"bus": np.array(names)[shunt], "b": grid.bus[shunt, 5] / 110.0**2}
        ),
        buses_t=SimpleNamespace(**series),
    )


def test_a_network_of_pypsa_gives_grid_and_states(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    net = pypsa_network(original, states)
    store = import_states(net, tmp_path / "store", grid=net)
    np.testing.assert_array_equal(store.read(), original.read())
    assert store.kind == "simulated"  # the converted grid explains the states to rounding
    assert store.bus_names[4] == "bus 4"
    arrays: dict[str, Any] = {
        f"{table}_{name}": ((f"{table}_i",), getattr(net, table)[name].to_numpy())
        for table in ("buses", "lines", "transformers", "generators", "loads", "shunt_impedances")
        for name in getattr(net, table)
    }
    for name in ("p", "q", "v_mag_pu", "v_ang"):
        series = getattr(net.buses_t, name)
        arrays[f"buses_t_{name}"] = (("snapshots", f"buses_t_{name}_i"), series.to_numpy())
    tables = ("buses", "lines", "transformers", "generators", "loads", "shunt_impedances")
    coords = {f"{table}_i": list(map(str, getattr(net, table).index)) for table in tables}
    coords |= {f"buses_t_{n}_i": list(net.buses.index) for n in ("p", "q", "v_mag_pu", "v_ang")}
    file = tmp_path / "network.nc"
    exported = xr.Dataset(arrays, coords={**coords, "snapshots": net.snapshots})
    exported.to_netcdf(file, engine="h5netcdf")
    from_file = import_states(file, tmp_path / "again", grid=str(file))
    np.testing.assert_array_equal(from_file.read(), original.read())


def test_a_grid_must_be_one(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="int"):
        import_states(table, tmp_path / "store", grid=14)


def test_an_old_store_has_neither_mask_nor_names(original: Store) -> None:
    store = open_store(original.path)
    assert (store.kind, store.is_imported, store.has_grid) == ("simulated", False, True)
    assert store.read_observed(slice(0, 5), slice(0, 8)) is None
    assert store.bus_names == {}
    assert len(COLUMNS) == 4
