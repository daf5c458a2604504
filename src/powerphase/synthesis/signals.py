"""The three national signals that drive every data set: load, solar and wind.

`read_signals` reads them from a CSV file with the columns of Open Power System Data's
`time_series_15min_singleindex.csv`. Short gaps are filled and counted. Anything else that is wrong
raises an error: a silent repair would affect every bus of every data set.
"""

import csv
import gzip
import hashlib
import re
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from errno import EINVAL
from io import TextIOWrapper
from itertools import count
from operator import itemgetter
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Shaped

from powerphase.axes import STEP_S, STEPS_PER_DAY
from powerphase.errors import SignalError

SIGNALS = ("load", "solar", "wind")

TIME_COLUMN = "utc_timestamp"
COLUMNS = {
    "load": "DE_load_actual_entsoe_transparency",
    "solar": "DE_solar_generation_actual",
    "wind": "DE_wind_generation_actual",
}
"""The column of each signal [MW]; only these and `utc_timestamp` are read."""

RECORD = (np.datetime64("2015-01-01T00:00:00", "s"), np.datetime64("2017-01-01T00:00:00", "s"))
"""The two years used of any file that covers them; the second time is excluded."""

MAX_MISSING = 0.05
"""The largest share of a column that may be missing and is then filled."""

MAX_BYTES, MAX_LINE, MAX_LINES = 2**28, 2**18, 2_000_000
"""Twice the size of OPSD's file, which covers five years in 300 columns; 57 years of lines."""

_STEP = np.timedelta64(STEP_S, "s")
_DAY = np.timedelta64(1, "D")
_BLANK = frozenset({"", "na", "nan"})
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Signals:
    """National load, solar and wind [MW] on a gapless 15-minute UTC clock of whole days."""

    time: Shaped[np.ndarray, " S"]
    """Start of each step, `datetime64[s]`, UTC."""
    values_mw: Float[np.ndarray, "S 3"]
    """Columns load, solar, wind."""
    edition: str
    """Name of these signals in results: `synthetic`, `opsd`, `opsd-r`, ..."""
    attribution: str
    """Source and licence; copied into every data set's manifest."""
    filled: int = 0
    """Number of values that were missing and have been filled."""

    def __post_init__(self) -> None:
        n, start = len(self.time), self.time[:1].astype("datetime64[s]")
        if n == 0 or n % STEPS_PER_DAY or (start != start.astype("datetime64[D]")).any():
            raise SignalError(
                f"signals have {n} steps from {start}; they must cover whole UTC days"
            )
        if (np.diff(self.time) != _STEP).any():
            raise SignalError("signals must be 15 minutes apart, without gaps")
        if not np.isfinite(self.values_mw).all():
            raise SignalError("signals contain non-finite values; fill or remove them")

    @property
    def sha256(self) -> str:
        """Content hash of clock and values, part of a recipe's fingerprint."""
        digest = hashlib.sha256(self.time.astype("datetime64[s]").astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(self.values_mw, dtype="<f8").tobytes())
        return digest.hexdigest()


def read_signals(
    path: Path, edition: str | None = None, *, attribution: str | None = None
) -> Signals:
    """Load, solar and wind [MW] from a CSV file, plain or gzipped, with OPSD's column names.

    The record is exactly 2015 and 2016 if the file covers both years, else every whole UTC day in
    it. Times are checked throughout the file, values only inside the record. Missing values are
    interpolated linearly; at either end the nearest value is repeated. By default the edition is
    `custom-` followed by the first eight digits of the content hash.

    Raises:
        SignalError: The file cannot be used without guessing; the message lists the reasons.
    """
    rows = _read_rows(path, tuple(COLUMNS.values()))
    time = _read_clock(path, rows)
    record = _find_record(path, time)
    values, filled = _read_values(path, rows.select(record))
    source = f"load, solar and wind from a user's file, {path.name!r}; its provider's terms apply"
    signals = Signals(time[record], values, edition or "", attribution or source, filled)
    return signals if edition else replace(signals, edition=f"custom-{signals.sha256[:8]}")


