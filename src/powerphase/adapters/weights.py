"""Weights of pretrained models: where they are, and what identifies them."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from powerphase.adapters.series import require
from powerphase.errors import ConfigError

PATTERNS = ("*.safetensors", "*.json", "*.ckpt", "*.bin", "*.pt", "*.pth")
"""The files of a folder of weights that matter."""

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Weights:
    """A folder of weights on this machine."""

    folder: Path
    source: str
    """The hub's name of the model, the package that contains it, or the folder's name."""
    revision: str | None
    """The commit on the hub."""

    @property
    def sha256(self) -> str:
        """The hash of the names and contents of all its files."""
        digest = hashlib.sha256()
        for file in _files(self.folder):
            digest.update(f"{file.relative_to(self.folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()

    def facts(self) -> dict[str, str | None]:
        """What a row says about the weights."""
        return {"source": self.source, "revision": self.revision, "sha256": self.sha256}


def find_weights(source: str | Path, revision: str | None = None) -> Weights:
    """The weights in a folder, or on the Hugging Face hub, from which they are downloaded once.

    Args:
        source: a folder, or a name on the hub such as `amazon/chronos-bolt-tiny`.
        revision: the branch, tag or commit on the hub.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(
                f"{source} is a folder and has no revision {revision!r}; leave it out"
            )
        if not _files(folder):
            raise ConfigError(f"{source} has no weights ({', '.join(PATTERNS)})")
        return Weights(folder, folder.resolve().name, None)
    if folder.exists() or not HUB_NAME.fullmatch(str(source)):
        raise ConfigError(
            f"{source} is neither a folder nor a name on the hub, such as amazon/chronos-bolt-tiny"
        )
    hub = require("huggingface_hub", "huggingface_hub")
    try:
        path = hub.snapshot_download(
            repo_id=str(source), revision=revision, allow_patterns=list(PATTERNS)
        )
    except Exception as error:  # of the network, the hub, or the disk
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{source} cannot be downloaded ({type(error).__name__}: {reason}); give the folder of "
            "a copy instead"
        ) from error
    return Weights(Path(path), str(source), Path(path).name)  # its folder is the commit


def _files(folder: Path) -> list[Path]:
    return sorted(file for pattern in PATTERNS for file in folder.rglob(pattern) if file.is_file())
