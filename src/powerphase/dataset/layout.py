"""The arrays of a data set (Zarr 3), in a local directory or at a URL that fsspec can read.

The record is cut into blocks of ten days. A block of `state` is one shard of inner chunks of 960
steps x 128 channels, a compromise between reading a window of all channels and one bus over all
time. Chunks are transposed before compression, so that the steps of a channel are contiguous; the
six data sets take 0.50 to 0.58 of their raw size. Every chunk has a CRC, so that any reader, not
only `verify`, stops at a flipped bit.
"""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Bool, Float, Float32, UInt8
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore, StoreLike

from powerphase.axes import STEPS_PER_DAY, UNITS, VARIABLES, P, Q
from powerphase.files import read_regular_file

MAX_FILE_BYTES = 2**28
"""No manifest and no file outside the blocks comes near this size."""


def read_bytes(path: str) -> bytes:
    """The content of a local file or of a URL."""
    if not is_url(path):
        return read_regular_file(Path(path), MAX_FILE_BYTES)
    import fsspec

    with fsspec.open(path, "rb") as file:
        content = bytes(file.read(MAX_FILE_BYTES + 1))
    if len(content) > MAX_FILE_BYTES:
        raise OSError(EFBIG, f"larger than {MAX_FILE_BYTES:,} bytes", path)
    return content


def is_url(path: str | Path) -> bool:
    """Whether `path` is a URL, which fsspec reads."""
    return isinstance(path, str) and "://" in path


def zarr_store(path: str | Path, read_only: bool = True) -> StoreLike:
    """The Zarr store of a directory or URL."""
    if is_url(path):
        return zarr.storage.FsspecStore.from_url(str(path), read_only=read_only)
    return zarr.storage.LocalStore(Path(path), read_only=read_only)


BLOCK_STEPS = 10 * STEPS_PER_DAY
CHUNK_CHANNELS = 128
STATE = "state"
OBSERVED = "observed"
"""Which states of imported data are observed; the others were filled."""

PROVENANCE = ("newton", "iwamoto", "backed off", "carried forward", "as imported")
"""Names of the codes in the array `provenance`; the first four are those of
`powerphase.grid.powerflow`, and generated data have no others."""

AS_IMPORTED = 4
"""The provenance of a step that was not solved."""

PER_STEP: dict[str, tuple[str, float, str]] = {
    "provenance": ("uint8", 255, "0 Newton, 1 Iwamoto, 2 backed off, 3 carried forward"),
    "backoff": ("float32", np.nan, "scale of the step's injections; NaN where carried forward"),
    "iterations": (
        "uint8",
        255,
        "iterations of the successful attempt (frozen or full Newton); 0 if carried",
    ),
    "mismatch": ("float32", np.nan, "largest AC mismatch before rounding to float32 [p.u.]"),
}
"""Type, fill value and meaning of the arrays with one value per step."""

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "time": ("time",),
    "signals": ("time", "signal"),
    "bus": ("channel",),
    "variable": ("channel",),
    "grid/base_mva": ("one",),
    **{f"grid/{name}": (f"n_{name}", f"{name}_column") for name in ("bus", "gen", "branch")},
    **{
        f"grid/{name}": ("n_bus",)
        for name in (
            *("bus_id", "bus_type", "setpoint_pu", "archetype", "power_factor", "region"),
            *("high_voltage", "nominal_kv"),
        )
    },
    **{f"grid/ybus_{name}": ("ybus_entry",) for name in ("data", "indices")},
    "grid/ybus_indptr": ("ybus_row",),
}
"""The names of the axes of arrays outside the blocks, for readers such as xarray."""

CLOCK_ATTRIBUTES = {
    "units": "seconds since 1970-01-01",
    "calendar": "proleptic_gregorian",
}
"""By which readers such as xarray tell times from numbers; the times are UTC."""

Static = Mapping[str, tuple[np.ndarray, str]]
"""Values and meaning of the arrays that describe the whole data set."""


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive steps of the record: states [P, Q, V, θ] per bus, and how each was solved."""

    state: Float32[np.ndarray, "S C"]
    provenance: UInt8[np.ndarray, " S"]
    backoff: Float32[np.ndarray, " S"]
    iterations: UInt8[np.ndarray, " S"]
    mismatch: Float32[np.ndarray, " S"]
    observed: Bool[np.ndarray, "S C"] | None = None
    """Which states are observed; None if all are, as in generated data."""

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and values of each array, in a fixed order."""
        for name in (STATE, *PER_STEP):
            yield name, getattr(self, name)
        if self.observed is not None:
            yield OBSERVED, self.observed


