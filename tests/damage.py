"""What can happen to a file; `at` says where, as a share of its length."""

import os
from pathlib import Path


def flip(path: Path, at: float) -> None:
    """One bit turns."""
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path, at: float) -> None:
    """The rest is lost."""
    os.truncate(path, int(at * path.stat().st_size))


def remove(path: Path, at: float) -> None:
    """All of it is lost."""
    path.unlink()
