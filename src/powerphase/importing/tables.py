"""Tables as sources: CSV and Parquet files and data frames, wide or long.

A long table has a row for each time and bus, or for each time, bus and variable. A wide table has a
row for each time, and a column for each variable and bus.
"""

import csv
import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped

from powerphase.axes import KINDS, VARIABLES
from powerphase.dataset.tables import ZONE
from powerphase.errors import RecordError
from powerphase.importing.mapping import BUS, NAMES, Column, SourceMapping
from powerphase.importing.readings import Readings
from powerphase.importing.times import Locate, parse_times

BLANK = ("", "NA", "NaN", "nan", "null", "NULL", "None", "n/a", "-")
"""Cells that state no value."""


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a file, and how its rows are counted."""

    frame: pd.DataFrame
    source: str
    first_row: int = 1
    """The number of the first row of values: 2 below the header of a CSV file."""
    decimal: str = "."
    """The decimal separator of a text file."""
    zone: str | None = None
    """The zone of times without an offset, if the table itself names it."""

    def locate(self, column: str) -> Locate:
        """Names the rows of a column."""
        return lambda row: f"{self.source}, row {row + self.first_row}, column {column!r}"

    def column(self, name: str, use: str) -> "pd.Series[Any]":
        """The column with this name; raise if there is none."""
        if name not in self.frame:
            names = [str(column) for column in self.frame.columns]
            raise RecordError(
                f"{self.source}: no column {name!r} for {use}; it has {_some(names)}; name the "
                "column in a mapping file"
            )
        return self.frame[name]

    def numbers(self, name: str) -> Float[np.ndarray, " S"]:
        """The numbers of a column, NaN where it is blank; raise at the first that is none."""
        column = self.column(name, "values")
        if pd.api.types.is_bool_dtype(column):
            raise RecordError(f"{self.locate(name)(0)}: {column.iloc[0]!r} is not a number")
        if pd.api.types.is_numeric_dtype(column):
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        words = column.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
        # One bad cell leaves the whole column as text, also that with a decimal comma.
        texts = words.map(
            lambda cell: cell.replace(self.decimal, ".") if isinstance(cell, str) else cell
        )
        values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
        invalid = np.flatnonzero(np.isnan(values) & ~(words.isin(BLANK) | words.isna()).to_numpy())
        if invalid.size:
            row, cell = int(invalid[0]), words.iloc[invalid[0]]
            can_help = self.decimal != "," and _has_comma(cell)
            hint = '; set decimal = "," in the mapping' if can_help else ""
            raise RecordError(f"{self.locate(name)(row)}: {cell!r} is not a number{hint}")
        return values


def read_table(table: Table, mapping: SourceMapping) -> Readings:
    """The readings of a table, by a mapping or by names of columns that say what they are."""
    if not len(table.frame):
        raise RecordError(f"{table.source}: has no rows")
    mapping = replace(mapping, zone=mapping.zone or table.zone)
    if not mapping.columns and {"variable", "value"} <= set(table.frame.columns):
        return _read_values(table, mapping)
    mapping = complete_mapping(table, mapping)
    return _read_wide(table, mapping) if mapping.bus is None else _read_long(table, mapping)


def complete_mapping(table: Table, mapping: SourceMapping) -> SourceMapping:
    """The mapping, with what follows from the names of columns such as `p_mw` or `p_mw_104`."""
    if mapping.columns:
        return mapping
    names = [str(name) for name in table.frame.columns]
    bus = mapping.bus or ("bus" if "bus" in names else None)
    columns: dict[str, tuple[Column, ...]] = {}
    for name, (variable, unit) in NAMES.items():
        column = Column(name if bus else f"{name}_{BUS}", unit)
        if any(name == other if bus else column.bus_of(other) for other in names):
            if variable in columns:
                raise RecordError(
                    f"{table.source}: {columns[variable][0].column} and {column.column} are both "
                    f"{variable}; name one of them in a mapping file"
                )
            columns[variable] = (column,)
    if not columns:
        raise RecordError(
            f"{table.source}: its columns ({_some(names)}) do not say what they are; name them "
            f"{', '.join(NAMES)} (with _BUS in a wide table), or give a mapping file"
        )
    return replace(mapping, columns=columns, bus=bus)


def _read_long(table: Table, mapping: SourceMapping) -> Readings:
    """The readings of a table with a row for each time and bus."""
    assert mapping.bus is not None
    codes, buses = _buses(table, mapping.bus)
    when = table.column(mapping.time, "times")
    time = parse_times(when, codes, mapping, table.locate(mapping.time))
    axis, steps = np.unique(time, return_inverse=True)
    cell = steps * len(buses) + codes
    columns = {
        part.column: table.numbers(part.column)
        for parts in mapping.columns.values()
        for part in parts
    }
    rows, note = _distinct(cell, columns, table, mapping.time)
    readings = {}
    for variable, parts in mapping.columns.items():
        total = np.zeros(len(rows))
        for part in parts:
            total += columns[part.column][rows] * part.factor(variable)
        values = np.full(len(axis) * len(buses), np.nan)
        values[cell[rows]] = total
        readings[variable] = values.reshape(len(axis), len(buses))
    return _finish(table, mapping, axis, buses, readings, note)


def _read_values(table: Table, mapping: SourceMapping) -> Readings:
    """The readings of a table with a row for each time, bus and variable, as `to_long` gives it.

    Values are in MW, MVAr, p.u. and rad, and powers are consumption.
    """
    kinds = table.column("variable", "variables").astype(str)
    number = kinds.map({variable: k for k, variable in enumerate(VARIABLES)})
    unknown = np.flatnonzero(number.isna())
    if unknown.size:
        row = int(unknown[0])
        raise RecordError(
            f"{table.locate('variable')(row)}: {kinds.iloc[row]!r} is none of "
            f"{', '.join(VARIABLES)}"
        )
    kind = number.to_numpy(dtype=np.int64)
    codes, buses = _buses(table, mapping.bus or "bus")
    channel = KINDS * codes + kind
    when = table.column(mapping.time, "times")
    time = parse_times(when, channel, mapping, table.locate(mapping.time))
    axis, steps = np.unique(time, return_inverse=True)
    cell, values = steps * KINDS * len(buses) + channel, table.numbers("value")
    rows, note = _distinct(cell, {"value": values}, table, mapping.time)
    every = np.full(len(axis) * len(buses) * KINDS, np.nan)
    every[cell[rows]] = values[rows]
    states = every.reshape(len(axis), len(buses), KINDS)
    readings = {VARIABLES[k]: states[..., k] for k in np.unique(kind).tolist()}
    return _finish(table, mapping, axis, buses, readings, note)


def _buses(table: Table, column: str) -> tuple[Int[np.ndarray, " S"], tuple[str, ...]]:
    """The number of the bus of each row, and the names of all; raise if a name is missing."""
    names = table.column(column, "buses").map(bus_name)
    blank = np.flatnonzero((names == "").to_numpy())
    if blank.size:
        raise RecordError(f"{table.locate(column)(int(blank[0]))}: the name is missing")
    codes, buses = pd.factorize(names)
    return codes, tuple(map(str, buses))


def _read_wide(table: Table, mapping: SourceMapping) -> Readings:
    """The readings of a table with a column for each variable and bus."""
    time = parse_times(
        table.column(mapping.time, "times"), None, mapping, table.locate(mapping.time)
    )
    axis, steps = np.unique(time, return_inverse=True)
    by_part = {
        (variable, number): _bus_columns(table, part)
        for variable, parts in mapping.columns.items()
        for number, part in enumerate(parts)
    }
    names = [name for columns in by_part.values() for name in columns.values()]
    numbers = {name: table.numbers(name) for name in names}
    rows, note = _distinct(steps, numbers, table, mapping.time)
    buses = tuple(dict.fromkeys(bus for columns in by_part.values() for bus in columns))
    readings = {}
    for variable, parts in mapping.columns.items():
        values = np.full((len(axis), len(buses)), np.nan)
        for position, bus in enumerate(buses):
            pairs = [(part, by_part[variable, k].get(bus)) for k, part in enumerate(parts)]
            present = [(part, name) for part, name in pairs if name is not None]
            if present:
                total = sum(numbers[name] * part.factor(variable) for part, name in present)
                values[steps[rows], position] = np.asarray(total)[rows]
        readings[variable] = values
    return _finish(table, mapping, axis, buses, readings, note)


def _bus_columns(table: Table, part: Column) -> dict[str, str]:
    """The columns of a wide table that a section of a mapping names, by bus."""
    if BUS not in part.column:
        raise RecordError(
            f"{table.source}: column {part.column!r} is for one bus; write {BUS} where the name of "
            'the bus is, such as "p_mw_{bus}", or name the column of the buses (`bus`)'
        )
    names = map(str, table.frame.columns)
    columns = {bus: name for name in names if (bus := part.bus_of(name)) is not None}
    if not columns:
        raise RecordError(f"{table.source}: no column is called like {part.column!r}")
    return columns


def _distinct(
    cell: Int[np.ndarray, " S"],
    columns: Mapping[str, Float[np.ndarray, " S"]],
    table: Table,
    time: str,
) -> tuple[Int[np.ndarray, " T"], str | None]:
    """The rows without repetitions; raise if two rows of one time and bus differ."""
    _, rows, place = np.unique(cell, return_index=True, return_inverse=True)
    if len(rows) == len(cell):
        return np.arange(len(cell)), None
    original = rows[place]
    for name, values in columns.items():
        same = (values == values[original]) | (np.isnan(values) & np.isnan(values[original]))
        differ = np.flatnonzero(~same)
        if differ.size:
            row, other = int(differ[0]), int(original[differ[0]]) + table.first_row
            raise RecordError(
                f"{table.locate(name)(row)}: {values[row]:g}, but row {other} of the same {time} "
                f"has {values[original[row]]:g}; remove one of them"
            )
    return np.sort(rows), f"{len(cell) - len(rows):,} repeated rows dropped"


def _finish(
    table: Table,
    mapping: SourceMapping,
    axis: Shaped[np.ndarray, " S"],
    buses: tuple[str, ...],
    values: dict[str, Float[np.ndarray, "S N"]],
    note: str | None,
) -> Readings:
    parts = mapping.columns.get("V", ())
    in_kv = [part.unit != "p.u." for part in parts]
    if (any(in_kv) and not all(in_kv)) or len(parts) > 1:
        raise RecordError(f"{table.source}: voltages cannot be added up; give one section V")
    ordered = {variable: values[variable] for variable in VARIABLES if variable in values}
    notes = () if note is None else (note,)
    return Readings(table.source, axis, buses, ordered, any(in_kv), notes)


def bus_name(cell: object) -> str:
    """The name of a bus as text; 104.0, which spreadsheets write, is 104."""
    if cell is None or cell is pd.NA or (isinstance(cell, float) and np.isnan(cell)):
        return ""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


def read_csv(path: Path, mapping: SourceMapping) -> Table:
    """The table in a CSV file, which may be compressed by gzip."""
    with unchanged(path):
        header = _header(path, mapping)
        try:
            frame = pd.read_csv(
                path,
                sep=mapping.separator,
                decimal=mapping.decimal,
                na_values=list(BLANK),
                keep_default_na=False,
                dtype={name: str for name in (mapping.time, mapping.bus, "bus") if name in header},
                encoding="utf-8-sig",
                low_memory=False,
                index_col=False,
            )
        except (ValueError, OSError, EOFError, pd.errors.ParserError) as error:
            reason = " ".join(str(error).split())
            raise RecordError(f"{path}: cannot be read as a table ({reason})") from error
    _check_last_row(path, len(header), mapping)
    return Table(frame, str(path), first_row=2, decimal=mapping.decimal)


def _open(path: Path) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _header(path: Path, mapping: SourceMapping) -> list[str]:
    """The names of the columns; raise if they cannot be told apart."""
    try:
        with _open(path) as file:
            header = next(csv.reader(file, delimiter=mapping.separator), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path}: cannot be read as a table ({error})") from error
    if not header:
        raise RecordError(f"{path}: is empty")
    if len(header) == 1 and ";" in header[0] and mapping.separator != ";":
        raise RecordError(
            f'{path}, row 1: one column {header[0][:40]!r}…; set separator = ";" in the mapping'
        )
    repeated = [name for k, name in enumerate(header) if name in header[:k]]
    if repeated:
        raise RecordError(f"{path}, row 1: two columns are called {repeated[0]!r}; rename one")
    return header


def _check_last_row(path: Path, width: int, mapping: SourceMapping) -> None:
    """Raise if the last row has fewer cells than the header: the file was cut off."""
    last, count = None, 0
    if path.suffix == ".gz":  # its own checksum tells
        return
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - 2**20))
        lines = [line for line in file.read().splitlines() if line.strip()]
        last = lines[-1].decode("utf-8", "replace") if lines else None
        count = len(lines)
    if last is not None and count > 1:
        cells = next(csv.reader([last], delimiter=mapping.separator), [])
        if len(cells) < width:
            raise RecordError(
                f"{path}, last row: {len(cells)} of {width} cells; the file is cut off, or still "
                "being written"
            )


def read_parquet(path: Path) -> Table:
    """The table in a Parquet file."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_package("Parquet", "pyarrow") from error
    with unchanged(path):
        try:
            frame = parquet.read_table(path).to_pandas()
        except Exception as error:  # pyarrow has no common error for broken files
            reason = " ".join(str(error).split())
            raise RecordError(f"{path}: cannot be read as Parquet ({reason})") from error
    return frame_table(frame, str(path))


