"""A failure: what became of a cell of the bench that gave no row.

It lies where the row would lie, as `NAME-SEED.failed.json`, is never read as a result, and goes
when the row comes.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

from powerphase.errors import ResultError
from powerphase.files import parse_json, replace_file
from powerphase.records.row_key import FAILURE_SUFFIX, RowKey, split_name


@dataclass(frozen=True)
class Failure:
    """Which cell failed, and why."""

    task: str
    edition: str
    grid: str
    model: str
    """As it was asked for."""
    name: str
    """The model and its variant, as its row would have them."""
    seed: int
    kind: str
    """The exception's name; or `limit`, `signal` or `exit`, where there was none."""
    sentence: str
    last_lines: list[str]
    """What the process said last."""
    seconds: float
    date: str
    commit: str | None
    hardware: str

    @property
    def key(self) -> RowKey:
        """That of the row that is missing."""
        return RowKey(self.task, self.edition, self.grid, *split_name(self.name), self.seed)

    @property
    def path(self) -> PurePosixPath:
        """Where the record lies in a tree of results."""
        return self.key.failure_path


def write_failure(failure: Failure, root: str | Path) -> Path:
    """Write the record into the tree at `root`, over an earlier one of the same cell."""
    path = Path(root) / failure.path
    text = json.dumps(asdict(failure), indent=1, ensure_ascii=False)
    replace_file(path, f"{text}\n".encode())
    return path


def is_failure(path: str | Path) -> bool:
    """Whether a file of that name is the record of a failure."""
    return Path(path).name.endswith(FAILURE_SUFFIX)


def read_failures(paths: Iterable[str | Path]) -> list[Failure]:
    """The failures in the folders, sorted by path; what has a row by now has not failed."""
    files = {
        file.parent.resolve() / file.name: file
        for path in map(Path, paths)
        for file in path.glob(f"**/*{FAILURE_SUFFIX}")
        if not file.with_name(f"{file.name.removesuffix(FAILURE_SUFFIX)}.json").exists()
    }
    return [read_failure(files[place]) for place in sorted(files)]


def read_failure(file: Path) -> Failure:
    """The failure in a file, or a sentence why it is none."""
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.keys() != {one.name for one in fields(Failure)}:
            raise ValueError("its keys are not those of a failure")
        return Failure(**found)
    except (OSError, ValueError) as error:
        raise ResultError(f"{file}: no record of a failure ({error}); remove it") from error
