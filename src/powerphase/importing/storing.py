"""Imported records on disk: written beside their place, and put there whole.

A record that grows is built as a second folder, which shares the files that stay as they are, and
then takes the place of the first in one step. Whatever interrupts it, the old one stays readable.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped, UInt8

from powerphase.axes import KINDS
from powerphase.clock import Calendar
from powerphase.dataset.layout import BLOCK_STEPS, Block, Static, sha256_of, static_files
from powerphase.dataset.manifest import MANIFEST, Manifest, cpu_features, library_versions
from powerphase.dataset.recipe import ImportRecipe, Segment, SegmentDigest
from powerphase.dataset.store import Store, open_store
from powerphase.dataset.writer import StoreWriter, open_writer
from powerphase.errors import StoreBusy, StoreError
from powerphase.files import disk_errors, exchange_folders, hold_lock
from powerphase.grid.admittance import admittance_matrix
from powerphase.grid.case import PQ, Grid


@dataclass(frozen=True, eq=False)
class Buses:
    """The buses of a record, with a grid or without one."""

    grid: Grid | None
    bus_id: Int[np.ndarray, " N"]
    names: dict[int, str]
    """By number."""
    labels: dict[int, str]
    """What the source calls them, by number, where that is not the number."""
    nominal_kv: Shaped[np.ndarray, " N"]
    name: str
    """Of the grid, in results."""
    calendar: Calendar
    """Holidays and wall clock of the people who use the grid."""

    @property
    def bus_type(self) -> Int[np.ndarray, " N"]:
        """1 PQ, 2 PV, 3 slack; without a grid all are PQ."""
        return np.full(len(self.bus_id), PQ) if self.grid is None else self.grid.bus_type

    @property
    def sha256(self) -> str:
        """Of the numbers and types of the buses."""
        pairs = zip(self.bus_id.tolist(), self.bus_type.tolist(), strict=True)
        text = ",".join(f"{number}:{kind}" for number, kind in pairs)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive steps to be stored."""

    time: Shaped[np.ndarray, " S"]
    state: Float32[np.ndarray, "S C"]
    observed: Bool[np.ndarray, "S C"]
    provenance: UInt8[np.ndarray, " S"]
    mismatch: Float32[np.ndarray, " S"]

    def digest(self) -> str:
        """The checksum of its content."""
        digest = SegmentDigest()
        digest.add(self.state, self.observed)
        return digest.sha256

    def block(self, steps: slice) -> Block:
        """Some of the steps as a block of a data set."""
        part = self.state[steps]
        solved = self.provenance[steps] < 3
        return Block(
            state=np.ascontiguousarray(part),
            provenance=self.provenance[steps],
            backoff=np.where(solved, 1.0, np.nan).astype(np.float32),
            iterations=np.zeros(len(part), dtype=np.uint8),
            mismatch=self.mismatch[steps],
            observed=np.ascontiguousarray(self.observed[steps]),
        )


def write_record(
    path: Path,
    edition: str,
    attribution: list[str],
    buses: Buses,
    recipe: ImportRecipe,
    piece: Piece,
) -> Store:
    """Write a new record at `path`, whole or not at all."""
    _check_free(path)
    manifest, files = _manifest(edition, attribution, buses, recipe, piece.time)
    with _beside(path) as folder:
        with open_writer(folder, manifest, files) as writer:
            _write_blocks(writer, piece, 0)
        if path.exists():
            path.rmdir()
        folder.rename(path)
    return open_store(path)


@contextmanager
def record_in_parts(path: Path) -> Iterator[Path]:
    """A folder for a record that is imported in parts, which is put at `path` at the end."""
    _check_free(path)
    with _beside(path) as folder:
        yield folder / path.name
        if path.exists():
            path.rmdir()
        (folder / path.name).rename(path)


def append_record(store: Store, buses: Buses, recipe: ImportRecipe, piece: Piece) -> Store:
    """Add steps at the end of a record, whole or not at all.

    Args:
        store: the record.
        buses: its buses.
        recipe: of the record after the import.
        piece: the new steps.
    """
    path, old = Path(store.path), store.manifest
    n_before = old.n_steps
    first = n_before // old.block_steps
    start = first * old.block_steps
    time = np.concatenate([store.time, piece.time])
    joined = _join(_read_piece(store, slice(start, n_before)), piece) if start < n_before else piece
    with _beside(path) as folder:
        if open_store(path).manifest.fingerprint != old.fingerprint:
            raise StoreBusy(f"{path}: grew meanwhile; run the same command again")
        manifest, files = _manifest(old.edition, old.attribution, buses, recipe, time)
        kept = {number: record for number, record in old.blocks.items() if number < first}
        with open_writer(folder, manifest, files) as writer:
            _link_blocks(path, folder, kept)
            writer.adopt(kept)
            _write_blocks(writer, joined, start)
        exchange_folders(folder, path)
    return open_store(path)


def remove_leftovers(store: Store) -> None:
    """Remove what an import that was killed left beside the record."""
    with _beside(Path(store.path)):
        pass


def buses_of(store: Store) -> Buses:
    """The buses of an imported record."""
    grid = store.grid if store.has_grid else None
    nominal_kv = np.asarray(store.array("grid/nominal_kv")[...])
    return Buses(
        grid,
        store.bus_id,
        store.bus_names,
        store.bus_labels,
        nominal_kv,
        store.manifest.grid,
        store.calendar,
    )


