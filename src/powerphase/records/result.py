"""The result row: every score of one forecaster, with one seed, on one data set, as a JSON file.

A row repeats its task, the fingerprint of its data, its versions and its cost, so that it can be
read alone. It is validated when it is created and when it is read. Larger arrays (scores by bus and
step, scenarios to draw) are in its sidecar, an `.npz` file of the same name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Shaped

from powerphase.errors import ResultError
from powerphase.files import parse_json, read_regular_file, replace_file
from powerphase.records.result_rules import (
    SCHEMA,
    Number,
    add_missing,
    check,
    check_schema,
    drop_missing,
)
from powerphase.records.row_key import RowKey, is_failure
from powerphase.records.sidecar import to_npz
from powerphase.schema import MAX_JSON_BYTES

if TYPE_CHECKING:
    import pandas as pd

FLAT_SLOPE = 0.2
"""A forecast is flat if the daily slope of every variable is below this."""

COUPLED_FIELD = "coupled"
"""The field of a coupled model's config that describes the coupling, with its template."""


@dataclass(frozen=True)
class Result:
    """The scores of one forecaster; each is a mean over windows of normalised values."""

    task: str
    task_version: int
    grid: str
    edition: str
    fingerprint: str
    """The hash of the data set's recipe."""
    model: str
    variant: str | None
    """What differs from the model's default: an ablation, a quirk, a reduced budget."""
    config: dict[str, Any]
    model_version: int | None
    """The version of the model's results, raised when its code gives others; None in schema 1."""
    parameters: int | None
    seed: int
    windows: list[str]
    """UTC start of each window, such as `2016-07-01T00:00`."""
    scenarios: int
    """Scenarios per window."""
    joint: bool | None
    """Whether each scenario is one future of the whole grid, such as a draw, a past day or a solved
    state. False for quantiles or draws of every channel by itself; None if unknown."""
    truth: dict[str, Number | None]
    """What happened: mean excursion [p.u.], share of voltages outside the band, and share of rated
    branches above their rating."""
    scores: dict[str, Number | None]
    by_type: dict[str, dict[str, Number | None]]
    by_window: dict[str, list[Number] | None]
    cost: dict[str, Number | str | None]
    version: str
    """The powerphase that scored it."""
    commit: str | None
    date: str
    data_verified: bool | None = None
    """Whether the checksums of all data that were read were checked; None if unknown."""
    daily_slope: dict[str, Number | None] | None = None
    """Of P, Q, V and θ: 1 for the whole daily cycle, 0 for a flat line, None where the truth is
    constant. None in schema 1."""
    training: dict[str, Any] | None = None
    """How a network was trained, see `result_rules.TRAINING`; None of other models and in schema
    1."""
    failed: dict[str, Any] | None = None
    """What a model of single series could not forecast, see `result_rules.FAILED`; None if that is
    nothing, or if the model is of another kind."""
    schema: int = SCHEMA
    """The schema of its file; older schemas lack facts and scores, which are None here."""

    def __post_init__(self) -> None:
        check(vars(self), "result row")

    @property
    def key(self) -> RowKey:
        """What identifies this row."""
        return RowKey(self.task, self.edition, self.grid, self.model, self.variant, self.seed)

    @property
    def name(self) -> str:
        """The model, and its variant if it has one: `last-week`, `powerforge+wta`."""
        return self.key.name

    @property
    def model_versions(self) -> list[tuple[str, int | None]]:
        """The versions of the results of its model, and of the template that coupled it."""
        coupled = self.config.get(COUPLED_FIELD)  # whatever a model of a user has there
        template = coupled.get("template") if isinstance(coupled, dict) else None
        match template:
            case {"model": str() as model, "version": int() as version}:
                return [(self.model, self.model_version), (model, version)]
        return [(self.model, self.model_version)]

    @property
    def is_flat(self) -> bool | None:
        """Whether it does not follow the day, whatever its scores; None if unknown."""
        known = [slope for slope in (self.daily_slope or {}).values() if slope is not None]
        return max(known) < FLAT_SLOPE if known else None

    @property
    def may_have_seen_signals(self) -> bool:
        """Whether a pretrained model may have seen the signals of the data, as its config says."""
        pretraining = self.config.get("pretraining")
        editions = pretraining.get("may_have_seen") if isinstance(pretraining, dict) else None
        return isinstance(editions, list) and self.edition in editions

    @property
    def failed_series(self) -> list[str]:
        """The names of the series that failed in any window."""
        windows = (self.failed or {}).get("series", {}).values()
        return sorted({name for reasons in windows for name in reasons or ()})

    @property
    def path(self) -> PurePosixPath:
        """The row's file, relative to the tree of results."""
        return self.key.path

    def to_json(self) -> str:
        """The row as text; equal rows give equal text, and numbers survive a round trip."""
        check(vars(self), str(self.path))  # its lists and dictionaries may have changed
        row = {"schema": self.schema, **drop_missing(vars(self))}
        lines = (f' "{key}": {_as_text(value)}' for key, value in row.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Result":
        """The row in `text`, which was read from `where`."""
        values = _parse(text, where)
        if "schema" not in values:
            raise ResultError(f"{where}: not a result row; give a row's file or a folder of rows")
        check_schema(values["schema"], where)
        complete = add_missing(values)
        check(complete, where, "remove it and score the forecast again")
        return cls(**complete)


def read_result(path: str | Path) -> Result:
    """The row in the file; raise if its path is not that of the row."""
    file = Path(path)
    try:
        text = read_regular_file(file, MAX_JSON_BYTES).decode()
    except (OSError, ValueError) as error:
        raise ResultError(f"{file}: cannot be read ({error}); give a result's file") from error
    result = Result.from_json(text, str(file))
    expected = result.path.parts
    if _canonical(file).parts[-len(expected) :] != expected:
        raise ResultError(f"{file}: holds the row of {result.path}; move it there")
    return result


class Results(list[Result]):
    """Result rows, as a list."""

    def to_pandas(self) -> "pd.DataFrame":
        """A table with a line for each row: what identifies it, its facts, scores and cost.

        Missing facts and scores are NaN or None; costs are called `cost.train_s` and so on.
        """
        import pandas as pd  # takes a second to load

        return pd.DataFrame([_as_line(row) for row in self])


def read_results(paths: str | Path | Iterable[str | Path]) -> Results:
    """The rows in the files and in all JSON files of the folders, each once and sorted by path.

    Failure files are skipped.

    Args:
        paths: a row's file or a folder of rows, or several of them.
    """
    return Results(find_results(paths).values())


def find_results(paths: str | Path | Iterable[str | Path]) -> dict[Path, Result]:
    """The same rows by the file that each was read from; its sidecar is next to it."""
    if isinstance(paths, str | Path):
        paths = [paths]
    files: dict[Path, Path] = {}
    problems: list[str] = []
    results: dict[Path, Result] = {}
    for path in map(Path, paths):
        candidates = list(path.glob("**/*.json")) if path.is_dir() else [path] * path.is_file()
        files.update((_canonical(file), file) for file in candidates if not is_failure(file))
        if not candidates:
            problems.append(f"{path}: no results; give a result's file or a folder of results")
    for canonical in sorted(files):
        try:
            results[files[canonical]] = read_result(files[canonical])
        except ResultError as error:
            problems.append(str(error))
    if problems:
        raise ResultError("\n".join(problems))
    return results


def write_result(
    result: Result, sidecar: Mapping[str, Shaped[np.ndarray, "..."]], root: str | Path
) -> Path:
    """Write the row and its sidecar into the tree at `root`; return the row's path."""
    row, arrays = result.to_json().encode(), to_npz(sidecar, str(result.path))
    path = Path(root) / result.path
    _check_same_row(path, result)
    # The sidecar first, so that a row is never without it.
    replace_file(path.with_suffix(".npz"), arrays)
    replace_file(path, row)
    return path


def _check_same_row(path: Path, result: Result) -> None:
    """Raise if the file holds another row; the same row may be scored again."""
    if path.exists():
        old = read_result(path)
        for name in ("fingerprint", "task_version", "config", "windows"):
            if getattr(old, name) != getattr(result, name):
                meaning = " (of other data)" if name == "fingerprint" else ""
                raise ResultError(
                    f"{path}: holds a row with another {name}{meaning}; remove it, choose "
                    "another tree, or give the model another name or variant"
                )


def _as_line(row: Result) -> dict[str, Any]:
    """The row without its longer parts, as the line of a table."""
    prefixes = ("truth", "cost", "daily_slope")
    blocks = ("scores", "by_type", "by_window", "windows", "config", "schema", "training", "failed")
    facts = {name: v for name, v in vars(row).items() if name not in (*blocks, *prefixes)}
    prefixed = {
        f"{block}.{name}": value
        for block in prefixes
        for name, value in (getattr(row, block) or {}).items()
    }
    return {**facts, "windows": len(row.windows), **row.scores, **prefixed}


def _canonical(file: Path) -> Path:
    """The file by one path only; folders that are links are resolved, the file itself is not."""
    return file.parent.resolve() / file.name


def _as_text(value: Any) -> str:
    """JSON with sorted keys, and a line for each key of the outermost object."""
    if not isinstance(value, dict):
        return json.dumps(value)
    lines = (f"  {json.dumps(k)}: {json.dumps(value[k], sort_keys=True)}" for k in sorted(value))
    return "{\n" + ",\n".join(lines) + "\n }"


def _parse(text: str, where: str) -> dict[str, Any]:
    """The object in `text`."""
    try:
        values = parse_json(text)
    except ValueError as error:
        raise ResultError(
            f"{where}: not the JSON of a result ({error}); restore it, or remove it and score the "
            "forecast again"
        ) from error
    if not isinstance(values, dict):
        raise ResultError(f"{where}: holds {short(values)}, not a result; give a result's file")
    return values
