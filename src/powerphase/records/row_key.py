"""What identifies a row, its names and paths, and failures, which replace missing rows.

A failure says why a job of the bench produced no row. It is stored in the row's folder as
`NAME-SEED.failed.json`, is never read as a result, and is removed when the row is written.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from powerphase.errors import ResultError
from powerphase.files import replace_file
from powerphase.schema import integer, list_of, nullable, read_json, real, text

FAILURE_SUFFIX = ".failed.json"


@dataclass(frozen=True)
class RowKey:
    """One forecaster with one seed, on one data set, by one task."""

    task: str
    edition: str
    grid: str
    model: str
    variant: str | None
    seed: int

    @property
    def name(self) -> str:
        """The model, and its variant if it has one: `last-week`, `powerforge+wta`."""
        return full_name(self.model, self.variant)

    @property
    def stem(self) -> str:
        """The name and the seed: `powerforge+wta-42`."""
        return f"{self.name}-{self.seed}"

    @property
    def path(self) -> PurePosixPath:
        """The row's file, relative to the tree of results."""
        return self._folder / f"{self.stem}.json"

    @property
    def failure_path(self) -> PurePosixPath:
        """The file that records a failure, relative to the tree of results."""
        return self._folder / f"{self.stem}{FAILURE_SUFFIX}"

    @property
    def run_path(self) -> PurePosixPath:
        """The folder of the training, relative to that of all trainings.

        A training does not depend on the task, which only chooses the test windows.
        """
        return PurePosixPath(self.edition, self.grid, self.stem)

    @property
    def _folder(self) -> PurePosixPath:
        return PurePosixPath(self.task, self.edition, self.grid)


def full_name(model: str, variant: str | None) -> str:
    """The name of a model with its variant, if it has one."""
    return f"{model}+{variant}" if variant else model


def split_name(name: str) -> tuple[str, str | None]:
    """The model and the variant in a full name."""
    model, _, variant = name.partition("+")
    return model, variant or None


@dataclass(frozen=True)
class Failure:
    """Which job failed, and why."""

    task: str
    edition: str
    grid: str
    model: str
    """As it was requested."""
    name: str
    """The model and its variant, as in a row."""
    seed: int
    kind: str
    """The exception's name; `limit`, `signal` or `exit` where there was no exception."""
    sentence: str
    last_lines: list[str]
    """The last lines that the process printed."""
    seconds: float
    date: str
    commit: str | None
    hardware: str

    @property
    def key(self) -> RowKey:
        """The key of the missing row."""
        return RowKey(self.task, self.edition, self.grid, *split_name(self.name), self.seed)

    @property
    def path(self) -> PurePosixPath:
        """The file of the failure, relative to the tree of results."""
        return self.key.failure_path


FAILURE_SCHEMA = {
    **dict.fromkeys(("task", "edition", "grid", "model", "name", "kind", "hardware"), text()),
    "seed": integer(0),
    "sentence": text(pattern=r"(?s).*"),
    "last_lines": list_of(text(pattern=r"(?s).*")),
    "seconds": real(0.0),
    "date": text(),
    "commit": nullable(text()),
}


def write_failure(failure: Failure, root: str | Path) -> Path:
    """Write the failure into the tree at `root`; it replaces an earlier one of the same job."""
    path = Path(root) / failure.path
    text = json.dumps(asdict(failure), indent=1, ensure_ascii=False)
    replace_file(path, f"{text}\n".encode())
    return path


def is_failure(path: str | Path) -> bool:
    """Whether the file's name is that of a failure."""
    return Path(path).name.endswith(FAILURE_SUFFIX)


def read_failures(paths: Iterable[str | Path]) -> list[Failure]:
    """The failures in the folders, sorted by path, except those of rows that exist by now."""
    files = {
        file.parent.resolve() / file.name: file
        for path in map(Path, paths)
        for file in path.glob(f"**/*{FAILURE_SUFFIX}")
        if not file.with_name(f"{file.name.removesuffix(FAILURE_SUFFIX)}.json").exists()
    }
    return [read_failure(files[path]) for path in sorted(files)]


def read_failure(file: Path) -> Failure:
    """The failure in the file; raise ResultError if it holds none."""
    return Failure(**read_json(file, FAILURE_SCHEMA, ResultError, "remove it"))
