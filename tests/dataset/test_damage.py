"""Damage, rivals and full disks: named in a sentence, mended where possible, nothing else lost."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from zarr.storage import LocalStore

from powerphase.dataset import MANIFEST, StoreWriter, generate, generation, open_store, verify
from powerphase.errors import StoreBusy, StoreError
from powerphase.synthesis import Signals
from tests.damage import flip, remove, truncate
from tests.dataset.exact import files_of, stressed_signals

GRID = "ieee14"


@pytest.fixture
def store(tmp_path: Path, undisturbed: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(undisturbed, tmp_path / "store"))


PLACES = (0.0, 0.3, 0.999)
HARMS = [(remove, 0.0), *((harm, at) for harm in (flip, truncate) for at in PLACES)]


@pytest.mark.parametrize(("harm", "at"), HARMS)
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("state/c/1/0", "state, block 1"),
        ("mismatch/c/2", "mismatch, block 2"),
        ("signals/c/0/0", "signals/c/0/0"),
        ("grid/branch/c/0/0", "grid/branch/c/0/0"),
        ("zarr.json", "zarr.json"),
        ("grid/zarr.json", "grid/zarr.json"),
        ("grid/gen/zarr.json", "grid/gen/zarr.json"),
    ],
)
def test_a_damaged_block_is_named_and_only_it_is_made_again(
    store: Path, undisturbed: Path, signals: Signals, file: str, name: str, harm, at: float
) -> None:
    harm(store / file, at)
    certificate = verify(store)
    assert certificate.damaged == [name]
    assert not certificate.valid
    before = {path: path.stat().st_mtime_ns for path in store.rglob("c/**/*") if path.is_file()}
    generate(GRID, store, signals=signals)
    assert files_of(store) == files_of(undisturbed)
    touched = {path for path, when in before.items() if path.stat().st_mtime_ns != when}
    block = file.partition("/c/")[2].split("/")[0] if "block" in name else None
    same_block = {path for path in before if f"{path}/".partition("/c/")[2].startswith(f"{block}/")}
    assert touched <= (same_block or {store / file})
    assert verify(store).valid


def test_a_block_that_comes_out_different_is_reported_and_not_passed_off(
    store: Path, signals: Signals
) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    manifest["blocks"]["1"]["sha256"]["state"] = "0" * 64
    (store / MANIFEST).write_text(json.dumps(manifest))
    for _ in range(2):  # asking again does not make it right
        with pytest.raises(StoreError, match="block 1 was damaged, and these versions or"):
            generate(GRID, store, signals=signals)
    assert verify(store).damaged == ["state, block 1"]


def test_lost_metadata_of_the_states_is_restored_and_costs_no_block(
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
    """A data set whose states are carried forward here and there; read it, never change it."""
    out = tmp_path_factory.mktemp("stressed") / "store"
    generate(GRID, out, signals=stressed_signals(), seed=0)
    return out


@pytest.mark.parametrize("crash", range(12))
def test_a_crash_before_any_record_is_made_good_even_while_states_are_carried_forward(
    tmp_path: Path, stressed: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    """The worst moment is after the arrays of a block and before the manifest: all of these."""
    signals, out = stressed_signals(), tmp_path / "s"
    records, record = 0, StoreWriter._record

    def dies(self: StoreWriter, blocks: object) -> None:
        nonlocal records
        records += 1
        if records == crash + 1:
            raise KeyboardInterrupt
        record(self, blocks)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(StoreWriter, "_record", dies)
        generate(GRID, out, signals=signals, seed=0)
        assert records <= crash  # there are fewer records than this crash waits for
    generate(GRID, out, signals=signals, seed=0)
    assert files_of(out) == files_of(stressed)


def test_a_damaged_block_with_carried_steps_is_made_again_as_it_was(tmp_path: Path) -> None:
    signals, store = stressed_signals(), tmp_path / "s"
    generate(GRID, store, signals=signals, seed=0)
    before = files_of(store)
    for name in ("state/c/0/0", "state/c/1/0"):
        flip(store / name, 0.5)
    generate(GRID, store, signals=signals, seed=0)
    assert files_of(store) == before
    manifest = json.loads((store / MANIFEST).read_text())
    manifest["blocks"]["1"]["sha256"]["state"] = "0" * 64
    (store / MANIFEST).write_text(json.dumps(manifest))
    for _ in range(2):
        with pytest.raises(StoreError, match="block 1 was damaged, and these versions or"):
            generate(GRID, store, signals=signals, seed=0)


def test_a_second_writer_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path, undisturbed: Path, signals: Signals
) -> None:
    out, refusals = tmp_path / "s", []

    def rival(done: int, total: int) -> None:
        with pytest.raises(StoreBusy, match="another process is writing it") as refusal:
            generate(GRID, out, signals=signals)
        refusals.append(refusal)

    generate(GRID, out, signals=signals, on_progress=rival)
    assert len(refusals) == 4
    assert files_of(out) == files_of(undisturbed)


def test_another_data_set_in_the_same_place_is_refused(store: Path, signals: Signals) -> None:
    before = files_of(store)
    with pytest.raises(StoreError, match=r"holds another data set \(it differs in seed, end\)"):
        generate(GRID, store, signals=signals, seed=7, end="2015-01-11")
    assert files_of(store) == before


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path, signals: Signals) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="holds files that are no data set"):
        generate(GRID, tmp_path, signals=signals)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unfinished_data_set_of_other_versions_is_refused(store: Path, signals: Signals) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    del manifest["blocks"]["2"]
    manifest["made_with"]["lightsim2grid"] = "1.1.0"
    (store / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=r"begun with lightsim2grid 1\.1\.0"):
        generate(GRID, store, signals=signals)


def test_sound_files_of_another_version_are_left_as_they_are(
    store: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished data set need not be repeatable here to be checked and mended in its blocks."""
    files = generation.static_files
    monkeypatch.setattr(
        generation, "static_files", lambda *a: {k: v + b" " for k, v in files(*a).items()}
    )
    before = files_of(store)
    flip(store / "state/c/1/0", 0.5)
    generate(GRID, store, signals=signals)
    assert files_of(store) == before
    flip(store / "time/zarr.json", 0.5)
    with pytest.raises(StoreError, match=r"time/zarr\.json was damaged, and these versions"):
        generate(GRID, store, signals=signals)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', '"manifest"'])
