"""Where data sets are: local directories, and URLs that fsspec can read."""

from errno import EFBIG
from pathlib import Path

import zarr
from zarr.storage import StoreLike

from powerphase.files import read_regular_file

MAX_FILE_BYTES = 2**28
"""No manifest and no file outside the blocks comes near this size."""


def read_bytes(path: str) -> bytes:
    """The content of a local file or of a URL."""
    if not is_url(path):
        return read_regular_file(Path(path), MAX_FILE_BYTES)
    import fsspec

    with fsspec.open(path, "rb") as file:
        content = bytes(file.read(MAX_FILE_BYTES + 1))
    if len(content) > MAX_FILE_BYTES:
        raise OSError(EFBIG, f"larger than {MAX_FILE_BYTES:,} bytes", path)
    return content


def is_url(path: str | Path) -> bool:
    """Whether `path` is a URL, which fsspec reads."""
    return isinstance(path, str) and "://" in path


def zarr_store(path: str | Path, read_only: bool = True) -> StoreLike:
    """The Zarr store of a directory or URL."""
    if is_url(path):
        return zarr.storage.FsspecStore.from_url(str(path), read_only=read_only)
    return zarr.storage.LocalStore(Path(path), read_only=read_only)
