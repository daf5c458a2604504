"""NetCDF: arrays by window, scenario, step and bus, which xarray opens with their coordinates."""

import json
from collections.abc import Iterator
from pathlib import Path

import h5netcdf
import numpy as np

from powerphase.dataset.store import Store
from powerphase.exports.day import QUANTITIES, Day

AXES = ("window", "scenario", "step", "bus")
EPOCH = "seconds since 1970-01-01"
MEANINGS = {
    "p_mw": ("MW", "active power that the bus consumes, net; generation is negative"),
    "q_mvar": ("MVAr", "reactive power that the bus consumes, net"),
    "vm_pu": ("1", "voltage magnitude, as a share of the nominal voltage"),
    "va_rad": ("rad", "voltage angle"),
}


def write(file: Path, days: Iterator[Day], store: Store) -> None:
    """All windows in one file, one after the other; the values are compressed."""
    with h5netcdf.File(file, "w") as content:
        for window, day in enumerate(days):
            if window == 0:
                _create(content, day, store)
            content.resize_dimension("window", window + 1)
            content["window"][window] = day.time[0].astype(np.int64)
            content["time"][window] = day.time.astype(np.int64)
            content["weight"][window] = day.weight
            for name in QUANTITIES:
                content[name][window] = day.quantity(name)


def _create(content: h5netcdf.File, day: Day, store: Store) -> None:
    """Dimensions, coordinates and variables, which have no window yet."""
    n_steps, n_buses = len(day.time), len(store.bus_id)
    content.dimensions = {
        "window": None,
        "scenario": day.n_scenarios,
        "step": n_steps,
        "bus": n_buses,
    }
    window = content.create_variable("window", ("window",), "i8", chunks=(256,))
    time = content.create_variable("time", ("window", "step"), "i8", chunks=(1, n_steps))
    for variable, meaning in ((window, "start of the window"), (time, "start of the step")):
        variable.attrs.update(units=EPOCH, calendar="proleptic_gregorian", long_name=meaning)
    content.create_variable("scenario", ("scenario",), data=np.arange(day.n_scenarios))
    content.create_variable("bus", ("bus",), data=store.bus_id)
    weight = content.create_variable(
        "weight", ("window", "scenario"), "f8", chunks=(1, day.n_scenarios)
    )
    weight.attrs.update(units="1", long_name="probability of the scenario")
    for name in QUANTITIES:
        variable = content.create_variable(
            name,
            AXES,
            "f4",
            chunks=(1, 1, n_steps, min(n_buses, 2048)),
            compression="gzip",
            compression_opts=1,
            shuffle=True,
        )
        units, meaning = MEANINGS[name]
        variable.attrs.update(units=units, long_name=meaning, coordinates="time weight")
    content.attrs.update(Conventions="CF-1.11", powerphase=json.dumps(day.facts))