def test_a_broken_manifest_is_refused_in_a_sentence(
    store: Path, signals: Signals, text: str
) -> None:
    (store / MANIFEST).write_text(text)
    for use in (open_store, verify, lambda path: generate(GRID, path, signals=signals)):
        with pytest.raises(StoreError, match=r"manifest\.json: (not a manifest|written in format)"):
            use(store)


def test_no_data_set_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no data set here; make one with `powerphase generate`"):
        open_store(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for one block and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_stops_with_a_sentence_and_the_work_goes_on_when_there_is_room(
    small_disk: Path, undisturbed: Path, signals: Signals
) -> None:
    with pytest.raises(StoreError, match="the disk is full; nothing that was finished is lost"):
        generate(GRID, small_disk / "s", signals=signals)
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    generate(GRID, small_disk / "s", signals=signals)
    assert files_of(small_disk / "s") == files_of(undisturbed)


@pytest.mark.parametrize("moment", range(6))
def test_any_write_may_fail_for_lack_of_space(
    tmp_path: Path,
    undisturbed: Path,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
) -> None:
    writes, put = 0, LocalStore.set

    async def fails_once(self: LocalStore, key: str, value: object) -> None:
        nonlocal writes
        writes += 1
        if writes == 1 + 2 * moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", fails_once)
    with pytest.raises(StoreError, match="the disk is full"):
        generate(GRID, tmp_path / "s", signals=signals)
    generate(GRID, tmp_path / "s", signals=signals)
    assert files_of(tmp_path / "s") == files_of(undisturbed)
