"""The files of a data set: its arrays (Zarr 3) and its manifest (one JSON file).

The record is cut into blocks of ten days. A block of `state` is one shard of inner chunks of 960
steps x 128 channels, a compromise between reading a window of all channels and one bus over all
time. Chunks are transposed before compression, so that the steps of a channel are contiguous; the
six data sets take 0.50 to 0.58 of their raw size. Every chunk has a CRC, so that any reader, not
only `verify`, stops at a flipped bit.

The manifest is replaced whole, never edited in place, and also records progress: a block counts as
done once its checksums are in it. A killed generator can therefore leave a half-written file, but
never a false claim. The manifest does not depend on when, where or with how many workers the data
set was made.
"""

import hashlib
import json
import platform
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import zarr
from jaxtyping import Bool, Float, Float32, UInt8
from zarr.codecs import BloscCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore

from powerphase.axes import STEPS_PER_DAY, UNITS, VARIABLES, P, Q
from powerphase.clock import GERMANY, Calendar
from powerphase.dataset.imported import is_import
from powerphase.dataset.manifest_schema import manifest_schema
from powerphase.errors import CalendarError, StoreError
from powerphase.resolution import PAPER_STEP_S, steps_per_day
from powerphase.schema import parse_object

BLOCK_STEPS = 10 * STEPS_PER_DAY
CHUNK_CHANNELS = 128
STATE = "state"
OBSERVED = "observed"
"""Which states of imported data are observed; the others were filled."""
MANIFEST = "manifest.json"
PACKAGES = (
    "powerphase",
    "lightsim2grid",
    "llvmlite",
    "numba",
    "numcodecs",
    "numpy",
    "scipy",
    "zarr",
)
FORMAT = 2
"""Increased whenever a reader of older data sets would misread a newer one."""


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

SCHEMA = manifest_schema(FORMAT, (STATE, *PER_STEP))
ADVICE = "restore it or generate the data set anew"

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
    own = tuple(f"{name.rpartition('/')[2]}_{axis}" for axis in range(ndim))
    return DIMENSIONS.get(name, own)


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


@dataclass(frozen=True)
class BlockRecord:
    """The checksums of a block's arrays (of their decoded bytes), and facts about its steps."""

    sha256: dict[str, str]
    provenance: list[int]
    largest: list[float]
    """Largest |P| [MW] and |Q| [MVAr], from which a task gets its scales without a long read."""
    unsolved: int = 0
    """Steps without a state until the last pass, which carries states forward."""
    promised: dict[str, str] | None = None
    """While a damaged block is made again: the checksums that it had and must have again."""


@dataclass(frozen=True)
class Manifest:
    """Identity, origin, versions and checksums of a data set."""

    grid: str
    edition: str
    fingerprint: str
    recipe: dict[str, Any]
    n_steps: int
    n_buses: int
    block_steps: int
    attribution: list[str]
    filled_signal_values: int
    made_with: dict[str, str]
    cpu_features: list[str]
    static_sha256: dict[str, str]
    """Checksums of all files outside the blocks: metadata, grid, clock, signals."""
    step_s: int = PAPER_STEP_S
    """Seconds from one step to the next."""
    calendar: Calendar = GERMANY
    """Holidays and wall clock of the people who use the grid."""
    blocks: dict[int, BlockRecord] = field(default_factory=dict)

    @property
    def steps_per_day(self) -> int:
        """How many steps a day has."""
        return steps_per_day(self.step_s)

    @property
    def n_blocks(self) -> int:
        """Number of blocks in the whole record."""
        return -(-self.n_steps // self.block_steps)

    @property
    def complete(self) -> bool:
        """Whether every block is done and every step has a state."""
        done = len(self.blocks) == self.n_blocks
        return done and not any(record.unsolved for record in self.blocks.values())

    @property
    def provenance(self) -> list[int]:
        """Number of steps by provenance, over the blocks that are done."""
        total = np.zeros(len(PROVENANCE), dtype=int)
        for record in self.blocks.values():
            total[: len(record.provenance)] += record.provenance
        return [int(n) for n in (total if is_import(self.recipe) else total[:AS_IMPORTED])]

    def steps(self, block: int) -> slice:
        """The steps of the record in the block."""
        first = block * self.block_steps
        return slice(first, min(first + self.block_steps, self.n_steps))

    def to_json(self) -> str:
        """The manifest as text; equal manifests give equal text."""
        values = {"format": FORMAT, **asdict(self), "complete": self.complete}
        values["blocks"] = {str(k): values["blocks"][k] for k in sorted(values["blocks"])}
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> "Manifest":
        """The manifest in `text`, which was read from `path`."""
        values = parse_object(
            text.encode(), path, SCHEMA, StoreError, ADVICE, version=("format", FORMAT)
        )
        del values["format"], values["complete"]
        if "calendar" in values:
            values["calendar"] = _calendar(values["calendar"], path)
        blocks = {key: BlockRecord(**record) for key, record in values.pop("blocks").items()}
        n_blocks = -(-values["n_steps"] // values["block_steps"])
        if not blocks.keys() <= set(map(str, range(n_blocks))):
            raise StoreError(f"{path}: has other blocks than 0 to {n_blocks - 1}; {ADVICE}")
        return cls(blocks={int(key): record for key, record in blocks.items()}, **values)


def _calendar(values: dict[str, Any], path: str) -> Calendar:
    try:
        return Calendar(**values)
    except CalendarError as error:
        raise StoreError(f"{path}: {error}; {ADVICE}") from error


def library_versions() -> dict[str, str]:
    """The versions that determine the bytes of a data set."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def cpu_features() -> list[str]:
    """The vector instructions that NumPy uses; they can change a last bit."""
    config = np.show_config(mode="dicts")
    simd = config["SIMD Extensions"] if config else {}
    return [platform.machine(), *simd.get("baseline", []), *simd.get("found", [])]


def make_record(block: Block) -> BlockRecord:
    """The manifest's record of a block."""
    counts = np.bincount(block.provenance, minlength=4)
    return BlockRecord(
        sha256={name: sha256_of(values) for name, values in block.arrays()},
        provenance=[int(count) for count in counts],
        largest=largest_power(block.state),
        unsolved=int(np.isnan(block.state[:, 0]).sum()),
    )


def largest_power(state: Float[np.ndarray, "S C"]) -> list[float]:
    """Largest |P| [MW] and |Q| [MVAr] of solved states; 0 if no step is solved."""
    size = np.fmax.reduce(abs(state), axis=0, initial=0.0)  # fmax ignores unsolved steps
    return [float(size[kind :: len(VARIABLES)].max()) for kind in (P, Q)]
