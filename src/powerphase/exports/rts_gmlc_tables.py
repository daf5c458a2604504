"""RTS-GMLC tables, from which Prescient and Egret read a grid and its time series.

The format knows one future, so there is a folder for each window and scenario. It knows loads by
area only, so each bus is an area of its own. Costs, heat rates and ramp limits are not in a case
file's matrices of buses and generators: fuel is free and ramps are unlimited until `gen.csv` says
otherwise.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerphase.dataset.store import Store
from powerphase.errors import ExportError
from powerphase.exports.day import Day
from powerphase.exports.elements import Elements
from powerphase.grid.case import (
    BR_B,
    BR_R,
    BR_X,
    PMAX,
    PMIN,
    PQ,
    PV,
    QMAX,
    QMIN,
    RATE_A,
    RATE_B,
    RATE_C,
    SLACK,
    TAP,
    UNLIMITED_MVA,
)
from powerphase.resolution import HOUR_S

BASE_MVA = 100.0
"""The base of impedances, which readers of the format assume."""

SIMULATIONS = ("DAY_AHEAD", "REAL_TIME")
"""The day ahead has hourly means, real time the steps of the scenario."""

SERIES = "timeseries_data_files"


def write(folder: Path, days: Iterator[Day], store: Store) -> None:
    """Folders `2016-07-01T0000/scenario_000` with all tables, and `weights.csv` above them."""
    elements = Elements(store)
    _check_grid(elements)
    tables = {"branch": _branches(elements), "gen": _generators(elements)}
    for day in days:
        _check_hours(day)
        target = folder / day.name
        target.mkdir(parents=True)
        weights = pd.Series(day.weight, name="weight").rename_axis("scenario")
        weights.to_csv(target / "weights.csv")
        for scenario in range(day.n_scenarios):
            path = target / f"scenario_{scenario:03}"
            _write_scenario(path, day, scenario, elements, tables)


def _check_grid(elements: Elements) -> None:
    shifted = np.flatnonzero(elements.grid.circuit.shift_rad)
    if shifted.size:
        name = elements.grid.circuit.name[shifted[0]]
        raise ExportError(
            f"{len(shifted)} transformers of {elements.grid.name} shift the phase (first: {name}), "
            "which RTS-GMLC tables cannot express; choose another format, such as pypsa"
        )


def _check_hours(day: Day) -> None:
    per_hour = HOUR_S // day.step_s
    if len(day.time) % per_hour or not day.start.endswith(":00"):
        raise ExportError(
            f"the window from {day.start} has {len(day.time)} steps; RTS-GMLC tables need whole "
            "hours"
        )


def _write_scenario(
    path: Path, day: Day, scenario: int, elements: Elements, tables: dict[str, pd.DataFrame]
) -> None:
    state = (day.quantity(name)[scenario] for name in ("p_mw", "q_mvar"))
    power = elements.split(*state)
    consumes = np.flatnonzero((power.load_p != 0).any(axis=0))
    (path / SERIES).mkdir(parents=True)
    bus = _buses(elements, power.load_p.mean(axis=0), power.load_q.mean(axis=0))
    for name, table in {"bus": bus, **tables, "simulation_objects": _simulation(day)}.items():
        table.to_csv(path / f"{name}.csv", index=False)
    names = elements.grid.bus_id[consumes]
    for simulation in SIMULATIONS:
        series = _series(day, power.load_p[:, consumes], names, simulation)
        series.to_csv(path / SERIES / f"{simulation}_load.csv", index=False)
    _pointers(names).to_csv(path / "timeseries_pointers.csv", index=False)


def _buses(elements: Elements, mean_p: np.ndarray, mean_q: np.ndarray) -> pd.DataFrame:
    """Loads are the means of the scenario; a load without P has no row in time series, nor Q."""
    grid = elements.grid
    kind = {PQ: "PQ", PV: "PV", SLACK: "Ref"}
    has_p = mean_p != 0
    shunt = grid.circuit.shunt_pu * grid.base_mva
    return pd.DataFrame(
        {
            "Bus ID": grid.bus_id,
            "Bus Name": grid.bus_id,
            "BaseKV": elements.base_kv,
            "Bus Type": [kind[code] for code in grid.bus_type.tolist()],
            "MW Load": mean_p,
            "MVAR Load": np.where(has_p, mean_q, 0.0),
            "V Mag": np.where(elements.has_unit, elements.setpoint_pu, 1.0),
            "V Angle": 0.0,
            "MW Shunt G": shunt.real,
            "MVAR Shunt B": shunt.imag,
            "Area": grid.bus_id,
            "Zone": 1,
        }
    )


def _branches(elements: Elements) -> pd.DataFrame:
    grid = elements.grid
    branch = grid.branch[grid.branch_on]
    ends = grid.bus_id[grid.circuit.ends]
    to_base = BASE_MVA / grid.base_mva
    rating = {"Cont Rating": RATE_A, "LTE Rating": RATE_B, "STE Rating": RATE_C}
    return pd.DataFrame(
        {
            "UID": grid.circuit.name,
            "From Bus": ends[:, 0],
            "To Bus": ends[:, 1],
            "R": branch[:, BR_R] * to_base,
            "X": branch[:, BR_X] * to_base,
            "B": branch[:, BR_B] / to_base,
            **{name: _rating(branch[:, column]) for name, column in rating.items()},
            "Tr Ratio": branch[:, TAP],
        }
    )


def _rating(mva: np.ndarray) -> np.ndarray:
    """0 means none."""
    return np.where(mva < UNLIMITED_MVA, mva, 0.0)


def _generators(elements: Elements) -> pd.DataFrame:
    unit, grid = elements.unit, elements.grid
    capacity = np.maximum(unit[:, PMAX], 0.0)
    states = ("Hot", "Warm", "Cold")
    unknown = [f"Start Time {state} Hr" for state in states]
    unknown += [f"Start Heat {state} MBTU" for state in states]
    free = ("Min Up Time Hr", "Min Down Time Hr", "Fuel Price $/MMBTU", "Non Fuel Start Cost $")
    return pd.DataFrame(
        {
            "GEN UID": elements.unit_name,
            "Bus ID": grid.bus_id[elements.unit_row],
            "Unit Type": "STEAM",
            "Fuel": "unknown",
            "MW Inj": 0.0,
            "MVAR Inj": 0.0,
            "PMin MW": unit[:, PMIN],
            "PMax MW": capacity,
            "QMin MVAR": unit[:, QMIN],
            "QMax MVAR": unit[:, QMAX],
            "Ramp Rate MW/Min": capacity,
            **dict.fromkeys(free, 0.0),
            **dict.fromkeys(unknown, np.nan),
        }
    )


def _series(day: Day, load_p: np.ndarray, names: np.ndarray, simulation: str) -> pd.DataFrame:
    """A column of MW for each load; the first columns are date and period of the day."""
    seconds = _resolution_s(day, simulation)
    every = seconds // day.step_s
    time = day.time[::every]
    date = time.astype("datetime64[D]")
    calendar = pd.DatetimeIndex(date)
    keys: dict[str, Any] = {
        "Year": calendar.year,
        "Month": calendar.month,
        "Day": calendar.day,
        "Period": (time - date).astype(int) // seconds + 1,
    }
    mean = load_p.reshape(len(time), every, -1).mean(axis=1).astype(np.float32)
    return pd.concat([pd.DataFrame(keys), pd.DataFrame(mean, columns=names)], axis=1)


def _resolution_s(day: Day, simulation: str) -> int:
    return HOUR_S if simulation == "DAY_AHEAD" else day.step_s


def _pointers(names: np.ndarray) -> pd.DataFrame:
    rows = [
        (simulation, "Area", name, "MW Load", f"{SERIES}/{simulation}_load.csv")
        for simulation in SIMULATIONS
        for name in names
    ]
    columns = ["Simulation", "Category", "Object", "Parameter", "Data File"]
    return pd.DataFrame(rows, columns=columns)


def _simulation(day: Day) -> pd.DataFrame:
    end = day.time[-1] + np.timedelta64(day.step_s, "s")
    columns = {}
    for simulation in SIMULATIONS:
        seconds = _resolution_s(day, simulation)
        n_periods = len(day.time) * day.step_s // seconds
        columns[simulation] = [n_periods, seconds, str(day.time[0]), str(end), 0, seconds]
    names = ("Periods_per_Step", "Period_Resolution", "Date_From", "Date_To")
    more = ("Look_Ahead_Periods_per_Step", "Look_Ahead_Resolution")
    return pd.DataFrame({"Simulation_Parameters": [*names, *more], **columns})
