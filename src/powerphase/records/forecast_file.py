"""Forecasts on disk: scenarios from which every score can be computed again.

A forecast is a directory: a Zarr 3 group with `values`, `weights` and `time`, and a manifest,
`forecast.json`, which describes the forecast and lists its finished windows, with a checksum of
every chunk. A window counts once it is listed, so what a killed process leaves behind is never read
as a forecast, nor is a chunk that was copied from another window or other channels.

A chunk of `values` holds one window, all scenarios and steps, and about 16 MB of channels; scores
are computed by such blocks. A channel's scenarios and steps are contiguous, compressed by LZ4 with
byte shuffling and protected by a CRC. Measured on states of ACTIVSg 500 with noise, chunks take 0.5
to 0.8 of the raw size (0.5 where half of P and Q is constant, 0.8 where everything is noisy); a
window of 36,964 channels, 1.4 GB, is written in 5 to 8 s and read in 2.5 s. Uncompressed chunks
take 0.6 of that time and the full space, 14 GB for ten windows; zstd, which data sets use, saves
another 0.02 and takes 1.6 times as long. Equal weights shrink to 0.5 %. These times were measured
without checksums, of which a core computes 0.7 GB/s.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Bool, Float32, Shaped

from powerphase.errors import ForecastError
from powerphase.files import disk_errors, flush, read_regular_file, replace_file
from powerphase.records.forecast_format import (
    ADVICE,
    FORECAST_LOCK,
    FORECAST_MANIFEST,
    ForecastHeader,
    ForecastManifest,
    check_same_forecast,
    check_weights,
    chunk_file,
    lock_directory,
    open_for_reading,
    open_for_writing,
    read_forecast_manifest,
    sha256_of,
)
from powerphase.resolution import MINUTE_S, uneven_steps


class ForecastFile:
    """A complete forecast, for reading; create it with `open_forecast`."""

    def __init__(self, path: Path, manifest: ForecastManifest) -> None:
        self.path, self.header, self.cost = path, manifest.header, manifest.cost or {}
        self._sha256 = manifest.sha256
        self._arrays = open_for_reading(path, manifest.header)
        self.time: Shaped[np.ndarray, "B H"] = self._load("time", "time/c/0/0").astype("M8[s]")
        """Start of every forecast step, `datetime64[s]`, UTC."""
        self._check_time()

    def blocks(self) -> list[slice]:
        """The slices of channels that are cheapest to read; together they are all channels."""
        return self.header.blocks()

    def read(
        self, window: int, channels: slice
    ) -> tuple[Float32[np.ndarray, "M H C"], Float32[np.ndarray, "M C"]]:
        """Normalised values and weights of a window's scenarios in some channels."""
        start, stop = self.header.channel_bounds(window, channels)
        parts: dict[str, list[np.ndarray]] = {"values": [], "weights": []}
        for number, block, part in self.header.overlapping_blocks(start, stop):
            try:
                for name, arrays in parts.items():
                    file = chunk_file(name, window, number)
                    arrays.append(self._load(name, file, (window, ..., part)))
                check_weights(self.path, parts["weights"][-1], window, part.start)
            except ForecastError as error:
                channel = block.start if error.channel is None else error.channel
                raise ForecastError(error.problem, window=window, channel=channel) from error
        values, weights = (np.concatenate(arrays, axis=-1) for arrays in parts.values())
        return values, weights

    def _load(self, name: str, file: str, selection: Any = ...) -> np.ndarray:
        """Part of an array; `file` is that of the chunk in which the part lies."""
        array, path = self._arrays[name], self.path / file
        try:
            # Zarr would return the fill value for a missing file, and wait for a pipe.
            content = read_regular_file(path, 2 * prod(array.chunks) * array.dtype.itemsize + 2**16)
            if file in self._sha256 and sha256_of(content) != self._sha256[file]:
                raise ValueError("it is not the file that was written here")
            return np.asarray(array[selection])
        except MemoryError:
            raise
        except Exception as error:  # codecs report broken bytes by many exception types
            raise ForecastError(f"{path}: the file is damaged ({error}); {ADVICE}") from error

    def _check_time(self) -> None:
        for window, (row, start) in enumerate(zip(self.time, self.header.windows, strict=True)):
            if row[0] != np.datetime64(start):
                raise ForecastError(
                    f"{self.path}: time starts at {row[0]}, the header says {start}; {ADVICE}",
                    window=window,
                )
            uneven = uneven_steps(row, self.header.step_s)
            if uneven.size:
                step, minutes = int(uneven[0]), self.header.step_s // MINUTE_S
                problem = f"{row[step]} is not {minutes} minutes after {row[step - 1]}"
                raise ForecastError(f"{self.path}: {problem}; {ADVICE}", window=window, step=step)


