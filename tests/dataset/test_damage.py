"""Damaged files, concurrent writers and full disks: reported, repaired, and nothing else lost."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from powerphase.dataset import (
    MANIFEST,
    BlockRecord,
    StoreWriter,
    generate,
    open_store,
    static_files,
    verify,
)
from powerphase.errors import StoreBusy, StoreError
from powerphase.synthesis import Signals
from tests.damage import edit_manifest, flip, remove, truncate
from tests.dataset.exact import files_of, stressed_signals

GRID = "ieee14"


@pytest.fixture
def store(tmp_path: Path, undisturbed: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(undisturbed, tmp_path / "store"))


Harm = Callable[[Path, float], None]
FEW: list[tuple[Harm, float]] = [(remove, 0.0), (flip, 0.3), (truncate, 0.999)]
ALL: list[tuple[Harm, float]] = [*FEW, (flip, 0.0), (flip, 0.999), (truncate, 0.0), (truncate, 0.3)]


@pytest.mark.parametrize(
    ("file", "name", "harm", "at"),
    [
        (file, name, harm, at)
        for file, name, harms in (
            ("state/c/1/0", "state, block 1", ALL),
            ("mismatch/c/2", "mismatch, block 2", FEW),
            ("signals/c/0/0", "signals/c/0/0", FEW),
            ("grid/branch/c/0/0", "grid/branch/c/0/0", ALL),
            ("zarr.json", "zarr.json", FEW),
            ("grid/zarr.json", "grid/zarr.json", FEW),
            ("grid/gen/zarr.json", "grid/gen/zarr.json", FEW),
        )
        for harm, at in harms
    ],
)
def test_damage_is_reported_and_only_the_damaged_part_is_made_again(
    store: Path, undisturbed: Path, signals: Signals, file: str, name: str, harm: Harm, at: float
) -> None:
    harm(store / file, at)
    certificate = verify(store)
    assert certificate.damaged == [name]
    assert not certificate.valid
    before = {path: path.stat().st_mtime_ns for path in store.rglob("c/**/*") if path.is_file()}
    generate(GRID, store, signals=signals)
    assert files_of(store) == files_of(undisturbed)
    changed = {path for path, when in before.items() if path.stat().st_mtime_ns != when}
    block = file.partition("/c/")[2].split("/")[0] if "block" in name else None
    same_block = {path for path in before if f"{path}/".partition("/c/")[2].startswith(f"{block}/")}
    assert changed <= (same_block or {store / file})
    assert verify(store).valid


def test_a_block_that_cannot_be_reproduced_raises(store: Path, signals: Signals) -> None:
    with edit_manifest(store) as manifest:
        manifest["blocks"]["1"]["sha256"]["state"] = "0" * 64
    for _ in range(2):  # a second attempt does not succeed either
        with pytest.raises(StoreError, match="block 1"):
            generate(GRID, store, signals=signals)
    assert verify(store).damaged == ["state, block 1"]


def test_lost_metadata_is_restored_without_making_a_block_again(
    store: Path, undisturbed: Path, signals: Signals
) -> None:
    (store / "state/zarr.json").unlink()
    assert "state/zarr.json" in verify(store).damaged
    shards = [path for path in (store / "state/c").rglob("*") if path.is_file()]
    before = [path.stat().st_mtime_ns for path in shards]
    generate(GRID, store, signals=signals)
    assert files_of(store) == files_of(undisturbed)
    assert [path.stat().st_mtime_ns for path in shards] == before


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with some states carried forward; do not change it."""
    out = tmp_path_factory.mktemp("stressed") / "store"
    generate(GRID, out, signals=stressed_signals(), seed=0)
    return out


