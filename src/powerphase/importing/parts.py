"""Large Parquet files as tables of consecutive steps, so that an import needs a few GB at most."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from powerphase.errors import RecordError
from powerphase.importing.mapping import SourceMapping
from powerphase.importing.tables import Table, frame_table, missing_package, unchanged

PART_VALUES = 2**24
"""The values of a part; an import takes about a hundred bytes for each."""

LEAST_ROWS = 2688
"""The rows of a part, at least: four weeks of quarter-hours in a wide table."""


def is_large(path: Path) -> bool:
    """Whether a Parquet file has several parts."""
    file = _open(path)
    return bool(file.metadata.num_rows >= 1.5 * _part_rows(file))


def read_parts(path: Path, mapping: SourceMapping) -> Iterator[Table]:
    """The table in a Parquet file in parts of whole steps; rows must be in the order of time."""
    file, held, first_row = _open(path), list[pd.DataFrame](), 1
    size = _part_rows(file)
    with unchanged(path):
        for table in _batches(file, path, size):
            held.append(table.frame)
            if sum(map(len, held)) >= 1.5 * size:  # so that the last part is no remainder
                rows = replace(table, frame=pd.concat(held, ignore_index=True))
                cut = _start_of_step(rows.column(mapping.time, "times"), size)
                if cut:
                    yield replace(rows, frame=rows.frame[:cut], first_row=first_row)
                held, first_row = [rows.frame[cut:]], first_row + cut
        frame = pd.concat(held, ignore_index=True)
        yield replace(table, frame=frame, first_row=first_row)


def _part_rows(file: Any) -> int:
    return max(LEAST_ROWS, PART_VALUES // len(file.schema_arrow))


def _start_of_step(times: "pd.Series[Any]", row: int) -> int:
    """The first row with the time of this row."""
    return int(np.argmax((times == times.iloc[row]).to_numpy()))


def _batches(file: Any, path: Path, size: int) -> Iterator[Table]:
    """The rows of the file as tables, one after another."""
    import pyarrow

    try:
        for batch in file.iter_batches(batch_size=size):
            yield frame_table(pyarrow.Table.from_batches([batch]).to_pandas(), str(path))
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from error


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_package("Parquet", "pyarrow") from error
    with unchanged(path):
        try:
            return parquet.ParquetFile(path)
        except (OSError, pyarrow.ArrowException) as error:
            raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> RecordError:
    reason = " ".join(str(error).split())
    return RecordError(f"{path}: cannot be read as Parquet ({reason})")
