"""The result row: every score of one forecaster, with one seed, on one data set, as a JSON file.

A row repeats its task, its data's fingerprint, its versions and its cost, so it needs no context.
It is checked when it is made and when it is read: a row that contradicts itself does not exist.
Arrays that would swell it (scores by bus and step, scenarios to draw) lie beside it in an `.npz`.
"""

import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from reprlib import repr as short
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.errors import ResultError
from powerphase.files import parse_json, replace_file
from powerphase.records.failure import is_failure
from powerphase.records.result_rules import Number, check
from powerphase.records.row_key import RowKey

SCHEMA = 1
"""Raised whenever a reader of older rows would misread a newer one."""

SHOWN_WINDOWS = 3

RISK = "risk/by_bus_step"
"""The array of violation probabilities by shown window, bus and step."""

NOT_IN_OLDER = (RISK, "risk/happened")
"""Arrays that sidecars did not have from the first; all others lie beside every row."""

RISK_LEVELS = 240
"""They are kept in steps of 1/240: exact for shares of 8, 10, 12, 16, 20 scenarios."""


@dataclass(frozen=True)
class Result:
    """What one forecaster scored; scores are means over windows of normalised values."""

    task: str
    task_version: int
    grid: str
    edition: str
    fingerprint: str
    """The hash of the data set's recipe."""
    model: str
    variant: str | None
    """What is not the model's default: an ablation, a quirk, a reduced budget."""
    config: dict[str, Any]
    parameters: int | None
    seed: int
    windows: list[str]
    """UTC start of each window, such as `2016-07-01T00:00`."""
    scenarios: int
    """Scenarios per window."""
    truth: dict[str, Number]
    """What happened: mean excursion [p.u.] and share of voltages outside the band."""
    scores: dict[str, Number | None]
    by_type: dict[str, dict[str, Number | None]]
    by_window: dict[str, list[Number] | None]
    cost: dict[str, Number | str | None]
    version: str
    """The powerphase that scored it."""
    commit: str | None
    date: str

    def __post_init__(self) -> None:
        check(vars(self), "result row")

    @property
    def key(self) -> RowKey:
        """What tells this row from every other."""
        return RowKey(self.task, self.edition, self.grid, self.model, self.variant, self.seed)

    @property
    def name(self) -> str:
        """The model, and its variant if it has one: `last-week`, `powerforge+wta`."""
        return self.key.name

    @property
    def path(self) -> PurePosixPath:
        """Where the row lies in a tree of results."""
        return self.key.path

    def to_json(self) -> str:
        """The row as text; equal rows give equal text, and reading it gives equal numbers."""
        check(vars(self), str(self.path))  # its objects may have changed since it was made
        row = {"schema": SCHEMA, **vars(self)}
        lines = (f' "{key}": {_as_text(value)}' for key, value in row.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Result":
        """The row in `text`, which was read at `where`."""
        values = _parse(text, where)
        if "schema" not in values:
            raise ResultError(
                f"{where}: no result row; name a row's file or a folder of rows alone"
            )
        found = values.pop("schema")
        if type(found) is not int or found != SCHEMA:
            raise ResultError(
                f"{where}: written in schema {short(found)}, this version reads schema {SCHEMA}; "
                "install the powerphase that wrote it"
            )
        check(values, where, "remove it and score the forecast again")
        return cls(**values)


def read_result(path: str | Path) -> Result:
    """The row in the file, which must lie where `Result.path` says."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ResultError(f"{file}: cannot be read ({error}); name a result's file") from error
    result = Result.from_json(text, str(file))
    expected = result.path.parts
    if _place(file).parts[-len(expected) :] != expected:
        raise ResultError(f"{file}: holds the row that belongs at {result.path}; move it there")
    return result


def read_results(paths: Iterable[str | Path]) -> list[Result]:
    """The rows in the files, and in all JSON files of the folders; each once, sorted by path.

    Records of failures, which lie among them, are no rows.
    """
    return list(find_results(paths).values())


def find_results(paths: Iterable[str | Path]) -> dict[Path, Result]:
    """The same rows by the file that each was read from, beside which its sidecar lies."""
    files: dict[Path, Path] = {}
    problems: list[str] = []
    results: dict[Path, Result] = {}
    for path in map(Path, paths):
        found = list(path.glob("**/*.json")) if path.is_dir() else [path] * path.is_file()
        failed = [file for file in found if is_failure(file)]
        found = [file for file in found if file not in failed]
        files.update((_place(file), file) for file in found)
        if not found and not failed:
            problems.append(f"{path}: no results here; name a result's file or a folder of them")
    for place in sorted(files):
        try:
            results[files[place]] = read_result(files[place])
        except ResultError as error:
            problems.append(str(error))
    if problems:
        raise ResultError("\n".join(problems))
    return results


def shown_windows(n_windows: int) -> Int[np.ndarray, " shown"]:
    """The windows whose forecasts are kept for pages and figures: evenly spread."""
    spread = np.linspace(0, n_windows - 1, min(SHOWN_WINDOWS, n_windows))
    return np.unique(spread.round().astype(np.int64))


def write_result(
    result: Result, sidecar: Mapping[str, Shaped[np.ndarray, "..."]], root: str | Path
) -> Path:
    """Write the row and the arrays beside it into the tree at `root`; returns the row's path."""
    row, arrays = result.to_json().encode(), _as_npz(sidecar, str(result.path))
    path = Path(root) / result.path
    _check_same(path, result)
    # The sidecar comes first: where there is a row, there is all of it.
    replace_file(path.with_suffix(".npz"), arrays)
    replace_file(path, row)
    return path


def _check_same(path: Path, result: Result) -> None:
    """A row may be scored again; another row of the same name is not written over."""
    if path.exists():
        old = read_result(path)
        for name in ("fingerprint", "task_version", "config", "windows"):
            if getattr(old, name) != getattr(result, name):
                meaning = ", that of other data" if name == "fingerprint" else ""
                raise ResultError(
                    f"{path}: holds a row with another {name}{meaning}; remove it, choose "
                    "another tree, or give the model a name or a variant of its own"
                )


def read_sidecar(path: str | Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays beside the row whose JSON file is at `path`."""
    file = Path(path).with_suffix(".npz")
    try:
        with zipfile.ZipFile(file) as archive:
            return {name.removesuffix(".npy"): _array(archive, name) for name in archive.namelist()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ResultError(
            f"{file}: no readable arrays ({error}); restore it or score the forecast again"
        ) from error


def _array(archive: zipfile.ZipFile, name: str) -> Shaped[np.ndarray, "..."]:
    with archive.open(name) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _as_npz(arrays: Mapping[str, Shaped[np.ndarray, "..."]], where: str) -> bytes:
    """What `np.savez_compressed` writes, but the same for equal arrays and under any name."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            if arrays[name].dtype.hasobject:
                raise ResultError(f"{where}: array {name!r} holds Python objects; give it numbers")
            # Opened by name, a member is dated 1980; of two equal arrays one may lie transposed.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(arrays[name], order="C"))
    return buffer.getvalue()


def _place(file: Path) -> Path:
    """Where the file lies, by one name only; a file that is a link keeps its own."""
    return file.parent.resolve() / file.name


def _as_text(value: Any) -> str:
    """JSON in alphabetical order, with a line for each key of the outermost object."""
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
        raise ResultError(f"{where}: holds {short(values)}, not a result; name a result's file")
    return values
