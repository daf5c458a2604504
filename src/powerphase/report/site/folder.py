"""The folder of a site: written anew as a whole, and never over something that is no site."""

import shutil
from importlib.resources import files
from pathlib import Path

from powerphase.errors import ReportError
from powerphase.files import disk_errors

INDEX = "index.html"
MARK = '<meta name="generator" content="powerphase">'
OURS = (INDEX, "assets", "data")


class Folder:
    """Takes the files of a site and remembers their sizes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, int] = {}
        _clear(path)
        # First, as it marks the folder as ours even if a kill leaves it half-written.
        self.write(INDEX, f"{MARK}<p>Not finished; run the same command again.</p>".encode())
        self._copy_assets()

    def write(self, name: str, content: bytes) -> int:
        """Put a file into the site; returns its size in bytes."""
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
    """Remove an earlier site; refuse anything else."""
    content = {file.name for file in path.iterdir()} if path.is_dir() else set()
    index = path / INDEX
    is_site = index.is_file() and MARK in index.read_text(encoding="utf-8", errors="replace")
    if path.exists() and not path.is_dir():
        raise ReportError(f"{path}: a file, not a folder; choose another place")
    if content and not is_site:
        raise ReportError(f"{path}: holds files that are no site of ours; choose an empty place")
    for name in OURS:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
