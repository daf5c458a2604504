"""Atomic file replacement, locks between processes, and strict JSON."""

import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from powerphase.errors import PowerphaseError


def replace_file(file: Path, content: bytes) -> None:
    """Replace the file atomically: even a power cut leaves either the old file or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    try:
        partial.write_bytes(content)
        flush(partial)
    except OSError:
        partial.unlink(
            missing_ok=True
        )  # on a full disk it would occupy space that other files need
        raise
    partial.replace(file)


def read_regular_file(file: Path, max_bytes: int) -> bytes:
    """The content of a regular file; OSError for a pipe or a device, which might never end."""
    # In this order: the file may be created meanwhile. A missing one fails to open.
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    with file.open("rb") as handle:
        if os.fstat(handle.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(file))
        return handle.read()


def exchange_folders(first: Path, second: Path) -> None:
    """Exchange two folders in one step, so that a reader sees the one or the other.

    Where the system cannot (it needs Linux and a file system that allows it), the second is renamed
    before the first takes its place.
    """
    flag, at_working_directory = 2, -100  # RENAME_EXCHANGE and AT_FDCWD
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (os.fsencode(first), os.fsencode(second))
    if rename is not None:
        arguments = (at_working_directory, names[0], at_working_directory, names[1], flag)
        if rename(*arguments) == 0:
            return
    aside = second.with_name(f".{second.name}.replaced")
    second.rename(aside)
    first.rename(second)
    aside.rename(first)


def flush(file: Path) -> None:
    """Wait until the file is on disk."""
    with file.open("rb+") as handle:
        os.fsync(handle.fileno())


@contextmanager
def appear_whole(path: Path) -> Iterator[Path]:
    """A path to write a file or a folder to; it becomes `path` at the end, and only then.

    After an error nothing is left. What a killed process leaves ends in `.partial`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent))
    try:
        partial = folder / path.name
        yield partial
        for file in (partial, *partial.rglob("*")):
            if file.is_file():
                flush(file)
        if path.exists():
            raise FileExistsError(errno.EEXIST, "created meanwhile", str(path))
        partial.rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hold_lock(lock: Path) -> TextIOWrapper:
    """Lock the file until the handle is closed; BlockingIOError if another process holds it."""
    handle = lock.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The owner may have removed the file after it was opened here and before it was locked.
        if not lock.exists() or lock.stat().st_ino != os.fstat(handle.fileno()).st_ino:
            raise BlockingIOError
    except BlockingIOError:
        handle.close()
        raise
    return handle


def parse_json(text: str) -> Any:
    """Parse strict JSON; raise ValueError for duplicate keys, NaN and infinities."""

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicate = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"duplicate key {duplicate!r}")
        return dict(pairs)

    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=reject)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def is_json_object(value: Any) -> bool:
    """Whether the value is a dictionary that survives a round trip through JSON unchanged."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


@contextmanager
def disk_errors(path: Path, kind: type[PowerphaseError]) -> Iterator[None]:
    """Turn an OSError while writing into an error of powerphase with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise kind(
                f"{path}: the disk is full; finished work is kept, so free some space and run "
                "the same command again"
            ) from error
        raise kind(f"{path}: cannot be written ({error}); check the path") from error