@pytest.mark.parametrize("crash", range(12))
def test_a_crash_before_any_write_of_the_manifest_is_repaired(
    tmp_path: Path, stressed: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    """Each crash happens after the arrays of a block are written and before the manifest is."""
    signals, out = stressed_signals(), tmp_path / "s"
    records, record = 0, StoreWriter._record

    def crash_once(self: StoreWriter, blocks: Mapping[int, BlockRecord]) -> None:
        nonlocal records
        records += 1
        if records == crash + 1:
            raise KeyboardInterrupt
        record(self, blocks)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(StoreWriter, "_record", crash_once)
        generate(GRID, out, signals=signals, seed=0)
        assert records <= crash  # this crash would come after the last write
    generate(GRID, out, signals=signals, seed=0)
    assert files_of(out) == files_of(stressed)


def test_a_damaged_block_with_carried_steps_is_repaired(tmp_path: Path) -> None:
    signals, store = stressed_signals(), tmp_path / "s"
    generate(GRID, store, signals=signals, seed=0)
    before = files_of(store)
    for name in ("state/c/0/0", "state/c/1/0"):
        flip(store / name, 0.5)
    generate(GRID, store, signals=signals, seed=0)
    assert files_of(store) == before
    with edit_manifest(store) as manifest:
        manifest["blocks"]["1"]["sha256"]["state"] = "0" * 64
    for _ in range(2):
        with pytest.raises(StoreError, match="block 1"):
            generate(GRID, store, signals=signals, seed=0)


def test_a_second_writer_raises_without_disturbing_the_first(
    tmp_path: Path, undisturbed: Path, signals: Signals
) -> None:
    out, attempts = tmp_path / "s", 0

    def write_too(done: int, total: int) -> None:
        nonlocal attempts
        attempts += 1
        with pytest.raises(StoreBusy, match=str(out)):
            generate(GRID, out, signals=signals)

    generate(GRID, out, signals=signals, on_progress=write_too)
    assert attempts == 4
    assert files_of(out) == files_of(undisturbed)


def test_another_data_set_in_the_directory_raises(store: Path, signals: Signals) -> None:
    before = files_of(store)
    with pytest.raises(StoreError, match="seed, end"):
        generate(GRID, store, signals=signals, seed=7, end="2015-01-11")
    assert files_of(store) == before


def test_a_directory_with_other_files_is_not_changed(tmp_path: Path, signals: Signals) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=str(tmp_path)):
        generate(GRID, tmp_path, signals=signals)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unfinished_data_set_of_other_versions_raises(store: Path, signals: Signals) -> None:
    with edit_manifest(store) as manifest:
        del manifest["blocks"]["2"]
        manifest["made_with"]["lightsim2grid"] = "1.1.0"
    with pytest.raises(StoreError, match=r"lightsim2grid 1\.1\.0"):
        generate(GRID, store, signals=signals)


def test_intact_files_of_another_version_are_not_changed(
    store: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block can be repaired even if other versions would write other metadata."""
    monkeypatch.setattr(
        "powerphase.dataset.generation.static_files",
        lambda *a: {name: content + b" " for name, content in static_files(*a).items()},
    )
    before = files_of(store)
    flip(store / "state/c/1/0", 0.5)
    generate(GRID, store, signals=signals)
    assert files_of(store) == before
    flip(store / "time/zarr.json", 0.5)
    with pytest.raises(StoreError, match=r"time/zarr\.json"):
        generate(GRID, store, signals=signals)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', '"manifest"'])
def test_a_broken_manifest_raises(store: Path, signals: Signals, text: str) -> None:
    (store / MANIFEST).write_text(text)
    uses: list[Callable[[Path], object]] = [
        open_store,
        verify,
        lambda path: generate(GRID, path, signals=signals),
    ]
    for use in uses:
        with pytest.raises(StoreError, match=r"manifest\.json"):
            use(store)


def test_a_missing_data_set_raises(tmp_path: Path, store: Path) -> None:
    with pytest.raises(StoreError, match="powerphase generate"):
        open_store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=str(store)):  # which lies in this folder
        open_store(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with space for one and a half blocks."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_generation_continues_after_a_full_disk(
    small_disk: Path, undisturbed: Path, signals: Signals
) -> None:
    with pytest.raises(StoreError, match="disk is full"):
        generate(GRID, small_disk / "s", signals=signals)
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    generate(GRID, small_disk / "s", signals=signals)
    assert files_of(small_disk / "s") == files_of(undisturbed)


@pytest.mark.parametrize("moment", range(6))
def test_generation_continues_after_any_failed_write(
    tmp_path: Path,
    undisturbed: Path,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
) -> None:
    writes, put = 0, LocalStore.set

    async def fail_once(self: LocalStore, key: str, value: Buffer) -> None:
        nonlocal writes
        writes += 1
        if writes == 1 + 2 * moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", fail_once)
    with pytest.raises(StoreError, match="disk is full"):
        generate(GRID, tmp_path / "s", signals=signals)
    generate(GRID, tmp_path / "s", signals=signals)
    assert files_of(tmp_path / "s") == files_of(undisturbed)
