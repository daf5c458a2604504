"""What a data set says of itself, in one JSON file that is replaced whole and never patched.

The manifest is the record of progress too: a block of the record counts as done once its checksums
stand here, so a killed generator can leave a half-written file behind but never a half-true claim.
Nothing in it depends on when, where or with how many workers the data set was made.
"""

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from powerphase.errors import StoreError

MANIFEST = "manifest.json"
PACKAGES = (
    "powerphase",
    "lightsim2grid",
    "llvmlite",
    "numba",
    "numcodecs",
    "numpy",
    "scipy",
    "zarr",
)
FORMAT = 2
"""Raised whenever a reader of older data sets would misread a newer one."""


@dataclass(frozen=True)
class BlockRecord:
    """The checksums of a block's arrays (of their decoded bytes) and what its steps hold."""

    sha256: dict[str, str]
    provenance: list[int]
    largest: list[float]
    """Largest |P| [MW] and |Q| [MVAr]; a task's scales come from here, not from a long read."""
    unsolved: int = 0
    """Steps that still wait for the last pass, which carries states forward."""
    promised: dict[str, str] | None = None
    """The checksums that the block had when it was whole, while it is being made again."""


@dataclass(frozen=True)
class Manifest:
    """Identity, origin, versions and checksums of a data set."""

    grid: str
    edition: str
    fingerprint: str
    recipe: dict[str, Any]
    n_steps: int
    n_buses: int
    block_steps: int
    attribution: list[str]
    filled_signal_values: int
    made_with: dict[str, str]
    cpu_features: list[str]
    static_sha256: dict[str, str]
    """Checksums of all files that are not part of a block: metadata, grid, clock, signals."""
    blocks: dict[int, BlockRecord] = field(default_factory=dict)

    @property
    def n_blocks(self) -> int:
        """Number of blocks in the whole record."""
        return -(-self.n_steps // self.block_steps)

    @property
    def complete(self) -> bool:
        """Whether every block is there and no step waits for the last pass."""
        done = len(self.blocks) == self.n_blocks
        return done and not any(record.unsolved for record in self.blocks.values())

    @property
    def provenance(self) -> list[int]:
        """Steps by provenance, over the blocks that are done."""
        counts = [record.provenance for record in self.blocks.values()]
        return [int(n) for n in np.sum(counts, axis=0)] if counts else [0, 0, 0, 0]

    def steps(self, block: int) -> slice:
        """The steps of the record that the block holds."""
        first = block * self.block_steps
        return slice(first, min(first + self.block_steps, self.n_steps))

    def to_json(self) -> str:
        """The manifest as text; equal manifests give equal text."""
        values = {"format": FORMAT, **asdict(self), "complete": self.complete}
        values["blocks"] = {str(k): values["blocks"][k] for k in sorted(values["blocks"])}
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """The manifest in `text`, which was read at `where`."""
        try:
            values = json.loads(text)
            found = values.pop("format")
            if found != FORMAT:
                raise StoreError(
                    f"{where}: written in format {found}, this version reads format {FORMAT}; "
                    "install the powerphase that wrote it"
                )
            del values["complete"]
            blocks = {int(k): BlockRecord(**record) for k, record in values.pop("blocks").items()}
            return cls(blocks=blocks, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{where}: not a manifest of powerphase ({error}); restore it or generate anew"
            ) from error


def made_with() -> dict[str, str]:
    """The versions that decide the bytes of a data set."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def cpu_features() -> list[str]:
    """The vector instructions that NumPy found; they can decide a last bit."""
    config = np.show_config(mode="dicts")
    simd = config["SIMD Extensions"] if config else {}
    return [platform.machine(), *simd.get("baseline", []), *simd.get("found", [])]