def read_column(
    path: Path, column: str
) -> tuple[Shaped[np.ndarray, " S"], Float[np.ndarray, " S"]]:
    """The times and values [MW] of one column of such a file, NaN where values are missing."""
    rows = _read_rows(path, (column,))
    numbers = _parse_numbers(rows.cells[column])
    values = np.array(numbers, dtype=np.float64)
    is_text = np.array([number is None for number in numbers])
    problems = [
        *rows.faults(column, is_text, "expected a number in MW; correct or empty the cell"),
        *rows.faults(column, np.isinf(values) | (values < 0), "expected 0 or more; empty the cell"),
    ]
    if problems:
        raise _file_error(path, *problems)
    return _read_clock(path, rows), values


@dataclass(frozen=True)
class _Rows:
    """The needed columns as text, and the line of the file on which each row ends."""

    line: Sequence[int]
    cells: Mapping[str, Sequence[str]]

    def select(self, part: slice) -> "_Rows":
        """The rows of one part of the file."""
        return _Rows(self.line[part], {name: cells[part] for name, cells in self.cells.items()})

    def faults(self, column: str, is_faulty: Bool[np.ndarray, " rows"], fault: str) -> list[str]:
        """At most one clause: the first cell with this fault and how many more have it."""
        if not is_faulty.any():
            return []
        first, more = int(is_faulty.argmax()), int(is_faulty.sum()) - 1
        lines = f"on line {self.line[first]}" + (f" and {more:,} more" if more else "")
        return [f"{column} is {reprlib.repr(self.cells[column][first])} {lines}, {fault}"]


def _file_error(path: Path, *problems: str) -> SignalError:
    """The error that lists all problems of a file."""
    if len(problems) == 1:
        return SignalError(f"signals file {str(path)!r}: {problems[0]}")
    listed = "; ".join(f"({n}) {problem}" for n, problem in enumerate(problems, 1))
    return SignalError(f"signals file {str(path)!r} has {len(problems)} problems: {listed}")


def _read_rows(path: Path, columns: Sequence[str]) -> _Rows:
    """Every row of the file with its time and these columns, as text."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(EINVAL, "not a regular file")
        with path.open("rb") as file:
            opener = gzip.open if file.read(2) == b"\x1f\x8b" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as text:
            return _parse(path, _lines(path, text), (TIME_COLUMN, *columns))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = f"its gzip stream is truncated or damaged ({error}); fetch or compress it again"
    except FileNotFoundError:
        problem = "file not found; check the path"
    except OSError as error:
        problem = f"it cannot be opened ({error.strerror}); check its permissions"
    except (UnicodeDecodeError, csv.Error) as error:
        problem = f"it is not CSV ({error}); expected comma-separated UTF-8 text, plain or gzipped"
    raise _file_error(path, problem)


def _lines(path: Path, text: TextIOWrapper) -> Iterator[str]:
    """The lines of a file that is no longer than a valid one can be, and ends with a line."""
    line, n_bytes = "\n", 0
    for number in count(1):
        line, before = text.readline(MAX_LINE), line
        n_bytes += len(line)
        if not line:
            break
        if number > MAX_LINES or n_bytes > MAX_BYTES or len(line) == MAX_LINE:
            limits = f"{MAX_LINES:,} lines of {MAX_LINE:,} or {MAX_BYTES:,} characters in all"
            raise _file_error(
                path, f"line {number:,} exceeds {limits}; leave out what is not needed"
            )
        yield line
    if not before.endswith(("\n", "\r")):
        raise _file_error(
            path,
            f"line {number - 1} has no end, so it may be cut; fetch the file again, or end the "
            "line if it is complete",
        )


# csv, not pandas: pandas drops line numbers and pads a truncated row with missing values.
def _parse(path: Path, text: Iterable[str], names: Sequence[str]) -> _Rows:
    """The needed columns of CSV lines that start with a header."""
    reader = csv.reader(text)
    header = [name.strip() for name in next(reader, [])]
    if problems := _header_problems(header, names):
        raise _file_error(path, *problems)
    pick = itemgetter(*map(header.index, names))
    lines, cells = [], []
    for row in filter(None, reader):
        if len(row) != len(header):
            line = f"line {reader.line_num} has {len(row)} fields, expected {len(header)}"
            raise _file_error(path, f"{line}; if the file is truncated fetch it again, else fix it")
        lines.append(reader.line_num)
        cells.append(pick(row))
    if not lines:
        raise _file_error(path, "it has a header but no rows; expected at least one whole UTC day")
    return _Rows(lines, dict(zip(names, zip(*cells, strict=True), strict=True)))


def _header_problems(header: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Why a needed column is missing or ambiguous."""
    if not any(header):
        return [f"it is empty or starts with an empty line; expected a header with {TIME_COLUMN!r}"]
    if len(header) == 1 and (marks := [mark for mark in ";\t|" if mark in header[0]]):
        return [f"its fields are separated by {marks[0]!r}; save it with commas"]
    problems: list[str] = []
    others = [name for name in header if name not in needed]
    for name in needed:
        n, near = header.count(name), get_close_matches(name, others, n=1)
        if n > 1:
            problems.append(f"column {name!r} occurs {n} times; keep one of them")
        elif n == 0 and name == TIME_COLUMN and "cet_cest_timestamp" in header:
            problems.append(f"its only clock is 'cet_cest_timestamp' (local time); add {name!r}")
        elif n == 0:
            advice = f"rename {near[0]!r} if it is this column" if near else "add it"
            problems.append(f"column {name!r} is missing; {advice}")
    return problems


