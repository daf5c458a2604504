"""Files that are there whole or not at all."""

import os
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Put the content there whole, so that even a power cut leaves the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(content)
    flush(partial)
    partial.replace(file)


def flush(file: Path) -> None:
    """Wait until the file is on disk."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())
