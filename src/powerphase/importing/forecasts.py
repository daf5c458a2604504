"""Tables of forecasts with the times at which they were issued: CSV and Parquet files.

A row has a value of one quantity for one step. Nothing is converted: a table in another unit or
with other steps than the record is refused.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from powerphase.errors import RecordError
from powerphase.importing.mapping import SourceMapping
from powerphase.importing.tables import Table, read_csv, read_parquet
from powerphase.importing.times import parse_times
from powerphase.issued import Issued, IssuedSeries
from powerphase.synthesis.signals import SIGNALS

ISSUED, VALID, NAME, UNIT, VALUE = COLUMNS = ("issued", "valid", "name", "unit", "value")
"""When a value was issued, the start of the step that it is for, of what, and in which unit."""

MW = "MW"

_MAPPING = SourceMapping(time=ISSUED, bus=NAME)


def read_forecasts(path: str | Path) -> Issued:
    """The forecasts in a CSV file, plain or gzipped, or a Parquet file."""
    file = Path(path)
    table = read_parquet(file) if file.suffix == ".parquet" else read_csv(file, _MAPPING)
    return table_forecasts(table)


def table_forecasts(table: Table) -> Issued:
    """The forecasts in a table."""
    missing = [column for column in COLUMNS if column not in table.frame]
    if missing or not len(table.frame):
        what = f"no column {missing[0]!r}" if missing else "no rows"
        raise RecordError(f"{table.source}: {what}; forecasts have {', '.join(COLUMNS)}")
    names, units = (_words(table, column) for column in (NAME, UNIT))
    issued, valid = (
        parse_times(table.column(column, "times"), None, _MAPPING, table.locate(column))
        for column in (ISSUED, VALID)
    )
    values = table.numbers(VALUE)
    series = []
    for name in names.unique():
        rows = np.flatnonzero((names == name).to_numpy())
        unit = _unit_of(table, name, units, rows)
        series.append(IssuedSeries(name, unit, issued[rows], valid[rows], values[rows]))
    return Issued(series)


def _words(table: Table, column: str) -> "pd.Series[str]":
    """The words of a column; raise at the first that is missing."""
    words = table.column(column, "forecasts").map(
        lambda cell: cell.strip() if isinstance(cell, str) else ""
    )
    missing = np.flatnonzero((words == "").to_numpy())
    if missing.size:
        raise RecordError(f"{table.locate(column)(int(missing[0]))}: the {column} is missing")
    return words


def _unit_of(table: Table, name: str, units: "pd.Series[str]", rows: np.ndarray) -> str:
    """The unit of a quantity: MW of a national signal, and any, but only one, of another."""
    unit = MW if name in SIGNALS else units.iloc[rows[0]]
    other = np.flatnonzero((units.iloc[rows] != unit).to_numpy())
    if other.size:
        row = int(rows[other[0]])
        raise RecordError(
            f"{table.locate(UNIT)(row)}: {name} in {units.iloc[row]!r}, must be in {unit!r}; "
            "convert it"
        )
    return str(unit)