def _read_clock(path: Path, rows: _Rows) -> Shaped[np.ndarray, " rows"]:
    """Start of each row, `datetime64[s]`, UTC, checked to be exactly every 15 minutes."""
    stamps = [_timestamp(text) for text in rows.cells[TIME_COLUMN]]
    problems = []
    for fault in sorted({stamp for stamp in stamps if isinstance(stamp, str)}):
        problems += rows.faults(TIME_COLUMN, np.array([s == fault for s in stamps]), fault)
    time = np.array([] if problems else stamps, dtype="datetime64[us]")
    if problems := problems or _clock_problems(rows, time):
        raise _file_error(path, *problems)
    return time.astype("datetime64[s]")


def _timestamp(text: str) -> datetime | str:
    """The UTC time in `text`, without its zone, or what is wrong with it."""
    try:
        # fromisoformat alone would also accept 00:00:Z, which lacks its seconds.
        stamp = datetime.fromisoformat(text.strip()) if _TIME.fullmatch(text.strip()) else None
    except ValueError:
        stamp = None
    if stamp is None:
        return "expected a time in UTC such as 2015-01-01T00:00:00Z"
    # A time without a zone may be local, and nobody would notice an error of an hour.
    if stamp.tzinfo is None:
        return "which has no time zone; append Z if it is UTC, else convert it"
    if stamp.utcoffset():
        return "which is not in UTC (Z or +00:00); convert it"
    return stamp.replace(tzinfo=None)


def _clock_problems(rows: _Rows, time: Shaped[np.ndarray, " rows"]) -> list[str]:
    """Where times decrease, repeat, leave gaps, or are not 15 minutes apart."""
    ordered, first = np.unique(time, return_index=True)
    row, steps = np.arange(time.size), np.diff(ordered)
    is_earlier = np.append(False, time[1:] < time[:-1])
    problems = [
        *rows.faults(TIME_COLUMN, is_earlier, "earlier than the row above; sort the rows by time"),
        *rows.faults(TIME_COLUMN, ~np.isin(row, first), "as in a row above; keep each time once"),
    ]
    lengths, counts = np.unique(steps, return_counts=True)
    if lengths.size and (usual := lengths[counts.argmax()]) != _STEP:
        minutes = f"{usual / np.timedelta64(60, 's'):g} min"
        return [*problems, f"its rows are {minutes} apart, expected 15 min; use 15-minute data"]
    is_off = (time - RECORD[0]) % _STEP != np.timedelta64(0, "s")
    is_gap = steps > _STEP
    is_last = np.isin(row, first[:-1][is_gap])
    missing = f"after which {(steps[is_gap] // _STEP - 1).sum():,} rows are missing"
    return [
        *problems,
        *rows.faults(
            TIME_COLUMN, is_off, "expected a full quarter hour; shift or resample the rows"
        ),
        *rows.faults(TIME_COLUMN, is_last, f"{missing} in total; add them, with empty cells"),
    ]