def frame_table(frame: pd.DataFrame, source: str = "the table") -> Table:
    """The table of a data frame, of which a named index is one more column.

    Columns that have both a bus and a variable become rows, as `Store.to_pandas` gives them.
    """
    zone = frame.attrs.get(ZONE)
    if set(frame.columns.names) == {"bus", "variable"}:
        series: pd.Series[Any] = frame.stack(["bus", "variable"], future_stack=True)  # type: ignore[assignment]
        frame = series.rename("value").to_frame()
    frame = frame.reset_index() if any(name is not None for name in frame.index.names) else frame
    names = [str(name) for name in frame.columns]
    repeated = [name for k, name in enumerate(names) if name in names[:k]]
    if repeated:
        raise RecordError(f"{source}: two columns are called {repeated[0]!r}; rename one")
    return Table(frame.set_axis(names, axis=1).reset_index(drop=True), source, zone=zone)


def missing_package(what: str, package: str) -> RecordError:
    """The error for a format whose reader is not installed."""
    return RecordError(f"{what} needs {package}; run pip install 'powerphase[importing]'")


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Raise if the file is missing, is no regular file, or changes while it is read."""
    before = _stamp(path)
    yield
    if _stamp(path) != before:
        raise RecordError(f"{path}: changed while it was read; import it again once it is complete")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        if not path.is_file() and path.exists():
            raise RecordError(f"{path}: is not a regular file")
        facts = path.stat()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror})") from error
    return facts.st_size, facts.st_mtime_ns


def _has_comma(cell: object) -> bool:
    return isinstance(cell, str) and "," in cell


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown}, …" if len(names) > 8 else shown
