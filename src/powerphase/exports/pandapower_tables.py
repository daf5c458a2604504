"""pandapower: a CSV table for each element and variable, as its time-series controllers take them.

Columns are bus numbers, and rows scenario and time step. The table of one scenario, `frame.loc[3]`,
goes into `DFData`. There is one load, one generator, one static generator or one external grid at a
bus, with the total of the bus.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from powerphase.dataset.store import Store
from powerphase.exports.day import Day
from powerphase.exports.elements import BusPower, Elements
from powerphase.grid.case import PQ, PV, SLACK


def write(folder: Path, days: Iterator[Day], store: Store) -> None:
    """A folder for each window, with the tables, `weights.csv` and `time.csv`."""
    elements = Elements(store)
    for day in days:
        target = folder / day.name
        target.mkdir(parents=True)
        _write_day(target, day, elements)
        weights = pd.Series(day.weight, name="weight").rename_axis("scenario")
        weights.to_csv(target / "weights.csv")
        pd.Series(day.time, name="time").rename_axis("time_step").to_csv(target / "time.csv")


def _write_day(folder: Path, day: Day, elements: Elements) -> None:
    """The tables of one window; a scenario at a time is split and appended."""
    p_mw, q_mvar = day.quantity("p_mw"), day.quantity("q_mvar")
    loads, grid = elements.load_rows(p_mw, q_mvar), elements.grid
    for scenario in range(day.n_scenarios):
        power = elements.split(p_mw[scenario], q_mvar[scenario])
        vm_pu, va_rad = (day.quantity(name)[scenario] for name in ("vm_pu", "va_rad"))
        for name, (values, rows) in _tables(power, vm_pu, va_rad, elements, loads).items():
            if len(rows):
                table = _table(values[:, rows], grid.bus_id[rows], scenario)
                first = scenario == 0
                table.to_csv(folder / f"{name}.csv", mode="w" if first else "a", header=first)


def _tables(
    power: BusPower,
    vm_pu: np.ndarray,
    va_rad: np.ndarray,
    elements: Elements,
    loads: np.ndarray,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values at all buses, and the buses that the table has, for each element and variable."""
    grid = elements.grid
    pv, slack = (np.flatnonzero(grid.bus_type == kind) for kind in (PV, SLACK))
    static = np.flatnonzero(elements.has_unit & (grid.bus_type == PQ))
    return {
        "load.p_mw": (power.load_p, loads),
        "load.q_mvar": (power.load_q, loads),
        "gen.p_mw": (power.generation_p, pv),
        "gen.vm_pu": (vm_pu, pv),
        "sgen.p_mw": (power.generation_p, static),
        "sgen.q_mvar": (power.generation_q, static),
        "ext_grid.vm_pu": (vm_pu, slack),
        "ext_grid.va_degree": (np.rad2deg(va_rad), slack),
    }


def _table(values: np.ndarray, bus_id: np.ndarray, scenario: int) -> pd.DataFrame:
    steps = [np.full(len(values), scenario), np.arange(len(values))]
    index = pd.MultiIndex.from_arrays(steps, names=["scenario", "time_step"])
    return pd.DataFrame(values.astype(np.float32), index=index, columns=bus_id)