def _find_record(path: Path, time: Shaped[np.ndarray, " rows"]) -> slice:
    """The rows of 2015 and 2016 if the file has all of them, else of every whole UTC day."""
    start, end = time[0], time[-1] + _STEP
    first, stop = RECORD
    if start > first or end < stop:
        first = (start - np.timedelta64(1, "s")).astype("datetime64[D]") + _DAY  # rounds up
        stop = end.astype("datetime64[D]")  # rounds down
    if stop <= first:
        span = f"its {time.size} rows from {start}Z to {time[-1]}Z contain no whole UTC day"
        raise _file_error(path, f"{span} ({STEPS_PER_DAY} rows from 00:00Z on); add the rest")
    return slice(int((first - start) // _STEP), int((stop - start) // _STEP))


def _read_values(path: Path, rows: _Rows) -> tuple[Float[np.ndarray, "S 3"], int]:
    """Load, solar and wind [MW] without gaps, and the number of values that were missing."""
    columns, problems = [], []
    for name in COLUMNS.values():
        numbers = _parse_numbers(rows.cells[name])
        is_text = np.array([number is None for number in numbers])
        column = np.array(numbers, dtype=np.float64)  # None turns into NaN
        problems += rows.faults(name, is_text, "expected a number in MW; correct or empty the cell")
        problems += _range_problems(rows, name, column)
        problems += _gap_problems(rows, name, np.isnan(column) & ~is_text)
        columns.append(column)
    if problems:
        raise _file_error(path, *problems)
    return np.stack([_fill(column) for column in columns], axis=-1), int(np.isnan(columns).sum())


def _parse_numbers(cells: Sequence[str]) -> list[float | None]:
    """The number in each cell, NaN where it is empty, None where it is anything else."""
    # float() alone would also accept "1_000" and digits of other scripts.
    return [
        float(cell) if _NUMBER.fullmatch(cell) else np.nan if cell.lower() in _BLANK else None
        for cell in map(str.strip, cells)
    ]


def _range_problems(rows: _Rows, name: str, column: Float[np.ndarray, " S"]) -> list[str]:
    """Infinite values, and values below what a nation can consume or generate."""
    is_load = name == COLUMNS["load"]
    is_low = np.isfinite(column) & (column <= 0 if is_load else column < 0)
    # Even slightly negative values are rejected: only the user can say that they are noise.
    bound = "more than 0; empty the cell" if is_load else "at least 0; write 0 or empty the cell"
    return [
        *rows.faults(name, np.isinf(column), "expected a finite number; empty the cell"),
        *rows.faults(name, is_low, f"expected {bound}"),
    ]


def _gap_problems(rows: _Rows, name: str, missing: Bool[np.ndarray, " S"]) -> list[str]:
    """Whether too many values are missing, with their share and the longest gap."""
    if missing.mean() <= MAX_MISSING:
        return []
    edges = np.flatnonzero(np.diff(missing, prepend=False, append=False))
    start, length = max(zip(edges[::2], edges[1::2] - edges[::2], strict=True), key=itemgetter(1))
    return [
        f"{name} is missing {missing.sum():,} of {missing.size:,} values ({missing.mean():.2%}), "
        f"up to {length:,} in a row from {rows.cells[TIME_COLUMN][start]} on; at most "
        f"{MAX_MISSING:.0%} may be missing, so fill the gaps from another source"
    ]


def _fill(column: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """The column with gaps interpolated linearly and constant ends."""
    step, known = np.arange(column.size), np.isfinite(column)
    return np.where(known, column, np.interp(step, step[known], column[known]))
