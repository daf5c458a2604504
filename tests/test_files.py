"""Files are replaced completely or not at all."""

import errno
from pathlib import Path

import pytest

from powerphase import files


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partial file would occupy the space that the record of the failure needs."""

    def fail(file: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files.replace_file(tmp_path / "row.json", b"old")
    monkeypatch.setattr(files, "flush", fail)
    with pytest.raises(OSError, match="No space left"):
        files.replace_file(tmp_path / "row.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["row.json"]
    assert (tmp_path / "row.json").read_bytes() == b"old"
