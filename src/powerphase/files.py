"""Files that are there whole or not at all, the lock of who writes them, and strict JSON."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from powerphase.errors import PowerphaseError


def replace_file(file: Path, content: bytes) -> None:
    """Put the content there whole, so that even a power cut leaves the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.write_bytes(content)
        flush(partial)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room of what comes next
        raise
    partial.replace(file)


def flush(file: Path) -> None:
    """Wait until the file is on disk."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


def hold_lock(lock: Path) -> TextIOWrapper:
    """The lock file, held until it is closed; BlockingIOError if another process holds it."""
    handle = lock.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its owner may have removed the file between our opening and locking it.
        if not lock.exists() or lock.stat().st_ino != os.fstat(handle.fileno()).st_ino:
            raise BlockingIOError
    except BlockingIOError:
        handle.close()
        raise
    return handle


def parse_json(text: str) -> Any:
    """What the JSON holds; a ValueError if a key stands twice or a number is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"the key {next(one for one in keys if keys.count(one) > 1)!r} twice")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


@contextmanager
def disk_errors(path: Path, kind: type[PowerphaseError]) -> Iterator[None]:
    """Turn what the disk refuses into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise kind(
                f"{path}: the disk is full; nothing that was finished is lost, so free some space "
                "and run the same command again"
            ) from error
        raise kind(f"{path}: cannot be written ({error}); check the path") from error
