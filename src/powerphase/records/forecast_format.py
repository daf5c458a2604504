"""The format of a forecast on disk: its header, its manifest `forecast.json`, and its arrays."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Float32
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec
from zarr.storage import LocalStore, MemoryStore

from powerphase.axes import VARIABLES, WEIGHT_TOLERANCE
from powerphase.errors import ForecastError
from powerphase.files import hold_lock, is_json_object, read_regular_file, replace_file
from powerphase.records.result_rules import FAILED, are_window_starts
from powerphase.records.row_key import RowKey
from powerphase.resolution import PAPER_STEP_S, STEPS_S
from powerphase.schema import (
    MAX_JSON_BYTES,
    OptionalKey,
    Rule,
    Schema,
    check,
    integer,
    list_of,
    nullable,
    number,
    object_with,
    one_of,
    plain_object,
    read_json,
    text,
)

FORECAST_MANIFEST = "forecast.json"
FORECAST_LOCK = ".powerphase-lock"
FORMAT = 2
"""Raised whenever a reader of older forecasts would misread or reject a newer one."""

CHUNK_BYTES = 2**24
MAX_BUS_BYTES = 2**32
"""The most that a chunk takes of one bus: 2.8 million scenarios of a day."""
MAX_TIMES = 10**7
"""The most forecast steps of all windows together: 285 years of days."""

ADVICE = "restore it, or remove the directory and run the same `powerphase forecast` again"

_CHECKSUM = text("64 hexadecimal digits", r"[0-9a-f]{64}")

# The largest grids have 10⁵ channels; larger counts than these would ask for terabytes.
HEADER_SCHEMA: dict[str, Schema] = {
    **dict.fromkeys(("task", "grid", "edition", "model", "version"), text()),
    "task_version": integer(1),
    "context": integer(1, 10**6),
    "horizon": integer(1, 10**5),
    "step_s": OptionalKey(one_of(STEPS_S)),  # without it, 15 minutes
    "windows": Rule("a list of ascending UTC times such as '2016-07-01T00:00'", are_window_starts),
    "fingerprint": _CHECKSUM,
    "n_channels": Rule(
        f"a multiple of {len(VARIABLES)} up to 10,000,000",
        lambda value: integer(1, 10**7).holds(value) and value % len(VARIABLES) == 0,
    ),
    "scenarios": integer(1, 10**7),
    "scale": Rule(
        "two positive numbers",
        lambda value: list_of(number(float(np.finfo(float).tiny))).holds(value) and len(value) == 2,
    ),
    "variant": nullable(text()),
    "config": plain_object,
    "parameters": nullable(integer(0)),
    "seed": integer(0, 2**63),
    "joint": nullable(one_of([True, False])),
    "model_version": integer(1),
}
MANIFEST_SCHEMA: dict[str, Schema] = {
    **HEADER_SCHEMA,
    "format": one_of([FORMAT]),
    "cost": nullable(object_with({}, {"failed": nullable(FAILED)})),
    "finished": list_of(integer(0)),
    "sha256": Rule(
        "checksums by file",
        lambda value: isinstance(value, dict) and all(map(_CHECKSUM.holds, value.values())),
    ),
    "complete": one_of([True, False]),
}


@dataclass(frozen=True)
class ForecastHeader:
    """What a forecast is of and which model made it: everything that identifies a forecast."""

    task: str
    task_version: int
    context: int
    horizon: int
    windows: list[str]
    """UTC start of each window's first forecast step, such as `2016-07-01T00:00`."""
    grid: str
    edition: str
    fingerprint: str
    n_channels: int
    scenarios: int
    scale: list[float]
    """The P [MW] and Q [MVAr] by which values were divided."""
    model: str
    variant: str | None
    config: dict[str, Any]
    parameters: int | None
    seed: int
    version: str
    """The version of powerphase."""
    joint: bool | None = None
    """Whether each scenario is one future of the whole grid; None if unknown."""
    model_version: int = 1
    """The version of the model's results."""
    step_s: int = PAPER_STEP_S
    """Seconds from one step to the next."""

    def __post_init__(self) -> None:
        check(vars(self), HEADER_SCHEMA, "header", ForecastError, "give a valid header")
        bus_bytes = 4 * len(VARIABLES) * self.scenarios * self.horizon
        if bus_bytes > MAX_BUS_BYTES or len(self.windows) * self.horizon > MAX_TIMES:
            raise ForecastError(
                f"{self.scenarios:,} scenarios of {self.horizon:,} steps in {len(self.windows):,} "
                "windows are more than a forecast can hold; use fewer"
            )

    @property
    def key(self) -> RowKey:
        """The key of the row that the forecast gets when it is scored."""
        return RowKey(self.task, self.edition, self.grid, self.model, self.variant, self.seed)

    def blocks(self) -> list[slice]:
        """The channels of each chunk, in order; together they are all channels."""
        per_bus = len(VARIABLES)
        buses = CHUNK_BYTES // (4 * per_bus * self.scenarios * self.horizon)
        width = min(per_bus * max(buses, 1), self.n_channels)
        starts = range(0, self.n_channels, width)
        return [slice(start, min(start + width, self.n_channels)) for start in starts]

    def chunk_files(self, window: int) -> Iterator[str]:
        """The files of a window's chunks, relative to the directory."""
        for k in range(len(self.blocks())):
            yield from (chunk_file(name, window, k) for name in ("values", "weights"))

    def check_window(self, window: int) -> None:
        """Raise if the forecast has no such window."""
        if not 0 <= window < len(self.windows):
            raise ForecastError(
                f"no window {window}; the forecast has {len(self.windows)}, counted from 0"
            )

    def channel_bounds(self, window: int, channels: slice) -> tuple[int, int]:
        """First and last (excluded) of the channels; raise if the forecast does not have them."""
        self.check_window(window)
        start = 0 if channels.start is None else channels.start
        stop = self.n_channels if channels.stop is None else channels.stop
        if channels.step not in (None, 1) or not 0 <= start < stop <= self.n_channels:
            problem = f"channels must be a contiguous part of {self.n_channels}, found {channels}"
            raise ForecastError(problem, window=window)
        return start, stop

    def overlapping_blocks(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        """Number and channels of each chunk that overlaps a range, and the overlap."""
        for k, block in enumerate(self.blocks()):
            if block.start < stop and start < block.stop:
                yield k, block, slice(max(block.start, start), min(block.stop, stop))


@dataclass(frozen=True)
class ForecastManifest:
    """The content of `forecast.json`: the header, and which windows are finished."""

    header: ForecastHeader
    finished: frozenset[int] = frozenset()
    cost: dict[str, Any] | None = None
    complete: bool = False
    sha256: Mapping[str, str] = field(default_factory=dict)
    """The checksum of each chunk of the finished windows, by its file: a chunk of another window or
    of other channels does not have it."""

    def __post_init__(self) -> None:
        every = set(range(len(self.header.windows)))
        if not self.finished <= every:
            raise ForecastError(f"windows {set(self.finished - every)} are finished but not listed")
        if self.cost is not None and not is_json_object(self.cost):
            raise ForecastError(f"cost must be a JSON object, found {self.cost!r}")
        if self.complete and (self.cost is None or self.finished != every):
            raise ForecastError("marked as complete, but windows or cost are missing")
        self._check_checksums()

    def _check_checksums(self) -> None:
        """Raise unless there is a checksum for each chunk of the finished windows, and no other."""
        n_chunks = 2 * len(self.header.blocks()) * len(self.finished)
        files = (self.header.chunk_files(window) for window in self.finished)
        # Counted first: the header may claim more chunks than can be listed.
        if len(self.sha256) != n_chunks or not all(map(self.sha256.__contains__, chain(*files))):
            raise ForecastError(
                f"{len(self.sha256)} checksums do not belong to the {n_chunks} chunks of the "
                "finished windows"
            )

    def to_json(self) -> str:
        """The manifest as text; equal manifests give equal text."""
        progress = {"cost": self.cost, "finished": sorted(self.finished), "complete": self.complete}
        checksums = {"sha256": dict(sorted(self.sha256.items()))}
        header = asdict(self.header)
        if self.header.step_s == PAPER_STEP_S:  # which files have never stated
            del header["step_s"]
        values = {"format": FORMAT, **header, **progress, **checksums}
        return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ForecastManifest":
        """The manifest that was written as `values`."""
        names = ("format", "cost", "finished", "complete", "sha256")
        _, cost, finished, complete, sha256 = (values.pop(name) for name in names)
        values["scale"] = [float(value) for value in values["scale"]]
        return cls(ForecastHeader(**values), frozenset(finished), cost, complete, sha256)


def chunk_file(name: str, window: int, block: int) -> str:
    """The file of a chunk of the array `values` or `weights`, relative to the directory."""
    return f"{name}/c/{window}/{'0/0' if name == 'values' else '0'}/{block}"


def sha256_of(content: bytes) -> str:
    """The checksum of a chunk."""
    return hashlib.sha256(content).hexdigest()


def read_forecast_manifest(path: Path) -> ForecastManifest | None:
    """The manifest of the forecast at `path`, or None if there is no forecast."""
    file = path / FORECAST_MANIFEST
    if not file.exists():
        return None
    values = read_json(file, MANIFEST_SCHEMA, ForecastError, ADVICE, ("format", FORMAT))
    try:
        return ForecastManifest.from_json(values)
    except ForecastError as error:
        raise ForecastError(f"{file}: {error}; {ADVICE}") from error


def check_same_forecast(path: Path, existing: ForecastHeader, new: ForecastHeader) -> None:
    """Raise if the directory holds another forecast."""
    names = [field.name for field in fields(ForecastHeader)]
    differing = [name for name in names if getattr(existing, name) != getattr(new, name)]
    if differing:
        raise ForecastError(
            f"{path}: holds another forecast (different {', '.join(differing)}); choose another "
            "directory or remove this one"
        )


def create_arrays(store: MemoryStore, header: ForecastHeader) -> dict[str, "zarr.Array[Any]"]:
    """The arrays of a forecast, of which only `time` is filled."""
    zarr.create_group(store)
    sizes = {"window": len(header.windows), "channel": header.n_channels}
    arrays = {}
    for name, (dtype, fill, chunk) in _array_specs(header).items():
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
    starts = np.array(header.windows, dtype="datetime64[s]").astype(np.int64)
    arrays["time"][...] = starts[:, None] + header.step_s * np.arange(header.horizon)
    return arrays


def _array_specs(h: ForecastHeader) -> dict[str, tuple[str, float, dict[str, int]]]:
    """Type, fill value and chunk of each array; a missing chunk must not look plausible."""
    width, never = h.blocks()[0].stop, int(np.iinfo(np.int64).min)
    block = {"window": 1, "scenario": h.scenarios, "step": h.horizon, "channel": width}
    return {
        "values": ("float32", np.nan, block),
        "weights": ("float32", np.nan, {axis: block[axis] for axis in block if axis != "step"}),
        "time": ("int64", never, {"window": len(h.windows), "step": h.horizon}),
    }


def open_for_writing(path: Path, header: ForecastHeader) -> dict[str, "zarr.Array[Any]"]:
    """Write metadata and times, replacing what exists of them, and open the arrays for writing."""
    files: dict[str, Any] = {}
    arrays = create_arrays(MemoryStore(files), header)
    for name, content in files.items():
        replace_file(path / name, content.to_bytes())
    for name in arrays:
        for leftover in (path / name / "c").rglob("*.partial"):
            leftover.unlink()
    # Zarr would skip a chunk that is all NaN, and a missing chunk looks like a lost one.
    with zarr.config.set({"array.write_empty_chunks": True}):
        return {name: zarr.open_array(LocalStore(path), path=name, mode="r+") for name in arrays}


def open_for_reading(path: Path, header: ForecastHeader) -> dict[str, "zarr.Array[Any]"]:
    """Open the arrays for reading; raise if one differs from what the header implies."""
    expected = create_arrays(MemoryStore(), header)
    return {name: _open_array(path, name, array) for name, array in expected.items()}


def _open_array(path: Path, name: str, expected: "zarr.Array[Any]") -> "zarr.Array[Any]":
    try:
        read_regular_file(path / name / "zarr.json", MAX_JSON_BYTES)  # Zarr would wait for a pipe
        array = zarr.open_array(LocalStore(path, read_only=True), path=name, mode="r")
        actual, required = array.metadata.to_dict(), expected.metadata.to_dict()
    except Exception as error:  # Zarr reports broken metadata by many exception types
        raise ForecastError(f"{path}: no array {name} ({error}); {ADVICE}") from error
    for key in required:
        if actual.get(key) != required[key]:
            raise ForecastError(
                f"{path}: the {key} of {name} is {actual.get(key)!r}, but {FORECAST_MANIFEST} "
                f"requires {required[key]!r}; {ADVICE}"
            )
    return array


def lock_directory(path: Path) -> TextIOWrapper:
    """Create and lock a directory for a forecast; raise if it holds other files."""
    path.mkdir(parents=True, exist_ok=True)
    content = {file.name for file in path.iterdir()} - {
        FORECAST_LOCK,
        f"{FORECAST_MANIFEST}.partial",
    }
    if content and FORECAST_MANIFEST not in content:
        raise ForecastError(
            f"{path}: holds files that are not a forecast; choose an empty directory"
        )
    try:
        return hold_lock(path / FORECAST_LOCK)
    except BlockingIOError:
        problem = "another process is writing it; wait for it or choose another directory"
        raise ForecastError(f"{path}: {problem}") from None


def check_weights(path: Path, weights: Float32[np.ndarray, "M C"], window: int, start: int) -> None:
    """Raise if weights cannot be scored, before more of them are computed."""
    total = weights.sum(axis=0, dtype=np.float64)
    wrong = np.flatnonzero(~(np.abs(total - 1) <= WEIGHT_TOLERANCE) | (weights < 0).any(axis=0))
    if wrong.size:
        first = int(wrong[0])
        smallest = weights[:, first].min()
        raise ForecastError(
            f"{path}: weights sum to {total[first]:.6g}, the smallest is {smallest:.6g}; they must "
            "be 0 or more and sum to 1 over the scenarios",
            window=window,
            channel=start + first,
        )
