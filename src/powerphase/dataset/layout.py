"""The arrays of a data set on disk: names, shapes, chunks and codecs.

Zarr 3. The record is cut into blocks of ten days. A block of `state` is one shard of inner chunks
of 960 steps x 128 channels: a compromise between reading a window of all channels and one bus over
all time. Chunks are transposed before compression, so that a channel's steps lie together; the six
data sets take 0.50 to 0.58 of their raw size. Every chunk carries a CRC, so that any reader, not
only `verify`, stops at a flipped bit.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from jaxtyping import Float32, UInt8
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore

from powerphase.axes import STEPS_PER_DAY, UNITS, VARIABLES

BLOCK_STEPS = 10 * STEPS_PER_DAY
CHUNK_CHANNELS = 128
STATE = "state"

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


Static = Mapping[str, tuple[np.ndarray, str]]
"""Values and meaning of the arrays that describe the whole data set."""


@dataclass(frozen=True, eq=False)
class Block:
    """One stretch of the record: states [P, Q, V, θ] per bus, and how each was solved."""

    state: Float32[np.ndarray, "S C"]
    provenance: UInt8[np.ndarray, " S"]
    backoff: Float32[np.ndarray, " S"]
    iterations: UInt8[np.ndarray, " S"]
    mismatch: Float32[np.ndarray, " S"]

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and values of each array, in a fixed order."""
        for name in (STATE, *PER_STEP):
            yield name, getattr(self, name)


def static_files(
    n_steps: int, n_buses: int, attributes: dict[str, Any], static: Static
) -> dict[str, bytes]:
    """Every file of a data set that is not part of a block, by its path: metadata and context.

    They are made in memory, so that they can be written, compared and restored one by one.
    """
    files: dict[str, Any] = {}
    store = MemoryStore(files)
    zarr.create_group(store, attributes=attributes)
    _create_state(store, n_steps, len(VARIABLES) * n_buses)
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
            dtype=values.dtype,
            chunks=values.shape,
            compressors=[ZstdCodec(), Crc32cCodec()],
            attributes={"meaning": meaning},
        )
        array[...] = values
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
        },
    )


def sha256_of(values: np.ndarray | bytes) -> str:
    """Checksum of a file's bytes, or of an array's, decoded, in C order."""
    content = values if isinstance(values, bytes) else np.ascontiguousarray(values).data
    return hashlib.sha256(content).hexdigest()
