"""Damage to files (`at` is the position, as a share of the length) and to manifests."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from powerphase.dataset import make_record, open_store


def flip(path: Path, at: float) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path, at: float) -> None:
    """Remove the rest."""
    os.truncate(path, int(at * path.stat().st_size))


def remove(path: Path, at: float) -> None:
    """Remove the file."""
    path.unlink()


@contextmanager
def edit_manifest(store: Path) -> Iterator[dict[str, Any]]:
    """The manifest of a data set, which is written back afterwards."""
    path = store / "manifest.json"
    manifest = json.loads(path.read_text())
    yield manifest
    path.write_text(json.dumps(manifest))


def seal(store: Path) -> None:
    """State the present blocks in the manifest, as if the data set had been made with them."""
    data = open_store(store)
    with edit_manifest(store) as manifest:
        for number in data.manifest.blocks:
            manifest["blocks"][str(number)] = asdict(make_record(data.read_block(number)))
