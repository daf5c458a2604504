"""A data set on disk, opened for reading: all that anyone needs who did not make it."""

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from jaxtyping import Float, Shaped, UInt8
from zarr.storage import StoreLike

from powerphase.axes import VARIABLES
from powerphase.dataset.layout import PER_STEP, STATE, Block, sha256_of
from powerphase.dataset.manifest import MANIFEST, BlockRecord, Manifest
from powerphase.errors import StoreError, UnknownName
from powerphase.grid.case import Grid

TimeRange = slice | str | np.datetime64 | None


class Store:
    """A finished data set. Slices are read from disk as they are asked for, and no more.

    `state`, `provenance`, `backoff`, `iterations` and `mismatch` are Zarr arrays over the record's
    steps; `read` selects from `state` by time, bus and variable.
    """

    def __init__(self, path: str | Path, manifest: Manifest) -> None:
        self.path = str(path)
        self.manifest = manifest
        self._group = zarr.open_group(zarr_store(path), mode="r")

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
        return self._load("time").astype("datetime64[s]")

    @cached_property
    def signals_mw(self) -> Float[np.ndarray, "S 3"]:
        """National load, solar and wind [MW] at each step."""
        return self._load("signals")

    @cached_property
    def grid(self) -> Grid:
        """The network, as complete as in its case file."""
        matrices = {name: self._load(f"grid/{name}") for name in ("bus", "gen", "branch")}
        return Grid(self.manifest.grid, float(self._load("grid/base_mva")[0]), **matrices)

    def array(self, name: str) -> "zarr.Array[Any]":
        """The array `name` of the data set, e.g. `grid/power_factor`."""
        found = self._group.get(name)
        if not isinstance(found, zarr.Array):
            raise UnknownName.among("array", name, self.manifest.static_sha256)
        return found

    def read(
        self,
        time: TimeRange = None,
        bus: int | Iterable[int] | None = None,
        variable: str | Iterable[str] | None = None,
    ) -> Float[np.ndarray, "..."]:
        """States of the chosen steps, buses and variables, with axes (steps, buses, variables).

        Args:
            time: a slice of step numbers or of UTC times ("2016-07-01"; the end is excluded), or
                one day as text. All by default.
            bus: bus numbers as the case file has them; one number drops the axis.
            variable: of "P", "Q", "V", "theta"; one name drops the axis.
        """
        rows = slice(None) if bus is None else self.grid.rows(np.atleast_1d(np.array(bus)))
        names = VARIABLES if variable is None else np.atleast_1d(np.array(variable))
        kinds = [_variable(str(name)) for name in names]
        every = np.arange(self.manifest.n_buses)[rows]
        channels = (len(VARIABLES) * every[:, None] + kinds).ravel()
        chosen = self._steps(time)
        if bus is None and variable is None:
            values = self._load(STATE, chosen)
        else:
            values = self._load(STATE, (chosen, channels))
        values = values.reshape(len(values), len(every), len(kinds))
        if isinstance(variable, str):
            values = values[..., 0]
        return values[:, 0] if isinstance(bus, int | np.integer) else values

    def read_block(self, number: int) -> Block:
        """One block of the record, whole."""
        steps = self.manifest.steps(number)
        names = (STATE, *PER_STEP)
        return Block(**{name: self._load(name, steps) for name in names})

    def checked(self, number: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The sound arrays of a block, and the names of its damaged ones."""
        return self._checked(self.manifest.blocks[number].sha256, self.manifest.steps(number))

    def static_damage(self) -> list[str]:
        """The arrays of clock, signals and grid that are not what the manifest says."""
        return self._checked(self.manifest.static_sha256, slice(None))[1]

    def _checked(
        self, sha256: dict[str, str], steps: slice
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        sound = {}
        for name, expected in sha256.items():
            with suppress(StoreError):
                values = self._load(name, steps)
                if sha256_of(values) == expected:
                    sound[name] = values
        return sound, [name for name in sha256 if name not in sound]

    def _load(self, name: str, chosen: Any = ...) -> np.ndarray:
        """The chosen part of an array, as it is on disk."""
        try:
            return np.asarray(self.array(name).oindex[chosen])
        except Exception as error:
            # Codecs report broken bytes by whatever exception they like; all mean the same.
            raise StoreError(
                f"{self.path}: {name} cannot be decoded ({error}); `powerphase verify` lists all "
                "damage, and the `powerphase generate` that made the data set mends it"
            ) from error

    def _steps(self, time: TimeRange) -> slice:
        if time is None:
            return slice(0, self.manifest.n_steps)
        if isinstance(time, str | np.datetime64):
            day = np.array(time, dtype="datetime64[D]")
            time = slice(day, day + 1)
        first, last = (None if end is None else self._step(end) for end in (time.start, time.stop))
        return slice(*slice(first, last).indices(self.manifest.n_steps))

    def _step(self, moment: int | str | np.datetime64 | np.ndarray) -> int:
        if isinstance(moment, int | np.integer):
            return int(moment)
        try:
            return int(np.searchsorted(self.time, np.array(moment, dtype="datetime64[s]")))
        except ValueError:
            raise StoreError(f"{moment!r} is not a time; write it as 2016-07-01T12:00") from None


def open_store(path: str | Path, unfinished_ok: bool = False) -> Store:
    """The data set at `path`: a directory, or any URL that fsspec can read."""
    manifest = read_manifest(path)
    if manifest is None:
        raise StoreError(f"{path}: no data set here; make one with `powerphase generate`")
    if not manifest.complete and not unfinished_ok:
        raise StoreError(
            f"{path}: unfinished, {len(manifest.blocks)} of {manifest.n_blocks} blocks are done; "
            "run the same `powerphase generate` again to finish it"
        )
    return Store(path, manifest)


def read_manifest(path: str | Path) -> Manifest | None:
    """The manifest of the data set at `path`, or None where there is none."""
    where = f"{path}/{MANIFEST}"
    try:
        if is_url(path):
            import fsspec

            with fsspec.open(where, "rt", encoding="utf-8") as file:
                text = file.read()
        else:
            text = Path(where).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ImportError, ValueError) as error:
        raise StoreError(f"{where}: cannot be read ({error})") from error
    return Manifest.from_json(text, where)


def is_url(path: str | Path) -> bool:
    """Whether `path` names a place that only fsspec can reach."""
    return isinstance(path, str) and "://" in path


def zarr_store(path: str | Path, read_only: bool = True) -> StoreLike:
    """Zarr's view of the place."""
    if is_url(path):
        return zarr.storage.FsspecStore.from_url(str(path), read_only=read_only)
    return zarr.storage.LocalStore(Path(path), read_only=read_only)


def record_of(block: Block) -> BlockRecord:
    """The manifest's entry for a block as it stands."""
    counts = np.bincount(block.provenance, minlength=4)
    return BlockRecord(
        sha256={name: sha256_of(values) for name, values in block.arrays()},
        provenance=[int(count) for count in counts],
        unsolved=int(np.isnan(block.state[:, 0]).sum()),
    )


def _variable(name: str) -> int:
    if name not in VARIABLES:
        raise UnknownName.among("variable", name, VARIABLES)
    return VARIABLES.index(name)