def new_recipe(recipe: ImportRecipe, piece: Piece, findings: list[str]) -> ImportRecipe:
    """The recipe with the piece as its last segment."""
    return recipe.extended(Segment(len(piece.time), piece.digest(), tuple(findings)))


def _write_blocks(writer: StoreWriter, piece: Piece, start: int) -> None:
    """Write the blocks of the piece, whose first step is `start` of the record."""
    manifest = writer.manifest
    for number in range(start // manifest.block_steps, manifest.n_blocks):
        steps = manifest.steps(number)
        writer.write(number, piece.block(slice(steps.start - start, steps.stop - start)))


def _read_piece(store: Store, steps: slice) -> Piece:
    channels = slice(0, KINDS * store.manifest.n_buses)
    observed = store.read_observed(steps, channels)
    assert observed is not None, "an imported record says what is observed"
    return Piece(
        store.time[steps],
        store.read_states(steps, channels),
        observed,
        *(np.asarray(store.array(name)[steps]) for name in ("provenance", "mismatch")),
    )


def _join(first: Piece, second: Piece) -> Piece:
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return Piece(*(np.concatenate(pair) for pair in pairs))


def _link_blocks(old: Path, new: Path, kept: dict[int, Any]) -> None:
    """Share the files of finished blocks with the new folder; copy them where links do not work."""
    for number, record in kept.items():
        for name in record.sha256:
            block = old / name / "c" / str(number)
            for source in block.rglob("*") if block.is_dir() else [block]:
                if source.is_file():
                    _share(source, new / source.relative_to(old))


def _share(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _manifest(
    edition: str,
    attribution: list[str],
    buses: Buses,
    recipe: ImportRecipe,
    time: Shaped[np.ndarray, " S"],
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest of a record without blocks, and its files outside the blocks."""
    attributes: dict[str, Any] = {"grid": buses.name, "edition": edition}
    attributes |= {"fingerprint": recipe.fingerprint, "attribution": attribution}
    for key, texts in (("bus_names", buses.names), ("bus_labels", buses.labels)):
        if texts:
            attributes[key] = {str(number): text for number, text in texts.items()}
    files = static_files(
        len(time), len(buses.bus_id), attributes, _static_arrays(buses, time), observed=True
    )
    manifest = Manifest(
        grid=buses.name,
        edition=edition,
        fingerprint=recipe.fingerprint,
        recipe=recipe.as_json(),
        n_steps=len(time),
        step_s=recipe.step_s,
        calendar=buses.calendar,
        n_buses=len(buses.bus_id),
        block_steps=BLOCK_STEPS,
        attribution=attribution,
        filled_signal_values=0,
        made_with=library_versions(),
        cpu_features=cpu_features(),
        static_sha256={name: sha256_of(content) for name, content in files.items()},
    )
    return manifest, files


def _static_arrays(buses: Buses, time: Shaped[np.ndarray, " S"]) -> Static:
    """The clock, the buses, and the grid if it is known."""
    arrays: dict[str, tuple[np.ndarray, str]] = {
        "time": (time.astype(np.int64), "start of step, seconds since 1970 UTC"),
        "grid/bus_id": (buses.bus_id, "bus number"),
        "grid/bus_type": (buses.bus_type, "1 PQ, 2 PV, 3 slack, by generators in service"),
        "grid/nominal_kv": (buses.nominal_kv, "nominal voltage [kV]; 0 where it is unknown"),
    }
    if buses.grid is None:
        return arrays
    grid, ybus = buses.grid, admittance_matrix(buses.grid)
    return arrays | {
        "grid/base_mva": (np.array([grid.base_mva]), "power base [MVA]"),
        "grid/bus": (grid.bus, "MATPOWER's bus matrix, columns BUS_I to VMIN"),
        "grid/gen": (grid.gen, "MATPOWER's gen matrix, columns GEN_BUS to PMIN"),
        "grid/branch": (grid.branch, "MATPOWER's branch matrix, columns F_BUS to BR_STATUS"),
        "grid/ybus_data": (ybus.data, "admittance matrix [p.u.], CSR values"),
        "grid/ybus_indices": (ybus.indices.astype(np.int32), "admittance matrix, CSR columns"),
        "grid/ybus_indptr": (ybus.indptr.astype(np.int32), "admittance matrix, CSR row starts"),
    }


def _check_free(path: Path) -> None:
    """Raise if there is something at the path already."""
    if (path / MANIFEST).exists():
        raise StoreError(
            f"{path}: holds a data set already; add to it with --append, or choose another folder"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path}: contains something else; choose an empty directory")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """An empty folder beside the path, for one process at a time; removed at the end."""
    path = path.absolute()
    folder, lock = (path.with_name(f".{path.name}.{word}") for word in ("importing", "lock"))
    with disk_errors(path, StoreError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = hold_lock(lock)
        except BlockingIOError:
            raise StoreBusy(f"{path}: another process is importing to it; wait for it") from None
        with handle:
            try:
                if folder.exists():  # of an import that was killed
                    shutil.rmtree(folder)
                folder.mkdir()
                yield folder
            finally:
                if folder.exists():
                    shutil.rmtree(folder)
                lock.unlink(missing_ok=True)