@dataclass(eq=False)
class _Chunk:
    """A chunk in memory, not yet stored; NaN where nothing was written."""

    window: int
    block: slice
    values: Float32[np.ndarray, "M H C"]
    weights: Float32[np.ndarray, "M C"]


class ForecastWriter:
    """Writes a forecast window by window; create it with `forecast_writer`, which holds the lock.

    One chunk is held in memory and stored when another is started. Blocks in order are therefore
    stored once, wherever their borders are; a chunk to which a later block belongs is read again.
    """

    def __init__(self, path: Path, header: ForecastHeader) -> None:
        self.path, self.header = path, header
        self._manifest = read_forecast_manifest(path) or ForecastManifest(header)
        check_same_forecast(path, self._manifest.header, header)
        self._written: dict[int, Bool[np.ndarray, " C"]] = {}
        self._chunk: _Chunk | None = None
        if not self._manifest.complete:
            self._save(self._manifest)  # first, since it marks the directory as a forecast
            self._arrays = open_for_writing(path, header)

    @property
    def finished(self) -> frozenset[int]:
        """The finished windows, which need not be forecast again."""
        return self._manifest.finished

    def write(
        self,
        window: int,
        channels: slice,
        values: Float32[np.ndarray, "M H C"],
        weights: Float32[np.ndarray, "M C"],
    ) -> None:
        """Write a window's scenarios in some channels; each channel is written once."""
        start, stop = self.header.channel_bounds(window, channels)
        self._check_block(window, start, stop, values, weights)
        for _, block, part in self.header.overlapping_blocks(start, stop):
            chunk = self._load_chunk(window, block)
            target = slice(part.start - block.start, part.stop - block.start)
            source = slice(part.start - start, part.stop - start)
            chunk.values[..., target] = values[..., source]
            chunk.weights[..., target] = weights[..., source]
            self._written[window][part] = True

    def finish_window(self, window: int) -> None:
        """Store a window and list it as finished; every channel must have been written."""
        missing = np.flatnonzero(~self._written_mask(window))
        if missing.size:
            raise ForecastError(
                f"{self.path}: {missing.size} of {self.header.n_channels} channels are missing; "
                "write every channel before finishing the window",
                window=window,
                channel=int(missing[0]),
            )
        with disk_errors(self.path, ForecastError):
            self._store_chunk()
            sha256 = dict(self._manifest.sha256)
            for file in self.header.chunk_files(window):
                flush(self.path / file)
                sha256[file] = sha256_of((self.path / file).read_bytes())
            finished = self.finished | {window}
            self._save(replace(self._manifest, finished=finished, sha256=sha256))
        del self._written[window]

    def close(self, cost: dict[str, Any]) -> None:
        """Mark the forecast as complete and save its cost; a complete forecast is not changed."""
        if self._manifest.complete:
            return
        missing = set(range(len(self.header.windows))) - self.finished
        if missing:
            raise ForecastError(
                f"{self.path}: {len(missing)} windows are not finished; finish every window before "
                "closing the forecast",
                window=min(missing),
            )
        with disk_errors(self.path, ForecastError):
            self._save(replace(self._manifest, cost=cost, complete=True))

    def _written_mask(self, window: int) -> Bool[np.ndarray, " C"]:
        """Which channels of an unfinished window were written by this writer."""
        self.header.check_window(window)
        if window in self.finished:
            raise ForecastError(f"{self.path}: already finished; skip it", window=window)
        return self._written.setdefault(window, np.zeros(self.header.n_channels, dtype=bool))

    def _check_block(
        self, window: int, start: int, stop: int, values: np.ndarray, weights: np.ndarray
    ) -> None:
        twice = np.flatnonzero(self._written_mask(window)[start:stop])
        if twice.size:
            problem = f"{self.path}: already written; write every channel of a window once"
            raise ForecastError(problem, window=window, channel=start + int(twice[0]))
        n_scenarios, n_channels = self.header.scenarios, stop - start
        shape = (n_scenarios, self.header.horizon, n_channels)
        required = (("values", values, shape), ("weights", weights, (n_scenarios, n_channels)))
        for name, array, size in required:
            if array.shape != size or array.dtype != np.float32:
                problem = f"{name} must be float32 {size}, found {array.dtype} {array.shape}"
                raise ForecastError(f"{self.path}: {problem}", window=window, channel=start)
        check_weights(self.path, weights, window, start)

    def _load_chunk(self, window: int, block: slice) -> _Chunk:
        """The chunk of these channels in memory; stores the one that was there before."""
        chunk = self._chunk
        if chunk is not None and (chunk.window, chunk.block) == (window, block):
            return chunk
        with disk_errors(self.path, ForecastError):
            self._store_chunk()
        values, weights = self._arrays["values"], self._arrays["weights"]
        if self._written[window][block].any():
            parts = [np.asarray(array[window, ..., block]) for array in (values, weights)]
        else:  # ignore what a killed process may have left in this chunk
            shapes = [(*array.shape[1:-1], block.stop - block.start) for array in (values, weights)]
            parts = [np.full(shape, np.nan, dtype=np.float32) for shape in shapes]
        self._chunk = _Chunk(window, block, *parts)
        return self._chunk

    def _store_chunk(self) -> None:
        chunk = self._chunk
        if chunk is not None:
            window = slice(chunk.window, chunk.window + 1)
            self._arrays["values"][window, ..., chunk.block] = chunk.values[None]
            self._arrays["weights"][window, ..., chunk.block] = chunk.weights[None]
            self._chunk = None

    def _save(self, manifest: ForecastManifest) -> None:
        replace_file(self.path / FORECAST_MANIFEST, manifest.to_json().encode())
        self._manifest = manifest


