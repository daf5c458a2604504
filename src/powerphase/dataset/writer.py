"""The one writer of a data set: takes the lock, starts or continues, writes blocks, records them.

Order makes it safe against a kill at any moment: arrays first, then the manifest that vouches for
them, each file replaced whole. What the manifest does not record does not count and is made again,
with the same bytes.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import zarr

from powerphase.dataset.layout import Block, sha256_of
from powerphase.dataset.manifest import MANIFEST, BlockRecord, Manifest
from powerphase.dataset.store import Store, read_manifest, record_of, zarr_store
from powerphase.errors import StoreBusy, StoreError
from powerphase.files import disk_errors, hold_lock, replace_file

LOCK = ".powerphase-lock"


class StoreWriter:
    """Writes one data set; made by `writing`, which holds the lock meanwhile.

    Args:
        path: the directory, locked.
        manifest: what the data set is to be; no block recorded yet.
        files: all its files that are not part of a block.
    """

    def __init__(self, path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        self.path = path
        self.manifest = manifest
        found = read_manifest(path)
        if found is None:
            self._clear(files)
        else:
            _check_continuable(path, found, manifest)
            self.manifest = found
        self._write_static(files)
        if found is None:  # last, so that the manifest proves that the rest is there
            self._record({})

    @property
    def store(self) -> Store:
        """The data set as it stands, for reading."""
        return Store(self.path, self.manifest)

    def write(self, number: int, block: Block) -> None:
        """Write a block whole, then vouch for it; one made again must come out as it was."""
        record = self._checked(number, record_of(block))
        steps = self.manifest.steps(number)
        for name, values in block.arrays():
            # Zarr would merge with what is there, and stumble over it where it is damaged.
            _remove(self.path / name / "c" / str(number))
            array = zarr.open_array(zarr_store(self.path, read_only=False), path=name, mode="r+")
            array[steps] = values
        self._record({**self.manifest.blocks, number: record})

    def _checked(self, number: int, record: BlockRecord) -> BlockRecord:
        old = self.manifest.blocks.get(number)
        if old is None:
            return record
        if record.unsolved and not old.unsolved:  # comparable again after the last pass
            return replace(record, promised=old.sha256)
        same_stage = bool(record.unsolved) == bool(old.unsolved)
        if (old.sha256 if same_stage else old.promised or record.sha256) != record.sha256:
            raise _not_repeated(self.path, f"block {number}")
        return replace(record, promised=old.promised) if same_stage else record

    def _write_static(self, files: Mapping[str, bytes]) -> None:
        """Write the files that are missing or damaged; sound ones of other versions stay."""
        for name in self.store.static_damage():
            content = files.get(name, b"")
            if sha256_of(content) != self.manifest.static_sha256[name]:
                raise _not_repeated(self.path, name)
            replace_file(self.path / name, content)

    def _clear(self, files: Mapping[str, bytes]) -> None:
        """Remove the rubble of a start that was killed; what is not ours stays."""
        for name in {Path(file).parts[0] for file in files}:
            _remove(self.path / name)

    def _record(self, blocks: Mapping[int, BlockRecord]) -> None:
        self.manifest = replace(self.manifest, blocks=dict(blocks))
        replace_file(self.path / MANIFEST, self.manifest.to_json().encode())


@contextmanager
def writing(path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> Iterator[StoreWriter]:
    """The writer of the data set at `path`: begun there, or continued if it is the same one."""
    with disk_errors(path, StoreError), _locked(path):
        for leftover in path.rglob("*.partial"):
            leftover.unlink()
        yield StoreWriter(path, manifest, files)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the directory's lock; a directory with other content is refused, an absent one made."""
    lock = path / LOCK
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()) and not lock.exists() and not (path / MANIFEST).exists():
        raise StoreError(f"{path}: holds files that are no data set; choose an empty place")
    try:
        handle = hold_lock(lock)
    except BlockingIOError:
        raise StoreBusy(
            f"{path}: another process is writing it; wait for it or choose another place"
        ) from None
    with handle:
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
    begun = [f"{k} {found.made_with.get(k)}" for k in changed]
    begun += ["another processor"] if found.cpu_features != wanted.cpu_features else []
    if begun and not found.complete:
        raise StoreError(
            f"{path}: begun with {', '.join(begun)}, whose bits would not be repeated here; "
            "finish it there or choose another place"
        )


def _not_repeated(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path}: {what} was damaged, and these versions or this processor do not repeat its bits; "
        "mend it where it was made, or remove the data set and generate it anew"
    )
