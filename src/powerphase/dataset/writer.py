"""The one writer of a data set: takes the lock, starts or continues, writes blocks, records them.

Order makes it safe against a kill at any moment: arrays first, then the manifest that vouches for
them, each file replaced whole. What the manifest does not record does not count and is made again,
with the same bytes.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from powerphase.dataset.layout import Block, create_arrays, write_static
from powerphase.dataset.manifest import MANIFEST, BlockRecord, Manifest
from powerphase.dataset.store import Store, read_manifest, record_of, zarr_store
from powerphase.errors import StoreBusy, StoreError

LOCK = ".powerphase-lock"

Static = Mapping[str, tuple[np.ndarray, str]]
"""Values and meaning of the arrays that describe the whole data set."""


class StoreWriter:
    """Writes one data set; made by `writing`, which holds the lock meanwhile."""

    def __init__(self, path: Path, manifest: Manifest, static: Static) -> None:
        self.path = path
        self.manifest = manifest
        self._static = static
        self._zarr = zarr_store(path, read_only=False)
        found = read_manifest(path)
        if found is None:
            self._begin()
        else:
            _check_continuable(path, found, manifest)
            self.manifest = found

    @property
    def store(self) -> Store:
        """The data set as it stands, for reading."""
        return Store(self.path, self.manifest)

    def write(self, number: int, block: Block) -> None:
        """Write a block whole, then vouch for it."""
        steps = self.manifest.steps(number)
        for name, values in block.arrays():
            # Zarr would merge with what is there, and stumble over it where it is damaged.
            _remove(self.path / name / "c" / str(number))
            zarr.open_array(self._zarr, path=name, mode="r+")[steps] = values
        self._record({**self.manifest.blocks, number: record_of(block)})

    def forget(self, numbers: list[int]) -> None:
        """Withdraw the manifest's word for blocks that turned out damaged."""
        if numbers:
            blocks = self.manifest.blocks
            self._record({k: blocks[k] for k in blocks if k not in numbers})

    def write_static(self, names: Iterable[str]) -> None:
        """Write the named descriptive arrays, or write them anew."""
        for name in names:
            values, meaning = self._static[name]
            write_static(self._zarr, name, values, meaning)

    def _begin(self) -> None:
        """Lay out the empty record; the manifest comes last, so it proves that all is there."""
        for leftover in self.path.iterdir():
            if leftover.name != LOCK:
                _remove(leftover)
        m = self.manifest
        about: dict[str, Any] = {"grid": m.grid, "edition": m.edition, "fingerprint": m.fingerprint}
        about |= {"attribution": m.attribution, "made_by": "powerphase"}
        create_arrays(self._zarr, m.n_steps, m.n_buses, about)
        self.write_static(self._static)
        self._record({})

    def _record(self, blocks: Mapping[int, BlockRecord]) -> None:
        self.manifest = replace(self.manifest, blocks=dict(blocks))
        partial = self.path / f"{MANIFEST}.partial"
        partial.write_text(self.manifest.to_json(), encoding="utf-8")
        partial.replace(self.path / MANIFEST)


@contextmanager
def writing(path: Path, manifest: Manifest, static: Static) -> Iterator[StoreWriter]:
    """The writer of the data set at `path`: begun there, or continued if it is the same one."""
    try:
        with _locked(path):
            for leftover in path.rglob("*.partial"):
                leftover.unlink()
            yield StoreWriter(path, manifest, static)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"{path}: the disk is full; nothing that was finished is lost, so free some space "
                "and run the same command again"
            ) from error
        raise StoreError(f"{path}: cannot be written ({error}); check the path") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the directory's lock; a directory with other content is refused, an absent one made."""
    lock = path / LOCK
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not lock.exists() and not (path / MANIFEST).exists():
        raise StoreError(f"{path}: holds files that are no data set; choose an empty place")
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock may have been removed by its owner between our opening and locking it.
            if lock.stat().st_ino != os.fstat(handle.fileno()).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise StoreBusy(
                f"{path}: another process is writing it; wait for it or choose another place"
            ) from None
        try:
            yield
        finally:
            # Without a manifest the lock stays: it marks the rubble of a false start as ours.
            if (path / MANIFEST).exists() or list(path.iterdir()) == [lock]:
                lock.unlink()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_continuable(path: Path, found: Manifest, wanted: Manifest) -> None:
    """Refuse to mix two data sets, or two versions of the tools, in one place."""
    if found.fingerprint != wanted.fingerprint:
        differing = [k for k in wanted.recipe if found.recipe.get(k) != wanted.recipe[k]]
        raise StoreError(
            f"{path}: holds another data set (it differs in {', '.join(differing)}); "
            "choose another place or remove it"
        )
    if (found.grid, found.edition) != (wanted.grid, wanted.edition):
        raise StoreError(
            f"{path}: holds this data set as grid {found.grid!r}, edition {found.edition!r}; "
            "use these names or choose another place"
        )
    changed = [k for k, v in wanted.made_with.items() if found.made_with.get(k) != v]
    if changed and not found.complete:
        begun = ", ".join(f"{k} {found.made_with.get(k)}" for k in changed)
        raise StoreError(
            f"{path}: begun with {begun}, whose bits these versions may not repeat; "
            "finish it with those or choose another place"
        )