@contextmanager
def forecast_writer(path: str | Path, header: ForecastHeader) -> Iterator[ForecastWriter]:
    """The writer of the forecast at `path`; an unfinished forecast of this header is continued."""
    if "://" in str(path):
        raise ForecastError(f"{path}: a forecast is written to a local directory; give its path")
    directory = Path(path)
    with disk_errors(directory, ForecastError):
        lock = lock_directory(directory)
    with lock:
        try:
            with disk_errors(directory, ForecastError):
                writer = ForecastWriter(directory, header)
            yield writer
        finally:
            (directory / FORECAST_LOCK).unlink(missing_ok=True)


def is_forecast(path: str | Path) -> bool:
    """Whether the directory `path` holds a forecast, finished or not."""
    return (Path(path) / FORECAST_MANIFEST).is_file()


def read_values(path: str | Path, window: int, channels: slice) -> Float32[np.ndarray, "M H C"]:
    """The values of a finished window; the forecast itself need not be complete."""
    array = zarr.open_array(Path(path) / "values", mode="r")
    return np.asarray(array[window, ..., channels])


def open_forecast(path: str | Path) -> ForecastFile:
    """The complete forecast in the directory `path`."""
    manifest = read_forecast_manifest(Path(path))
    if manifest is None:
        raise ForecastError(f"{path}: not a forecast; make one with `powerphase forecast`")
    if not manifest.complete:
        n_finished, n_windows = len(manifest.finished), len(manifest.header.windows)
        raise ForecastError(
            f"{path}: only {n_finished} of {n_windows} windows are finished; run the same "
            "`powerphase forecast` again to finish it"
        )
    return ForecastFile(Path(path), manifest)
