"""The arrays of a data set on disk: names, shapes, chunks and codecs.

Zarr 3. The record is cut into blocks of ten days. A block of `state` is one shard of inner chunks
of 960 steps x 128 channels, transposed before compression so that a channel's steps lie together:
of the layouts measured it reads fastest both for a window of all channels and for one bus over all
time, and takes 0.57 of the raw size. Every chunk carries a CRC, so that any reader, not only
`verify`, stops at a flipped bit.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from jaxtyping import Float32, UInt8
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import StoreLike

from powerphase.axes import STEPS_PER_DAY, UNITS, VARIABLES

BLOCK_STEPS = 10 * STEPS_PER_DAY
CHUNK_CHANNELS = 128
STATE = "state"

PER_STEP: dict[str, tuple[str, float, str]] = {
    "provenance": ("uint8", 255, "0 Newton, 1 Iwamoto, 2 backed off, 3 carried forward"),
    "backoff": ("float32", np.nan, "scale of the step's injections; NaN where carried forward"),
    "iterations": ("uint8", 255, "Newton iterations of the successful attempt; 0 if carried"),
    "mismatch": ("float32", np.nan, "largest AC mismatch before rounding to float32 [p.u.]"),
}
"""Type, fill value and meaning of the arrays with one value per step."""


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


def create_arrays(store: StoreLike, n_steps: int, n_buses: int, attributes: dict[str, Any]) -> None:
    """Lay out an empty record in an empty store."""
    n_channels = len(VARIABLES) * n_buses
    padded = -(-n_channels // CHUNK_CHANNELS) * CHUNK_CHANNELS
    zarr.create_group(store, attributes=attributes)
    zarr.create_array(
        store,
        name=STATE,
        shape=(n_steps, n_channels),
        dtype="float32",
        # Inner chunk and shard; the shard must hold whole chunks.
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


def write_static(store: StoreLike, name: str, values: np.ndarray, meaning: str) -> None:
    """Write (or write anew) one array that describes the whole data set."""
    array = zarr.create_array(
        store,
        name=name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=values.shape,
        compressors=[ZstdCodec(), Crc32cCodec()],
        attributes={"meaning": meaning},
        overwrite=True,
    )
    array[...] = values


def sha256_of(values: np.ndarray) -> str:
    """Checksum of an array's decoded bytes, in C order."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()