def static_files(
    n_steps: int,
    n_buses: int,
    attributes: dict[str, Any],
    static: Static,
    observed: bool = False,
) -> dict[str, bytes]:
    """Every file of a data set outside the blocks, by its path: metadata and context.

    They are built in memory, so that each can be written, compared and restored by itself. The
    root's metadata contain those of all arrays, so that a reader needs only one file of them.
    With `observed`, blocks say which states are.
    """
    static = {**static, **_channel_coordinates(static)}
    files: dict[str, Any] = {}
    store = MemoryStore(files)
    zarr.create_group(store, attributes=attributes)
    _create_state(store, n_steps, len(VARIABLES) * n_buses)
    if observed:
        _create_observed(store, n_steps, len(VARIABLES) * n_buses)
    for name, (dtype, fill, meaning) in PER_STEP.items():
        zarr.create_array(
            store,
            name=name,
            shape=(n_steps,),
            dtype=dtype,
            chunks=(BLOCK_STEPS,),
            compressors=[ZstdCodec(), Crc32cCodec()],
            fill_value=fill,
            dimension_names=("time",),
            attributes={"meaning": meaning},
        )
    for name, (values, meaning) in static.items():
        array = zarr.create_array(
            store,
            name=name,
            shape=values.shape,
            dtype="str" if values.dtype.kind == "U" else values.dtype,
            chunks=values.shape,
            compressors=[ZstdCodec(), Crc32cCodec()],
            dimension_names=dimensions_of(name, values.ndim),
            attributes={"meaning": meaning, **(CLOCK_ATTRIBUTES if name == "time" else {})},
        )
        array[...] = values
    with warnings.catch_warnings():
        # Zarr's specification leaves it to readers whether they use the consolidated metadata.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(store)
    return {path: files[path].to_bytes() for path in sorted(files)}


def _create_state(store: MemoryStore, n_steps: int, n_channels: int) -> None:
    padded = -(-n_channels // CHUNK_CHANNELS) * CHUNK_CHANNELS  # a shard holds whole chunks
    zarr.create_array(
        store,
        name=STATE,
        shape=(n_steps, n_channels),
        dtype="float32",
        chunks=(BLOCK_STEPS, CHUNK_CHANNELS),
        shards=(BLOCK_STEPS, padded),
        filters=[TransposeCodec(order=(1, 0))],
        compressors=[BloscCodec(cname="zstd", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        fill_value=np.nan,  # a missing chunk must not read as a plausible number
        dimension_names=("time", "channel"),
        attributes={
            "variables": list(VARIABLES),
            "units": UNITS,
            "order": "P, Q, V, theta per bus",
            "coordinates": "bus variable",
        },
    )


def dimensions_of(name: str, ndim: int) -> tuple[str, ...]:
    """The names of an array's axes; of an array that is not listed, numbered ones of its own."""
    numbered = tuple(f"{name.rpartition('/')[2]}_{axis}" for axis in range(ndim))
    return DIMENSIONS.get(name, numbered)


def _channel_coordinates(static: Static) -> Static:
    """Bus and variable of every channel."""
    if "grid/bus_id" not in static:
        return {}
    bus_id = static["grid/bus_id"][0]
    return {
        "bus": (np.repeat(bus_id, len(VARIABLES)), "bus number of each channel"),
        "variable": (np.tile(VARIABLES, len(bus_id)), "variable of each channel"),
    }


def _create_observed(store: MemoryStore, n_steps: int, n_channels: int) -> None:
    zarr.create_array(
        store,
        name=OBSERVED,
        shape=(n_steps, n_channels),
        dtype="bool",
        chunks=(BLOCK_STEPS, n_channels),
        filters=[TransposeCodec(order=(1, 0))],
        compressors=[ZstdCodec(), Crc32cCodec()],
        fill_value=False,
        dimension_names=("time", "channel"),
        attributes={"meaning": "whether a state is observed; the others were filled"},
    )


def sha256_of(values: np.ndarray | bytes) -> str:
    """Checksum of a file's bytes, or of an array's decoded bytes in C order."""
    content = values if isinstance(values, bytes) else np.ascontiguousarray(values).data
    return hashlib.sha256(content).hexdigest()


def largest_power(state: Float[np.ndarray, "S C"]) -> list[float]:
    """Largest |P| [MW] and |Q| [MVAr] of solved states; 0 if no step is solved."""
    size = np.fmax.reduce(abs(state), axis=0, initial=0.0)  # fmax ignores unsolved steps
    return [float(size[kind :: len(VARIABLES)].max()) for kind in (P, Q)]
