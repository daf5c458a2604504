"""Read a data set, from a directory or a URL."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Bool, Float, Float32, Int, Shaped, UInt8

from powerphase.axes import VARIABLES
from powerphase.clock import Calendar
from powerphase.dataset.layout import (
    OBSERVED,
    PER_STEP,
    STATE,
    Block,
    is_url,
    largest_power,
    read_bytes,
    sha256_of,
    zarr_store,
)
from powerphase.dataset.manifest import MANIFEST, Manifest, Origin, contradictions
from powerphase.dataset.tables import Tables, TimeRange
from powerphase.errors import StoreError, UnknownName
from powerphase.grid.case import Grid

MAX_ARRAY_BYTES = 2**44
"""Two years of the largest published grid, 82,000 buses, are a 200th of it."""

REMEDY = (
    "`powerphase verify` lists all damage, and the `powerphase generate` command that made the "
    "data set repairs it"
)
Stamp = tuple[int, int] | None
"""Size and time of the last change of a block's file; None at a URL."""


class Store(Tables, Origin):
    """A finished data set, of which only the requested slices are read from disk.

    `read` selects states by time, bus and variable. Everything else in the data set is an array
    with a name: `array("backoff")`, `array("grid/power_factor")`. A `Task` reads by `read_states`,
    which compares every block that it touches with its checksum.
    """

    def __init__(self, path: str | Path, manifest: Manifest, exact: bool = True) -> None:
        self.path = str(path)
        self.manifest = manifest
        self._exact = exact
        """Whether arrays must be as long as the manifest says; `verify` reports it instead."""
        self._arrays: dict[str, zarr.Array[Any]] = {}
        self._verified: dict[int, Stamp] = {}

    def __repr__(self) -> str:
        m = self.manifest
        return f"<powerphase.Store {m.grid} {m.edition} {m.fingerprint[:12]} at {self.path!r}>"

    @property
    def state(self) -> "zarr.Array[Any]":
        """All channels, float32 (S, 4N): P [MW], Q [MVAr], V [p.u.], θ [rad] per bus."""
        return self.array(STATE)

    @property
    def provenance(self) -> UInt8[np.ndarray, " S"]:
        """How each step was solved: 0 Newton, 1 Iwamoto, 2 backed off, 3 carried forward."""
        return self._load("provenance")

    @cached_property
    def time(self) -> Shaped[np.ndarray, " S"]:
        """Start of each step, `datetime64[s]`, UTC."""
        time = self._load("time").astype("datetime64[s]")
        time.setflags(write=False)  # all callers share this array
        return time

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return self.manifest.step_s

    @property
    def calendar(self) -> Calendar:
        """Holidays and wall clock of the people who use the grid."""
        return self.manifest.calendar

    @cached_property
    def signals_mw(self) -> Float[np.ndarray, "S 3"]:
        """National load, solar and wind [MW] at each step."""
        return self._load("signals")

    @cached_property
    def bus_id(self) -> Int[np.ndarray, " N"]:
        """The numbers of the buses."""
        return self._load("grid/bus_id")

    @cached_property
    def grid(self) -> Grid:
        """The network, with all data of its case file."""
        if not self.has_grid:
            raise StoreError(
                f"{self.path}: was imported without a grid, so it has no lines and no power flow; "
                "import it with --grid to have them"
            )
        matrices = {name: self._load(f"grid/{name}") for name in ("bus", "gen", "branch")}
        return Grid(self.manifest.grid, float(self._load("grid/base_mva")[0]), **matrices)

    def array(self, name: str) -> "zarr.Array[Any]":
        """The array `name` of the data set, e.g. `grid/power_factor`."""
        if f"{name}/zarr.json" not in self.manifest.static_sha256:
            files = [file for file in self.manifest.static_sha256 if file.endswith("/zarr.json")]
            known = [file.removesuffix("/zarr.json") for file in files]
            raise UnknownName.among("array", name, known)
        if name not in self._arrays:
            try:
                self._check_metadata(name)
                array = zarr.open_array(zarr_store(self.path), path=name, mode="r")
                self._check_shape(name, array)
            except Exception as error:  # Zarr has no common error for broken metadata
                raise self._damage_error(f"{name}/zarr.json", error) from error
            self._arrays[name] = array
        return self._arrays[name]

    def _check_metadata(self, name: str) -> None:
        """Raise if the metadata of an array are not those of the manifest."""
        file = f"{name}/zarr.json"
        if self._file_sha256(file) != self.manifest.static_sha256[file]:
            raise ValueError("it differs from the manifest")

    def _check_chunks(self, name: str, selection: Any) -> list[int]:
        """The finished blocks of a selection; raise if a file of it is missing or a pipe.

        Zarr would give a fill value for the one and wait for the other. A URL is not checked.
        """
        steps = selection[0] if isinstance(selection, tuple) else selection
        numbers = self._block_numbers(steps if isinstance(steps, slice) else slice(None))
        if name in (STATE, OBSERVED, *PER_STEP):
            tail = "/0" if name in (STATE, OBSERVED) else ""
            files = [f"{name}/c/{number}{tail}" for number in numbers]
        else:
            files = [file for file in self.manifest.static_sha256 if file.startswith(f"{name}/c/")]
        for file in files:
            if not is_url(self.path) and not Path(self.path, file).is_file():
                raise FileNotFoundError(f"{file} is missing or not a regular file")
        return numbers

    def _block_numbers(self, steps: slice) -> list[int]:
        """The finished blocks to which these steps belong."""
        m = self.manifest
        first, stop, _ = steps.indices(m.n_steps)
        numbers = range(first // m.block_steps, -(-stop // m.block_steps))
        return [number for number in numbers if number in m.blocks]

    def _check_shape(self, name: str, array: "zarr.Array[Any]") -> None:
        """Raise if an array has another size than the manifest says, or an enormous one."""
        n_steps, n_channels = self.manifest.n_steps, len(VARIABLES) * self.manifest.n_buses
        shapes = {
            **dict.fromkeys((STATE, OBSERVED), (n_steps, n_channels)),
            **dict.fromkeys((*PER_STEP, "time"), (n_steps,)),
        }
        shapes["signals"] = (n_steps, 3)
        differs = self._exact and array.shape != shapes.get(name, array.shape)
        if differs or array.nbytes > MAX_ARRAY_BYTES:
            raise ValueError(f"its shape is {array.shape}")

    def read(
        self,
        time: TimeRange = None,
        bus: int | Iterable[int] | None = None,
        variable: str | Iterable[str] | None = None,
    ) -> Float[np.ndarray, "..."]:
        """States of the chosen steps, buses and variables, with axes (steps, buses, variables).

        Args:
            time: a slice of step numbers or of UTC times ("2016-07-01T12:00"; the end is
                excluded), or one day as text ("2016-07-01"). All by default.
            bus: bus numbers of the case file; one number drops the axis.
            variable: "P", "Q", "V" or "theta", or several; one name drops the axis.
        """
        rows = np.arange(self.manifest.n_buses)
        if bus is not None:
            numbers = [bus] if isinstance(bus, int | np.integer) else list(bus)
            rows = self._rows(np.array(numbers))
        names = (variable,) if isinstance(variable, str) else tuple(variable or VARIABLES)
        offsets = [_offset(name) for name in names]
        channels = (len(VARIABLES) * rows[:, None] + offsets).ravel()
        steps = self._steps(time)
        whole = np.array_equal(channels, np.arange(self.state.shape[1]))
        # Zarr takes many times as long and as much memory for a list of all channels.
        values = self._load(STATE, steps if whole else (steps, channels))
        values = values.reshape(len(values), len(rows), len(offsets))
        if isinstance(variable, str):
            values = values[..., 0]
        return values[:, 0] if isinstance(bus, int | np.integer) else values

    def select_times(self, time: TimeRange) -> Shaped[np.ndarray, " S"]:
        """Start of the steps that `read` would choose, `datetime64[s]`, UTC."""
        return self.time[self._steps(time)]

    def read_observed(self, steps: slice, channels: slice) -> Bool[np.ndarray, "S C"] | None:
        """Which of the states that `read_states` returns are observed; None if all are.

        Only imported records have others, which were filled.
        """
        if not self.is_imported:
            return None
        for number in self._blocks_of(steps):
            self._verify_states(number)
        return self._load(OBSERVED, (steps, channels))

    def read_states(self, steps: slice, channels: slice) -> Float32[np.ndarray, "S C"]:
        """States of consecutive channels in stored order, [P, Q, V, θ] per bus.

        Raises if a block that holds some of these steps is not the one of the manifest. A block is
        checked once, and again if its file has changed since.
        """
        for number in self._blocks_of(steps):
            self._verify_states(number)
        return self._load(STATE, (steps, channels))

    def _rows(self, numbers: np.ndarray) -> Int[np.ndarray, " n"]:
        """The positions of the buses with these numbers."""
        if self.has_grid:
            return self.grid.rows(numbers)
        unknown = [number for number in numbers.tolist() if number not in self.bus_id]
        if unknown:
            raise StoreError(f"{self.path}: no bus {unknown[0]}; it has {len(self.bus_id)} others")
        order = np.argsort(self.bus_id)
        return order[np.searchsorted(self.bus_id, numbers, sorter=order)]

    def is_verified(self, steps: slice) -> bool:
        """Whether all blocks that hold some of these steps were checked when they were read."""
        return all(number in self._verified for number in self._blocks_of(steps))

    def verify_files(self) -> None:
        """Raise if metadata, clock, signals or grid are not those of the manifest and recipe."""
        if damaged := self.damage_outside_blocks():
            raise self._invalid_error(", ".join(damaged))

    def largest_power(self, steps: slice) -> list[float]:
        """Largest |P| [MW] and |Q| [MVAr] in `steps`; reads only blocks that are cut by `steps`."""
        m, by_block = self.manifest, [[0.0, 0.0]]
        for number in self._blocks_of(steps):
            block = m.steps(number)
            part = slice(max(block.start, steps.start), min(block.stop, steps.stop))
            if part == block:
                by_block.append(m.blocks[number].largest)
            else:
                by_block.append(largest_power(self.read_states(part, slice(None))))
        return [float(value) for value in np.max(by_block, axis=0)]

    def read_block(self, number: int) -> Block:
        """All arrays of one block."""
        steps = self.manifest.steps(number)
        names = (STATE, *PER_STEP, *([OBSERVED] if self.is_imported else []))
        return Block(**{name: self._load(name, steps) for name in names})

    def check_block(self, number: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The intact arrays of a block, and the names of the damaged ones."""
        sha256, steps = self.manifest.blocks[number].sha256, self.manifest.steps(number)
        intact = {}
        for name, expected in sha256.items():
            with suppress(StoreError):
                values = self._load(name, steps)
                if sha256_of(values) == expected:
                    intact[name] = values
        return intact, [name for name in sha256 if name not in intact]

    def damaged_files(self) -> list[str]:
        """The files of metadata, clock, signals and grid that differ from the manifest."""
        expected = self.manifest.static_sha256
        return [name for name in expected if self._file_sha256(name) != expected[name]]

    def damage_outside_blocks(self) -> list[str]:
        """Files that changed, and claims of the manifest that contradict each other."""
        return [*(damaged := self.damaged_files()), *contradictions(self, damaged)]

    def _blocks_of(self, steps: slice) -> range:
        """The blocks that hold some of these steps."""
        first, stop, _ = steps.indices(self.manifest.n_steps)
        size = self.manifest.block_steps
        return range(first // size, -(-stop // size)) if first < stop else range(0)

    def _verify_states(self, number: int) -> None:
        """Raise if the states of a block differ from the manifest's record of it."""
        stamp = self._stamp(number)  # before the read, so that a later change is noticed
        if self._verified.get(number, ()) == stamp:
            return
        name, record = f"{STATE}, block {number}", self.manifest.blocks[number]
        try:
            states = self._load(STATE, self.manifest.steps(number))
        except StoreError as error:
            raise self._invalid_error(name) from error
        if sha256_of(states) != record.sha256[STATE] or largest_power(states) != record.largest:
            raise self._invalid_error(name)
        if self.is_imported:
            observed = self._load(OBSERVED, self.manifest.steps(number))
            if sha256_of(observed) != record.sha256.get(OBSERVED):
                raise self._invalid_error(f"{OBSERVED}, block {number}")
        self._verified[number] = stamp

    def _stamp(self, number: int) -> Stamp:
        file = Path(self.path) / STATE / "c" / str(number) / "0"
        if is_url(self.path) or not file.exists():  # a missing block reads as NaN
            return None
        facts = file.stat()
        return facts.st_size, facts.st_mtime_ns

    def _file_sha256(self, name: str) -> str | None:
        try:
            return sha256_of(read_bytes(f"{self.path}/{name}"))
        except OSError:
            return None

    def _load(self, name: str, selection: Any = ...) -> np.ndarray:
        """Part of an array, by orthogonal selection."""
        try:
            array = self.array(name)
            numbers = self._check_chunks(name, selection)
            values = np.asarray(array.oindex[selection])
            solved = not any(self.manifest.blocks[number].unsolved for number in numbers)
            if name == STATE and solved and values.size and np.isnan(values.min()):
                raise ValueError("states are missing")  # Zarr's values for a lost part of a file
            return values
        except (MemoryError, StoreError):
            raise
        except Exception as error:  # codecs have no common error for broken bytes
            raise self._damage_error(name, error) from error

    def _damage_error(self, name: str, error: Exception) -> StoreError:
        return StoreError(f"{self.path}: {name} cannot be read ({error}); {REMEDY}")

    def _invalid_error(self, parts: str) -> StoreError:
        return StoreError(f"{self.path}: not what the manifest states: {parts}; {REMEDY}")

    def _steps(self, time: TimeRange) -> slice:
        if time is None:
            return slice(0, self.manifest.n_steps)
        if isinstance(time, str | np.datetime64):
            return self._day(str(time))
        if time.step not in (None, 1):
            raise StoreError(f"slices must have step 1, not {time.step}; thin the result instead")
        first, last = (None if end is None else self._step(end) for end in (time.start, time.stop))
        return slice(*slice(first, last).indices(self.manifest.n_steps))

    def _day(self, text: str) -> slice:
        try:
            day = np.datetime64(date.fromisoformat(text))
        except ValueError:
            raise StoreError(f"{text!r} is not a day; write 2016-07-01, or a slice") from None
        steps = np.flatnonzero(self.time.astype("datetime64[D]") == day)
        if not steps.size:
            first, last = (str(self.time[end].astype("datetime64[D]")) for end in (0, -1))
            raise StoreError(f"{text} is not in the record, which covers {first} to {last}")
        return slice(int(steps[0]), int(steps[-1]) + 1)

    def _step(self, time: int | str | np.datetime64) -> int:
        if isinstance(time, int | np.integer):
            return int(time)
        try:
            return int(np.searchsorted(self.time, np.array(time, dtype="datetime64[s]")))
        except ValueError:
            raise StoreError(f"{time!r} is not a time; write it as 2016-07-01T12:00") from None


def open_store(path: str | Path, unfinished_ok: bool = False) -> Store:
    """The data set at `path`: a directory, or any URL that fsspec can read."""
    manifest = read_manifest(path)
    if manifest is None:
        raise StoreError(f"{path}: no data set found; {_advice(path)}")
    if not manifest.complete and not unfinished_ok:
        raise StoreError(
            f"{path}: unfinished, {len(manifest.blocks)} of {manifest.n_blocks} blocks are done; "
            "run the same `powerphase generate` again to finish it"
        )
    return Store(path, manifest, exact=not unfinished_ok)


def _advice(path: str | Path) -> str:
    """What to do where no data set was found: most often its parent folder was named."""
    inside = [] if is_url(path) else sorted(Path(path).glob(f"*/{MANIFEST}"))
    near = ", ".join(str(manifest.parent) for manifest in inside[:3])
    return f"did you mean {near}?" if near else "make one with `powerphase generate`"


def read_manifest(path: str | Path) -> Manifest | None:
    """The manifest of the data set at `path`, or None if there is no data set."""
    file = f"{path}/{MANIFEST}"
    try:
        return Manifest.from_json(read_bytes(file).decode(), file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, ImportError, ValueError) as error:
        raise StoreError(f"{file}: cannot be read ({error})") from error


def _offset(name: str) -> int:
    if name not in VARIABLES:
        raise UnknownName.among("variable", name, VARIABLES)
    return VARIABLES.index(name)


open = open_store  # `powerphase.open`
