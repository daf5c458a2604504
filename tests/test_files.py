"""Files are replaced completely or not at all."""

import errno
from pathlib import Path, PosixPath
from typing import Any

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


class Appearing(PosixPath):
    """A file that another process creates after the first look at it."""

    def exists(self, **options: Any) -> bool:
        answer = super().exists(**options)
        self.write_bytes(b"new")
        return answer

    def is_file(self, **options: Any) -> bool:
        answer = super().is_file(**options)
        self.write_bytes(b"new")
        return answer


def test_a_file_that_was_just_created_is_not_taken_for_a_pipe(tmp_path: Path) -> None:
    assert files.read_regular_file(Appearing(tmp_path / "row.json"), 10) == b"new"
