"""Scenarios on disk, from which every score can be computed again.

A forecast is a directory: a Zarr 3 group with `values`, `weights` and `time`, and `forecast.json`,
which says what the forecast is and which windows are done. A window counts once it stands there, so
what a killed process leaves behind is never taken for a forecast.

A chunk of `values` is one window, all scenarios and steps, and channels for about 16 MB: scores are
computed by such blocks. A channel's scenarios and steps lie together, under LZ4 with shuffled bytes
and a CRC. Measured on states of ACTIVSg 500 with noise, this leaves 0.5 to 0.8 of the raw size (0.5
where half of P and Q is constant, 0.8 where everything is noisy); a window of 36,964 channels,
1.4 GB, is written in 5 to 8 s and read in 2.5 s. Raw chunks take 0.6 of that time and all of the
space, 14 GB for ten windows; zstd, as in the data sets, leaves 0.02 less and takes 1.6 times as
long. Equal weights shrink to 0.5 %.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Bool, Float32, Shaped
from zarr.storage import MemoryStore

from powerphase.axes import STEP_S
from powerphase.errors import ForecastError
from powerphase.files import disk_errors, flush, replace_file
from powerphase.records.forecast_header import (
    ADVICE,
    RECORD,
    ForecastHeader,
    Record,
    check_same,
    read_record,
)
from powerphase.records.forecast_layout import (
    LOCK,
    bounds,
    check_weights,
    check_window,
    create_arrays,
    locked,
    open_array,
    parts,
    prepare,
)

__all__ = ["ForecastFile", "ForecastHeader", "ForecastWriter", "forecast_writer", "open_forecast"]


class ForecastFile:
    """A complete forecast, for reading; made by `open_forecast`."""

    def __init__(self, path: Path, header: ForecastHeader, cost: dict[str, Any]) -> None:
        self.path, self.header, self.cost = path, header, cost
        needed = create_arrays(MemoryStore(), header)
        self._arrays = {name: open_array(path, name, array) for name, array in needed.items()}
        self.time: Shaped[np.ndarray, "B H"] = self._load("time", (0, 0)).astype("datetime64[s]")
        """Start of every forecast step, `datetime64[s]`, UTC."""
        self._check_time()

    def blocks(self) -> list[slice]:
        """The slices of channels that are read with least effort; together, all channels."""
        return self.header.blocks()

    def read(
        self, window: int, channels: slice
    ) -> tuple[Float32[np.ndarray, "M H C"], Float32[np.ndarray, "M C"]]:
        """Normalised values and weights of a window's scenarios, in the given channels."""
        h = self.header
        start, stop = bounds(h, window, channels)
        values = np.empty((h.scenarios, h.horizon, stop - start), dtype=np.float32)
        weights = np.empty((h.scenarios, stop - start), dtype=np.float32)
        for number, block, part in parts(h, start, stop):
            here = slice(part.start - start, part.stop - start)
            chosen = (window, ..., part)
            try:
                values[..., here] = self._load("values", (window, 0, 0, number), chosen)
                weights[..., here] = self._load("weights", (window, 0, number), chosen)
            except ForecastError as error:
                raise ForecastError(error.problem, window=window, channel=block.start) from error
        return values, weights

    def _load(self, name: str, chunk: tuple[int, ...], chosen: Any = ...) -> np.ndarray:
        array = self._arrays[name]
        file = self.path / name / array.metadata.encode_chunk_key(chunk)
        try:
            if not file.is_file():  # Zarr would give the fill value
                raise FileNotFoundError("missing")
            return np.asarray(array[chosen])
        except MemoryError:
            raise
        except Exception as error:  # codecs report broken bytes by whatever they like
            raise ForecastError(f"{file}: the file is damaged ({error}); {ADVICE}") from error

    def _check_time(self) -> None:
        for window, (row, start) in enumerate(zip(self.time, self.header.windows, strict=True)):
            if row[0] != np.datetime64(start):
                raise ForecastError(
                    f"{self.path}: time starts at {row[0]}, the header says {start}; {ADVICE}",
                    window=window,
                )
            uneven = np.flatnonzero(np.diff(row) != np.timedelta64(STEP_S, "s"))
            if uneven.size:
                step = int(uneven[0]) + 1
                problem = f"{self.path}: {row[step]} is not 15 minutes after {row[step - 1]}"
                raise ForecastError(f"{problem}; {ADVICE}", window=window, step=step)


@dataclass(eq=False)
class _Chunk:
    """A chunk on its way to the disk; NaN where nothing was written yet."""

    window: int
    block: slice
    values: Float32[np.ndarray, "M H C"]
    weights: Float32[np.ndarray, "M C"]


