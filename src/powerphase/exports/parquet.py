"""Parquet: one table, long with a row for each bus and step, or wide with a row for each step."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from powerphase.dataset.store import Store
from powerphase.exports.day import QUANTITIES, Day

TIME = pa.timestamp("ms", tz="UTC")
KEYS = {"window": TIME, "scenario": pa.int32(), "weight": pa.float64(), "time": TIME}
"""The first columns: start of the window, number and probability of the scenario, start of the
step."""


def write_long(file: Path, days: Iterator[Day], store: Store) -> None:
    """A row for each window, scenario, step and bus; a row group for each scenario."""
    bus_id = store.bus_id
    columns = {**KEYS, "bus": pa.int64(), **dict.fromkeys(QUANTITIES, pa.float32())}
    _write(file, days, columns, lambda day, scenario: _long_columns(day, scenario, bus_id))


def write_wide(file: Path, days: Iterator[Day], store: Store) -> None:
    """A row for each window, scenario and step; columns such as `p_mw_59` for bus 59."""
    bus_id = store.bus_id.tolist()
    names = [f"{quantity}_{bus}" for quantity in QUANTITIES for bus in bus_id]
    columns = {**KEYS, **dict.fromkeys(names, pa.float32())}
    _write(file, days, columns, _wide_columns)


def _write(file: Path, days: Iterator[Day], columns: dict[str, Any], columns_of: Any) -> None:
    first = next(days)
    metadata = {"powerphase": json.dumps(first.facts)}
    schema = pa.schema(list(columns.items()), metadata=metadata)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for day in _chain(first, days):
            for scenario in range(day.n_scenarios):
                arrays = columns_of(day, scenario)
                writer.write_table(pa.table(arrays, schema=schema), row_group_size=2**20)


def _chain(first: Day, others: Iterator[Day]) -> Iterator[Day]:
    yield first
    del first
    yield from others


def _keys(day: Day, scenario: int, repeats: int) -> list[np.ndarray]:
    """The columns of `KEYS`; each step is repeated so often."""
    time = np.repeat(day.time, repeats).astype("datetime64[ms]")
    start = np.full(len(time), np.datetime64(day.start, "ms"))
    number = np.full(len(time), scenario, dtype=np.int32)
    return [start, number, np.full(len(time), day.weight[scenario]), time]


def _long_columns(day: Day, scenario: int, bus_id: np.ndarray) -> list[np.ndarray]:
    bus = np.tile(bus_id, len(day.time))
    quantities = [day.quantity(name)[scenario].ravel() for name in QUANTITIES]
    return [*_keys(day, scenario, len(bus_id)), bus, *quantities]


def _wide_columns(day: Day, scenario: int) -> list[np.ndarray]:
    by_bus = [np.ascontiguousarray(day.quantity(name)[scenario].T) for name in QUANTITIES]
    return [*_keys(day, scenario, 1), *(column for rows in by_bus for column in rows)]
