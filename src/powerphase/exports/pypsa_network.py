"""PyPSA: a stochastic network for each window, as the netCDF files from which PyPSA reads networks.

The network is complete: buses, lines, transformers, shunts, generators and loads of the case file.
Only the loads differ between scenarios. Generators have their limits but no schedule, since a
schedule would fix what an optimisation is to choose, and no costs, which a case file's matrices of
buses and generators do not have. Only the slack generator has its kind of control: PyPSA 1.4 cannot
optimise a stochastic network in which others hold a voltage, so `n.meta` lists them.

The file is written with xarray in the layout of PyPSA 1, so that PyPSA itself, which needs pandas
3, need not be installed here; the tests read it with PyPSA.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from powerphase.dataset.store import Store
from powerphase.exports.day import Day
from powerphase.exports.elements import Elements
from powerphase.grid.case import PMAX, PMIN, PV, SLACK, VMAX, VMIN
from powerphase.grid.limits import limits_of
from powerphase.resolution import HOUR_S

LAYOUT_VERSION = "1.4.0"
"""The version of PyPSA whose layout the files have."""

UNLIMITED_MVA = 1e5
"""`s_nom` of a branch without a rating: five times the largest rating of any catalogued grid."""

Static = dict[str, dict[str, Any]]
"""Attributes of each component, by the name of its list; `name` has the names."""


def write(folder: Path, days: Iterator[Day], store: Store) -> None:
    """A file `2016-07-01T0000.nc` for each window."""
    elements = Elements(store)
    static = _static(elements)
    folder.mkdir(parents=True)
    for day in days:
        content = _network(day, elements, static)
        content.to_netcdf(folder / f"{day.name}.nc", engine="h5netcdf", encoding=_encoding(content))


def _network(day: Day, elements: Elements, static: Static) -> xr.Dataset:
    p_mw, q_mvar = day.quantity("p_mw"), day.quantity("q_mvar")
    rows = elements.load_rows(p_mw, q_mvar)
    names = _names(elements.grid.bus_id[rows])
    power = [elements.split(*state) for state in zip(p_mw, q_mvar, strict=True)]
    # Not plain numbers: PyPSA would mix them up with buses and units of the same name.
    scenarios = _text(f"scenario_{number:04}" for number in range(day.n_scenarios))
    content = xr.Dataset(coords={"scenario": scenarios})
    content.attrs.update(_attributes(day, elements))
    content["scenario_weight"] = ("scenario", day.weight)
    content["snapshots_snapshot"] = ("snapshots", day.time.astype("datetime64[ns]"))
    for name in ("objective", "stores", "generators"):
        hours = np.full(len(day.time), day.step_s / HOUR_S)
        content[f"snapshots_{name}"] = ("snapshots", hours)
    content.coords["snapshots"] = np.arange(len(day.time))
    loads = {"name": names, "bus": names}
    for component, attributes in {**static, "loads": loads}.items():
        _add_component(content, component, attributes, day.n_scenarios)
    for attribute, kind in (("p_set", "load_p"), ("q_set", "load_q")):
        axis, variable = f"loads_t_{attribute}_i", f"loads_t_{attribute}"
        content.coords[axis] = names
        values = np.stack([getattr(part, kind)[:, rows] for part in power], axis=1)
        content[variable] = (("snapshots", "scenario", axis), values)
    return content


def _add_component(
    content: xr.Dataset, component: str, attributes: dict[str, Any], n_scenarios: int
) -> None:
    """The attributes of a component, which are the same in all scenarios."""
    axis = f"{component}_i"
    names = attributes["name"]
    if not len(names):
        return
    content.coords[axis] = names
    for attribute, values in attributes.items():
        if attribute != "name":
            same = np.broadcast_to(np.asarray(values), (n_scenarios, len(names)))
            content[f"{component}_{attribute}"] = (("scenario", axis), same)


def _static(elements: Elements) -> Static:
    """Everything but the loads."""
    lines, transformers = _branches(elements)
    return {
        "carriers": {"name": _text(["AC"])},
        "buses": _buses(elements),
        "generators": _generators(elements),
        "lines": lines,
        "transformers": transformers,
        "shunt_impedances": _shunts(elements),
    }


def _buses(elements: Elements) -> dict[str, Any]:
    grid = elements.grid
    return {
        "name": _names(grid.bus_id),
        "v_nom": elements.base_kv,
        "v_mag_pu_set": np.where(elements.has_unit, elements.setpoint_pu, 1.0),
        "v_mag_pu_min": grid.bus[:, VMIN],
        "v_mag_pu_max": grid.bus[:, VMAX],
    }


def _generators(elements: Elements) -> dict[str, Any]:
    grid, unit = elements.grid, elements.unit
    is_slack = grid.bus_type[elements.unit_row] == SLACK
    capacity = np.maximum(unit[:, PMAX], 0.0)
    lowest = np.divide(unit[:, PMIN], capacity, out=np.zeros(len(unit)), where=capacity > 0)
    return {
        "name": _text(elements.unit_name),
        "bus": _names(grid.bus_id[elements.unit_row]),
        "control": np.where(is_slack, "Slack", "PQ").astype(object),
        "p_nom": capacity,
        "p_min_pu": lowest,
    }


def _branches(elements: Elements) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lines and transformers: branches that change voltage or angle are transformers."""
    grid, circuit = elements.grid, elements.grid.circuit
    kv = elements.base_kv[circuit.ends]
    is_line = (circuit.ratio == 1) & (circuit.shift_rad == 0) & (kv[:, 0] == kv[:, 1])
    rating = limits_of(grid).rating_mva
    s_nom = np.where(np.isfinite(rating), rating, UNLIMITED_MVA)
    ends = _names(grid.bus_id[circuit.ends])
    ohm = kv[:, 0] ** 2 / circuit.base_mva
    common = {"name": _text(circuit.name), "bus0": ends[:, 0], "bus1": ends[:, 1], "s_nom": s_nom}
    impedance = {"r": circuit.r_pu, "x": circuit.x_pu}
    line = {**{name: values * ohm for name, values in impedance.items()}, "b": circuit.b_pu / ohm}
    own_base = s_nom / circuit.base_mva
    transformer = {
        **{name: values * own_base for name, values in impedance.items()},
        "b": circuit.b_pu / own_base,
        "tap_ratio": circuit.ratio,
        "phase_shift": np.rad2deg(circuit.shift_rad),
        "model": np.full(len(ends), "pi", dtype=object),
    }
    return (
        {name: values[is_line] for name, values in {**common, **line}.items()},
        {name: values[~is_line] for name, values in {**common, **transformer}.items()},
    )