class ForecastWriter:
    """Writes a forecast window by window; made by `forecast_writer`, which holds the lock.

    One chunk is held in memory and stored when another is begun. So blocks that come in order are
    stored once, whatever their borders; a chunk to which a later block returns is read back.
    """

    def __init__(self, path: Path, header: ForecastHeader) -> None:
        self.path, self.header = path, header
        self._record = read_record(path) or Record(header)
        check_same(path, self._record.header, header)
        self._written: dict[int, Bool[np.ndarray, " C"]] = {}
        self._held: _Chunk | None = None
        if not self._record.complete:
            self._save(self._record)  # first, as it marks the directory as a forecast
            self._arrays = prepare(path, header)

    @property
    def finished(self) -> frozenset[int]:
        """The windows that are done and need not be forecast again."""
        return self._record.finished

    def write(
        self,
        window: int,
        channels: slice,
        values: Float32[np.ndarray, "M H C"],
        weights: Float32[np.ndarray, "M C"],
    ) -> None:
        """Take a window's scenarios in some channels, none of which was written before."""
        start, stop = bounds(self.header, window, channels)
        self._check_block(window, start, stop, values, weights)
        for _, block, part in parts(self.header, start, stop):
            chunk = self._hold(window, block)
            there = slice(part.start - block.start, part.stop - block.start)
            here = slice(part.start - start, part.stop - start)
            chunk.values[..., there] = values[..., here]
            chunk.weights[..., there] = weights[..., here]
            self._written[window][part] = True

    def finish_window(self, window: int) -> None:
        """Record that a window is whole and on disk."""
        missing = np.flatnonzero(~self._mask(window))
        if missing.size:
            raise ForecastError(
                f"{self.path}: {missing.size} of {self.header.n_channels} channels were not "
                "written; write every channel before finishing the window",
                window=window,
                channel=int(missing[0]),
            )
        with disk_errors(self.path, ForecastError):
            self._store()
            for name in self._arrays:
                chunks = (self.path / name / "c" / str(window)).rglob("*")
                for file in filter(Path.is_file, chunks):
                    flush(file)
            self._save(replace(self._record, finished=self.finished | {window}))
        del self._written[window]

    def close(self, cost: dict[str, Any]) -> None:
        """Mark the forecast as complete, at this cost; a complete one stays as it is."""
        if self._record.complete:
            return
        missing = set(range(len(self.header.windows))) - self.finished
        if missing:
            raise ForecastError(
                f"{self.path}: not finished, like {len(missing) - 1} others; finish every window "
                "before closing the forecast",
                window=min(missing),
            )
        with disk_errors(self.path, ForecastError):
            self._save(replace(self._record, cost=cost, complete=True))

    def _mask(self, window: int) -> Bool[np.ndarray, " C"]:
        """Which channels of an unfinished window were written by this writer."""
        check_window(self.header, window)
        if window in self.finished:
            raise ForecastError(f"{self.path}: the window is finished; leave it out", window=window)
        return self._written.setdefault(window, np.zeros(self.header.n_channels, dtype=bool))

    def _check_block(
        self, window: int, start: int, stop: int, values: np.ndarray, weights: np.ndarray
    ) -> None:
        twice = np.flatnonzero(self._mask(window)[start:stop])
        if twice.size:
            problem = f"{self.path}: written already; write every channel of a window once"
            raise ForecastError(problem, window=window, channel=start + int(twice[0]))
        n_scenarios, n_channels = self.header.scenarios, stop - start
        shape = (n_scenarios, self.header.horizon, n_channels)
        needs = (("values", values, shape), ("weights", weights, (n_scenarios, n_channels)))
        for name, array, needed in needs:
            if array.shape != needed or array.dtype != np.float32:
                problem = f"{name} must be float32 {needed}, found {array.dtype} {array.shape}"
                raise ForecastError(f"{self.path}: {problem}", window=window, channel=start)
        check_weights(self.path, weights, window, start)

    def _hold(self, window: int, block: slice) -> _Chunk:
        """The chunk in memory, after the one that was held before it is stored."""
        held = self._held
        if held is not None and (held.window, held.block) == (window, block):
            return held
        with disk_errors(self.path, ForecastError):
            self._store()
        values, weights = self._arrays["values"], self._arrays["weights"]
        if self._written[window][block].any():
            parts = [np.asarray(array[window, ..., block]) for array in (values, weights)]
        else:  # what a killed process left here does not count
            shapes = [(*array.shape[1:-1], block.stop - block.start) for array in (values, weights)]
            parts = [np.full(shape, np.nan, dtype=np.float32) for shape in shapes]
        self._held = _Chunk(window, block, *parts)
        return self._held

    def _store(self) -> None:
        held = self._held
        if held is not None:
            window = slice(held.window, held.window + 1)
            self._arrays["values"][window, ..., held.block] = held.values[None]
            self._arrays["weights"][window, ..., held.block] = held.weights[None]
            self._held = None

    def _save(self, record: "Record") -> None:
        replace_file(self.path / RECORD, record.to_json().encode())
        self._record = record


@contextmanager
def forecast_writer(path: str | Path, header: ForecastHeader) -> Iterator[ForecastWriter]:
    """The writer of the forecast at `path`: begun there, or continued if it is the same one."""
    if "://" in str(path):
        raise ForecastError(f"{path}: a forecast is written to a local directory; give its path")
    place = Path(path)
    with disk_errors(place, ForecastError):
        lock = locked(place)
    with lock:
        try:
            with disk_errors(place, ForecastError):
                writer = ForecastWriter(place, header)
            yield writer
        finally:
            (place / LOCK).unlink(missing_ok=True)


def is_forecast(path: str | Path) -> bool:
    """Whether a forecast, finished or not, is in the directory `path`."""
    return (Path(path) / RECORD).is_file()


def read_values(path: str | Path, window: int, channels: slice) -> Float32[np.ndarray, "M H C"]:
    """The values of a finished window of a forecast that need not be complete."""
    array = zarr.open_array(Path(path) / "values", mode="r")
    return np.asarray(array[window, ..., channels])


def open_forecast(path: str | Path) -> ForecastFile:
    """The complete forecast in the directory `path`."""
    record = read_record(Path(path))
    if record is None:
        raise ForecastError(f"{path}: no forecast here; make one with `powerphase forecast`")
    if not record.complete:
        n_done, n_windows = len(record.finished), len(record.header.windows)
        raise ForecastError(
            f"{path}: unfinished, {n_done} of {n_windows} windows are done; run the same "
            "`powerphase forecast` again to finish it"
        )
    return ForecastFile(Path(path), record.header, record.cost or {})
