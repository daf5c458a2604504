"""The writer of a data set: locks its directory, starts or continues it, writes and records blocks.

It may be killed at any moment: it writes arrays first, then the manifest with their checksums, and
replaces each file whole. A block that is missing from the manifest does not count and is made
again, with the same bytes.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import zarr

from powerphase.dataset.layout import Block, sha256_of, zarr_store
from powerphase.dataset.manifest import MANIFEST, BlockRecord, Manifest, make_record
from powerphase.dataset.store import Store, read_manifest
from powerphase.errors import StoreBusy, StoreError
from powerphase.files import disk_errors, hold_lock, replace_file

LOCK = ".powerphase-lock"


class StoreWriter:
    """Writes one data set; created by `open_writer`, which holds the lock meanwhile.

    Args:
        path: the locked directory.
        manifest: describes the data set, with no block recorded yet.
        files: all its files outside the blocks.
    """

    def __init__(self, path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        self.path = path
        self.manifest = manifest
        existing = read_manifest(path)
        if existing is None:
            self._clear(files)
        else:
            _check_continuable(path, existing, manifest)
            self.manifest = existing
        self._write_static(files)
        if existing is None:  # last, so that a manifest proves that the other files exist
            self._record({})

    @property
    def store(self) -> Store:
        """The data set in its present state, for reading."""
        return Store(self.path, self.manifest)

    def write(self, number: int, block: Block) -> None:
        """Write a block, then record it; raise if a block made again differs from its checksums."""
        record = self._check_repeated(number, make_record(block))
        steps = self.manifest.steps(number)
        for name, values in block.arrays():
            # Zarr would merge the values with the old file, and fail if that is damaged.
            _remove(self.path / name / "c" / str(number))
            with zarr.config.set(
                {"array.write_empty_chunks": True}
            ):  # a missing file is a lost one
                array = zarr.open_array(
                    zarr_store(self.path, read_only=False), path=name, mode="r+"
                )
            array[steps] = values
        self._record({**self.manifest.blocks, number: record})

    def adopt(self, blocks: Mapping[int, BlockRecord]) -> None:
        """Record blocks whose files are in the folder already."""
        self._record({**self.manifest.blocks, **blocks})

    def _check_repeated(self, number: int, record: BlockRecord) -> BlockRecord:
        """The record to write; raise if the block was recorded before with other checksums."""
        old = self.manifest.blocks.get(number)
        if old is None:
            return record
        if record.unsolved and not old.unsolved:  # comparable again after the last pass
            return replace(record, promised=old.sha256)
        same_stage = bool(record.unsolved) == bool(old.unsolved)
        if (old.sha256 if same_stage else old.promised or record.sha256) != record.sha256:
            raise _repeat_error(self.path, f"block {number}")
        return replace(record, promised=old.promised) if same_stage else record

    def _write_static(self, files: Mapping[str, bytes]) -> None:
        """Write missing and damaged files; intact files of other versions stay."""
        for name in self.store.damaged_files():
            content = files.get(name, b"")
            if sha256_of(content) != self.manifest.static_sha256[name]:
                raise _repeat_error(self.path, name)
            replace_file(self.path / name, content)

    def _clear(self, files: Mapping[str, bytes]) -> None:
        """Remove the files of a start that was killed, and no others."""
        for name in {Path(file).parts[0] for file in files}:
            _remove(self.path / name)

    def _record(self, blocks: Mapping[int, BlockRecord]) -> None:
        self.manifest = replace(self.manifest, blocks=dict(blocks))
        replace_file(self.path / MANIFEST, self.manifest.to_json().encode())


@contextmanager
def open_writer(
    path: Path, manifest: Manifest, files: Mapping[str, bytes]
) -> Iterator[StoreWriter]:
    """The writer of the data set at `path`, which it starts, or continues if it is the same one."""
    with disk_errors(path, StoreError), _lock(path):
        for leftover in path.rglob("*.partial"):
            leftover.unlink()
        yield StoreWriter(path, manifest, files)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Create the directory if missing and hold its lock; raise if it has other content."""
    lock = path / LOCK
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not lock.exists() and not (path / MANIFEST).exists():
        raise StoreError(f"{path}: contains files of something else; choose an empty directory")
    try:
        handle = hold_lock(lock)
    except BlockingIOError:
        raise StoreBusy(
            f"{path}: another process is writing it; wait for it or choose another directory"
        ) from None
    with handle:
        try:
            yield
        finally:
            # Without a manifest the lock file stays, to mark the leftovers as a data set's.
            if (path / MANIFEST).exists() or list(path.iterdir()) == [lock]:
                lock.unlink()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_continuable(path: Path, existing: Manifest, new: Manifest) -> None:
    """Raise if the directory holds another data set, or one unfinished by other versions."""
    if existing.fingerprint != new.fingerprint:
        differing = [k for k in new.recipe if existing.recipe.get(k) != new.recipe[k]]
        raise StoreError(
            f"{path}: holds another data set (it differs in {', '.join(differing)}); "
            "choose another directory or remove it"
        )
    if (existing.grid, existing.edition) != (new.grid, new.edition):
        raise StoreError(
            f"{path}: holds this data set as grid {existing.grid!r}, edition {existing.edition!r}; "
            "use these names or choose another directory"
        )
    changed = [k for k, v in new.made_with.items() if existing.made_with.get(k) != v]
    different = [f"{k} {existing.made_with.get(k)}" for k in changed]
    different += ["another processor"] if existing.cpu_features != new.cpu_features else []
    if different and not existing.complete:
        raise StoreError(
            f"{path}: started with {', '.join(different)}, which may give other bits than this "
            "installation; finish it there or choose another directory"
        )


def _repeat_error(path: Path, part: str) -> StoreError:
    return StoreError(
        f"{path}: {part} was damaged, and these versions or this processor give other bits; repair "
        "it where it was made, or remove the data set and generate it anew"
    )