def _shunts(elements: Elements) -> dict[str, Any]:
    grid, admittance = elements.grid, elements.grid.circuit.shunt_pu
    rows = np.flatnonzero(admittance)
    siemens = grid.base_mva / elements.base_kv[rows] ** 2
    names = _names(grid.bus_id[rows])
    return {
        "name": names,
        "bus": names,
        "g": admittance.real[rows] * siemens,
        "b": admittance.imag[rows] * siemens,
    }


def _attributes(day: Day, elements: Elements) -> dict[str, Any]:
    """What PyPSA keeps of a network as a whole; `n.meta` has the facts and the PV generators."""
    is_pv = elements.grid.bus_type[elements.unit_row] == PV
    pv = [name for name, holds in zip(elements.unit_name, is_pv.tolist(), strict=True) if holds]
    return {
        "network_name": f"{day.facts['grid']} {day.start}",
        "network_pypsa_version": LAYOUT_VERSION,
        "meta": json.dumps({"powerphase": day.facts, "pv_generators": pv}),
        "crs": "{}",
    }


def _encoding(content: xr.Dataset) -> dict[str, dict[str, Any]]:
    numeric = (str(name) for name, values in content.data_vars.items() if values.dtype.kind == "f")
    return {name: {"zlib": True, "complevel": 1, "shuffle": True} for name in numeric}


def _names(bus_id: np.ndarray) -> np.ndarray:
    """Bus numbers as the names of components."""
    return bus_id.astype(str).astype(object)


def _text(words: Any) -> np.ndarray:
    return np.array(list(words), dtype=object)
