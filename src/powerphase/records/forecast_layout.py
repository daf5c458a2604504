"""The arrays and files of a forecast on disk: shapes, chunks, codecs, the lock, what may go in."""

from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Float32
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec
from zarr.storage import LocalStore, MemoryStore

from powerphase.axes import STEP_S, WEIGHT_TOLERANCE
from powerphase.errors import ForecastError
from powerphase.files import hold_lock, replace_file
from powerphase.records.forecast_header import ADVICE, RECORD, ForecastHeader

LOCK = ".powerphase-lock"


def _plan(h: ForecastHeader) -> dict[str, tuple[str, float, dict[str, int]]]:
    """Type, fill value and chunk of each array; a missing chunk must not read as plausible."""
    width, never = h.blocks()[0].stop, int(np.iinfo(np.int64).min)
    block = {"window": 1, "scenario": h.scenarios, "step": h.horizon, "channel": width}
    return {
        "values": ("float32", np.nan, block),
        "weights": ("float32", np.nan, {axis: block[axis] for axis in block if axis != "step"}),
        "time": ("int64", never, {"window": len(h.windows), "step": h.horizon}),
    }


def create_arrays(store: MemoryStore, h: ForecastHeader) -> dict[str, "zarr.Array[Any]"]:
    """The arrays of a forecast, of which only `time` is filled."""
    zarr.create_group(store)
    sizes = {"window": len(h.windows), "channel": h.n_channels}
    arrays = {}
    for name, (dtype, fill, chunk) in _plan(h).items():
        last = len(chunk) - 1
        arrays[name] = zarr.create_array(
            store,
            name=name,
            shape=tuple(sizes.get(axis, chunk[axis]) for axis in chunk),
            dtype=dtype,
            chunks=tuple(chunk.values()),
            filters=[TransposeCodec(order=(0, last, *range(1, last)))],
            compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"), Crc32cCodec()],
            fill_value=fill,
            dimension_names=tuple(chunk),
        )
    starts = np.array(h.windows, dtype="datetime64[s]").astype(np.int64)
    arrays["time"][...] = starts[:, None] + STEP_S * np.arange(h.horizon)
    return arrays


def prepare(path: Path, header: ForecastHeader) -> dict[str, "zarr.Array[Any]"]:
    """Write metadata and clock, whatever is there of them, and open the arrays for writing."""
    files: dict[str, Any] = {}
    arrays = create_arrays(MemoryStore(files), header)
    for name, content in files.items():
        replace_file(path / name, content.to_bytes())
    for name in arrays:
        for leftover in (path / name / "c").rglob("*.partial"):
            leftover.unlink()
    # Zarr would not store a chunk of nothing but NaN, which then looks like a lost one.
    with zarr.config.set({"array.write_empty_chunks": True}):
        return {name: zarr.open_array(LocalStore(path), path=name, mode="r+") for name in arrays}


def open_array(path: Path, name: str, needed: "zarr.Array[Any]") -> "zarr.Array[Any]":
    """An array for reading, which must be as the header says."""
    try:
        array = zarr.open_array(LocalStore(path, read_only=True), path=name, mode="r")
        found, said = array.metadata.to_dict(), needed.metadata.to_dict()
    except Exception as error:  # whatever Zarr finds wrong with its metadata
        raise ForecastError(f"{path}: no array {name} ({error}); {ADVICE}") from error
    for key in said:
        if found.get(key) != said[key]:
            raise ForecastError(
                f"{path}: the {key} of {name} is {found.get(key)!r}, but by {RECORD} it must be "
                f"{said[key]!r}; {ADVICE}"
            )
    return array


def locked(path: Path) -> TextIOWrapper:
    """The lock of a directory for forecasts; one with other content is refused."""
    path.mkdir(parents=True, exist_ok=True)
    content = {file.name for file in path.iterdir()} - {LOCK, f"{RECORD}.partial"}
    if content and RECORD not in content:
        raise ForecastError(f"{path}: holds files that are no forecast; choose an empty place")
    lock = path / LOCK
    try:
        return hold_lock(lock)
    except BlockingIOError:
        problem = "another process is writing it; wait for it or choose another place"
        raise ForecastError(f"{path}: {problem}") from None


def check_window(h: ForecastHeader, window: int) -> None:
    """Refuse a window that is not there."""
    if not 0 <= window < len(h.windows):
        raise ForecastError(f"no window {window}; the forecast has {len(h.windows)}, from 0 on")


def bounds(h: ForecastHeader, window: int, channels: slice) -> tuple[int, int]:
    """First and last (excluded) of the channels, which must be there in this window."""
    check_window(h, window)
    start = 0 if channels.start is None else channels.start
    stop = h.n_channels if channels.stop is None else channels.stop
    if channels.step not in (None, 1) or not 0 <= start < stop <= h.n_channels:
        problem = f"channels must be a contiguous part of {h.n_channels}, found {channels}"
        raise ForecastError(problem, window=window)
    return start, stop


def parts(h: ForecastHeader, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
    """Number and channels of each chunk that is touched, and which of them are asked for."""
    for number, block in enumerate(h.blocks()):
        if block.start < stop and start < block.stop:
            yield number, block, slice(max(block.start, start), min(block.stop, stop))


def check_weights(path: Path, weights: Float32[np.ndarray, "M C"], window: int, start: int) -> None:
    """Refuse weights with which nothing can be scored, before more of them are computed."""
    total = weights.sum(axis=0, dtype=np.float64)
    wrong = np.flatnonzero(~(np.abs(total - 1) <= WEIGHT_TOLERANCE) | (weights < 0).any(axis=0))
    if wrong.size:
        first = int(wrong[0])
        problem = f"weights sum to {total[first]:.6g}, the least is {weights[:, first].min():.6g}"
        raise ForecastError(
            f"{path}: {problem}; give weights of 0 or more that sum to 1 over the scenarios",
            window=window,
            channel=start + first,
        )
