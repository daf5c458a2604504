"""The folder of a site, and the format of the files in it.

A page that was opened from a file may load scripts, but may not fetch. So every piece of data is a
script that passes a value to `powerphase.put`, loaded when a page first needs it. An array is
stored as its bytes, grouped by significance, deflated and in base64, which a browser can undo.
"""

import base64
import json
import shutil
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from powerphase.errors import ReportError
from powerphase.files import disk_errors

INDEX = "index.html"
MARK = '<meta name="generator" content="powerphase">'
OURS = (INDEX, "assets", "data")

TYPES = ("u1", "u2", "u4", "i4", "f2", "f4")
"""The types that a page can read, always little-endian."""


class Folder:
    """Writes the files of a site and records their sizes; replaces an earlier site as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, int] = {}
        _clear(path)
        # Written first, so that a folder left by a killed run is recognised as a site.
        self.write(INDEX, f"{MARK}<p>Not finished; run the same command again.</p>".encode())
        self._copy_assets()

    def write(self, name: str, content: bytes) -> int:
        """Write a file of the site; returns its size in bytes."""
        file = self.path / name
        with disk_errors(file, ReportError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self.sizes[name] = len(content)
        return len(content)

    def _copy_assets(self) -> None:
        for asset in (files("powerphase.report.site") / "assets").iterdir():
            self.write(f"assets/{asset.name}", asset.read_bytes())


def _clear(path: Path) -> None:
    """Remove an earlier site; raise if the path is anything else."""
    content = {file.name for file in path.iterdir()} if path.is_dir() else set()
    index = path / INDEX
    is_site = index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")
    if path.exists() and not path.is_dir():
        raise ReportError(f"{path}: is a file; choose a folder")
    if content and not is_site:
        raise ReportError(f"{path}: contains files, but no site; choose an empty folder")
    for name in OURS:
        if (path / name).is_dir():
            shutil.rmtree(path / name)


def pack(array: Shaped[np.ndarray, "..."]) -> dict[str, Any]:
    """The array as JSON, from which the page restores exactly these numbers."""
    kind = array.dtype.str[1:]
    if kind not in TYPES:
        raise TypeError(f"cannot pack an array of {array.dtype}; the types are {', '.join(TYPES)}")
    content = np.ascontiguousarray(array, dtype=f"<{kind}")
    by_significance = content.view(np.uint8).reshape(-1, content.itemsize).T.tobytes()
    data = base64.b64encode(zlib.compress(by_significance, 6)).decode()
    return {"type": kind, "shape": list(array.shape), "data": data}


def script(key: str, value: Any) -> bytes:
    """The content of the script file that passes the value to the page under that key."""
    # Escaped, so that no text of a result file can end the script or start another.
    body = json.dumps([key, _to_json(value)], separators=(",", ":"), allow_nan=False)
    return f"powerphase.put(...{body.replace('<', chr(92) + 'u003c')});\n".encode()


def _to_json(value: Any) -> Any:
    """The value with lists for arrays and with null for numbers that are not finite."""
    if isinstance(value, np.ndarray):
        return _to_json(value.tolist())
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
