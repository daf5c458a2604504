"""Arrays with named axes as sources: xarray, NetCDF and Zarr, with a time and a bus axis."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerphase.axes import VARIABLES
from powerphase.dataset.tables import ZONE
from powerphase.errors import RecordError
from powerphase.importing.mapping import NAMES, Column, SourceMapping
from powerphase.importing.readings import Readings
from powerphase.importing.tables import bus_name, missing_package, unchanged
from powerphase.importing.times import parse_times

VARIABLE_AXIS = "variable"
"""The axis of an array that holds several variables."""


def read_dataset(source: str | Path | Any, mapping: SourceMapping) -> Readings:
    """The readings of an xarray data set or array, or of a NetCDF file or Zarr store."""
    dataset, name = (source, "the dataset") if not isinstance(source, str | Path) else _open(source)
    variables, bus = _variables(dataset, name), mapping.bus or "bus"
    for axis in (mapping.time, bus):
        if axis not in dataset.coords:
            found = ", ".join(map(str, dataset.coords)) or "none"
            raise RecordError(
                f"{name}: no coordinate {axis!r}; it has {found}; name both in a mapping"
            )
    columns = mapping.columns or _named_columns(variables, name)
    values, in_kv = {}, False
    for variable, parts in columns.items():
        arrays = [_values(variables, part, name, mapping.time, bus) for part in parts]
        pairs = zip(arrays, parts, strict=True)
        values[variable] = np.sum([array * part.factor(variable) for array, part in pairs], axis=0)
        in_kv |= variable == "V" and parts[0].unit != "p.u."
    clock = dataset.coords[mapping.time]
    index, mapping = clock.to_index(), replace(mapping, zone=mapping.zone or clock.attrs.get(ZONE))
    time = parse_times(pd.Series(index), None, mapping, lambda row: f"{name}, step {row}")
    order = np.argsort(time, kind="stable")
    repeated = np.flatnonzero(np.diff(time[order]).astype(np.int64) == 0)
    if repeated.size:
        raise RecordError(f"{name}: {time[order][repeated[0]]} occurs twice; give each time once")
    buses = tuple(bus_name(label) for label in dataset.coords[bus].values.tolist())
    ordered = {kind: values[kind][order] for kind in VARIABLES if kind in values}
    return Readings(name, time[order], buses, ordered, in_kv)


def _open(path: str | Path) -> tuple[Any, str]:
    """The data set in a file or store, loaded, and its name."""
    try:
        import xarray
    except ImportError as error:
        raise missing_package("NetCDF and Zarr", "xarray") from error
    file = Path(path)
    try:
        if file.is_dir():
            with xarray.open_zarr(file, consolidated=False, chunks=None) as dataset:
                return dataset.load(), str(path)
        with unchanged(file), xarray.open_dataset(file) as dataset:
            return dataset.load(), str(path)
    except RecordError:
        raise
    except Exception as error:  # the engines have no common error
        reason = " ".join(str(error).split())
        raise RecordError(f"{path}: cannot be read as NetCDF or Zarr ({reason})") from error


def _variables(dataset: Any, name: str) -> dict[str, Any]:
    """The arrays by name; an array with an axis of variables is split along it."""
    if hasattr(dataset, "data_vars"):
        arrays = {str(key): array for key, array in dataset.data_vars.items()}
    else:
        arrays = {str(dataset.name or "state"): dataset}
    split: dict[str, Any] = {}
    for key, array in arrays.items():
        if VARIABLE_AXIS in array.dims:
            labels = array.coords[VARIABLE_AXIS].values.tolist()
            split |= {str(label): array.sel({VARIABLE_AXIS: label}) for label in labels}
        else:
            split[key] = array
    if not split:
        raise RecordError(f"{name}: has no arrays")
    return split


def _named_columns(variables: dict[str, Any], name: str) -> dict[str, tuple[Column, ...]]:
    """What the names of arrays say; P, Q, V and theta must state their units."""
    columns: dict[str, tuple[Column, ...]] = {
        kind: (Column(key, unit),) for key, (kind, unit) in NAMES.items() if key in variables
    }
    for kind in VARIABLES:
        if kind in variables and kind not in columns:
            unit = variables[kind].attrs.get("units")
            default = {"P": "MW", "Q": "MVAr", "V": "p.u.", "theta": "rad"}[kind]
            if unit not in (default, None):
                raise RecordError(
                    f"{name}: {kind} is in {unit!r}; name it with its unit in a mapping file"
                )
            columns[kind] = (Column(kind, default),)
    if not columns:
        raise RecordError(
            f"{name}: its arrays ({', '.join(variables)}) do not say what they are; name them "
            f"{', '.join(NAMES)}, or give a mapping file"
        )
    return columns


def _values(variables: dict[str, Any], part: Column, name: str, time: str, bus: str) -> np.ndarray:
    """The numbers of an array by time and bus."""
    if part.column not in variables:
        raise RecordError(f"{name}: no array {part.column!r}; it has {', '.join(variables)}")
    array = variables[part.column]
    if set(array.dims) != {time, bus}:
        raise RecordError(
            f"{name}: {part.column} has the axes {', '.join(map(str, array.dims))}; it needs "
            f"{time} and {bus}"
        )
    values = array.transpose(time, bus).values
    if values.dtype.kind not in "iuf":
        raise RecordError(f"{name}: {part.column} holds {values.dtype}, not numbers")
    return values.astype(np.float64)
