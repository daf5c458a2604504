"""Rechecking rows: their forecasts are scored again, and the numbers compared.

A row and its sidecar are claims. With the forecast file and the data set, every number can be
computed again. A row for which either is missing is reported as unchecked, never as correct.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from powerphase.dataset.layout import MANIFEST
from powerphase.dataset.store import read_manifest
from powerphase.errors import PowerphaseError, ResultError
from powerphase.evaluation.scoring import Evaluation, score
from powerphase.records.forecast_format import (
    FORECAST_MANIFEST,
    ForecastHeader,
    read_forecast_manifest,
)
from powerphase.records.result import NOT_IN_OLDER, RISK, Result, read_sidecar
from powerphase.records.result_rules import ROUNDING
from powerphase.records.row_key import RowKey
from powerphase.task.protocol import WindowCount
from powerphase.task.windows import Task

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]

Outcome = Literal["matches", "differs", "unchecked"]

DIGITS = 5
"""Two numbers match if they differ by at most one unit in the last of so many digits.

Sums in another order or on another device differ from about the seventh digit on.
"""

CONTENT = ("task_version", "fingerprint", "config", "windows")
"""What a row and its forecast must have in common."""

CANCELLING = {"excursion_bias": "excursion_error", "twcrps": "necv"}
"""Scores that are differences of excursions, and the score that has the size of these."""

NEVER_EQUAL = ("physical/seconds",)
"""Arrays of costs, which differ whenever a forecast is made again."""


@dataclass(frozen=True)
class Difference:
    """A number of a row that differs when computed again, or the first such number of an array."""

    name: str
    """Such as `crps`, `by_type.V.crps`, `by_window.crps[3]`, `truth.necv` or `by_bus/brier[7]`."""
    old: float | str | None
    new: float | str | None
    """For an array of another type or shape, a description of these."""


@dataclass(frozen=True)
class Check:
    """The outcome for one row."""

    row: Result
    outcome: Outcome
    reason: str = ""
    """Why it was not checked."""
    differences: tuple[Difference, ...] = ()


def recheck_rows(
    rows: Mapping[Path, Result], forecasts: str | Path, data: str | Path, device: str = "auto"
) -> Iterator[Check]:
    """Score the forecast of every row again, if it and its data set are available.

    Args:
        rows: what to check, by file; sidecars are next to them.
        forecasts: a folder with forecasts at any depth.
        data: a data set, or a folder with data sets at any depth.
        device: cpu, cuda, or auto for a GPU if there is one.
    """
    files = _find_forecasts(Path(forecasts))
    stores = _find_stores(Path(data))

    @cache
    def make_task(path: Path, context: int, horizon: int, windows: WindowCount) -> Task:
        return Task(path, context=context, horizon=horizon, windows=windows)

    for file, row in rows.items():
        candidates = files.get(row.key, [])
        problem = _obstacle(row, candidates, stores)
        if problem:
            yield Check(row, "unchecked", problem)
            continue
        (path, header), store = candidates[0], stores[row.fingerprint]
        windows: WindowCount = "all" if row.task.endswith("-all") else len(header.windows)
        try:
            task = make_task(store, header.context, header.horizon, windows)
            again = score(path, task, device=device)
        except PowerphaseError as error:
            yield Check(row, "unchecked", str(error))
            continue
        yield _compare(file, row, again)


def is_confirmed(checks: Sequence[Check]) -> bool:
    """Whether at least one row was checked and none differs."""
    return not nothing_checked(checks) and all(check.outcome != "differs" for check in checks)


def nothing_checked(checks: Sequence[Check]) -> bool:
    """Whether no row could be scored again."""
    return all(check.outcome == "unchecked" for check in checks)


def row_differences(row: Result, again: Result) -> Iterator[Difference]:
    """The numbers in which two rows of one forecast differ, scores first."""
    old, new = numbers(row), numbers(again)
    # A bias is a difference of excursions, so its error is relative to them.
    coarse = abs(row.scores["excursion_error"] or 0.0)
    for name in old:
        least = coarse if "excursion_bias" in name else 0.0
        if not _match(old[name], new.get(name), least):
            yield Difference(name, old[name], new.get(name))


def array_differences(old: Arrays, new: Arrays) -> Iterator[Difference]:
    """The first differing number of each array that both sidecars have."""
    for name in (name for name in new if name in old and name not in NEVER_EQUAL):
        types = [f"{array.dtype} {array.shape}" for array in (old[name], new[name])]
        if types[0] != types[1]:
            yield Difference(name, *types)
            continue
        # In float16, even the tolerances would be inexact.
        before, after = old[name].astype(float), new[name].astype(float)
        differs = ~np.isclose(before, after, **_tolerances(name, new), equal_nan=True)
        if differs.any():
            index = np.argwhere(differs)[0].tolist()
            at = tuple(index)
            yield Difference(f"{name}{index or ''}", float(before[at]), float(after[at]))


def numbers(row: Result) -> dict[str, float | None]:
    """Everything in a row that scoring computes, by name."""
    values: dict[str, float | None] = dict(row.scores)
    values |= {f"truth.{name}": value for name, value in row.truth.items()}
    for variable, scores in row.by_type.items():
        values |= {f"by_type.{variable}.{name}": value for name, value in scores.items()}
    for name, series in row.by_window.items():
        values |= {f"by_window.{name}[{k}]": value for k, value in enumerate(series or ())}
    return values


def _compare(file: Path, row: Result, again: Evaluation) -> Check:
    """The outcome of a row and its sidecar, given the new ones."""
    differences = list(row_differences(row, again.row))
    try:
        sidecar = read_sidecar(file)
        differences += array_differences(sidecar, again.sidecar)
        _check_complete(file, sidecar, again.sidecar)
    except ResultError as error:
        # A wrong row is wrong even without its arrays; a right one is only half confirmed.
        if not differences:
            return Check(row, "unchecked", f"its scores match, but its sidecar does not: {error}")
    outcome: Outcome = "differs" if differences else "matches"
    return Check(row, outcome, differences=tuple(differences))


def _check_complete(file: Path, sidecar: Arrays, again: Arrays) -> None:
    """Raise if the sidecar lacks an array that all versions have: an empty one would match."""
    missing = [name for name in again if name not in sidecar and name not in NOT_IN_OLDER]
    if missing:
        more = f" and {len(missing) - 1} more arrays" if len(missing) > 1 else ""
        raise ResultError(
            f"{file.with_suffix('.npz')}: lacks {missing[0]}{more}; restore it or score the "
            "forecast again"
        )


def _tolerances(name: str, arrays: Arrays) -> dict[str, Any]:
    """How far two values of an array may differ, as arguments of NumPy's `isclose`."""
    array = arrays[name]
    if name == RISK:
        return {"rtol": 0, "atol": 1}  # a value halfway between two levels may be rounded to either
    if array.dtype.kind != "f":
        return {"rtol": 0, "atol": 0}
    precision = np.finfo(array.dtype)  # float16 has fewer digits than DIGITS
    relative = max(10.0**-DIGITS, float(precision.eps))
    least = max(ROUNDING, float(precision.eps) * float(precision.tiny))
    return {"rtol": relative, "atol": np.fmax(least, relative * _cancelling(name, arrays))}


def _cancelling(name: str, arrays: Arrays) -> Shaped[np.ndarray, "..."] | float:
    """The size of the terms that cancel in the values of an array, which limits their precision."""
    prefix, _, score = name.partition("/")
    if score in CANCELLING:
        return np.abs(arrays[f"{prefix}/{CANCELLING[score]}"])
    # A certain violation leaves the rounding of weights that sum to 1.
    return 1.0 if score.endswith("brier") else 0.0


def _match(old: float | None, new: float | None, least: float) -> bool:
    if old is None or new is None:
        return old is new
    tolerance = 10.0**-DIGITS
    return isclose(old, new, rel_tol=tolerance, abs_tol=max(ROUNDING, tolerance * least))


def _obstacle(
    row: Result, candidates: Sequence[tuple[Path, ForecastHeader]], stores: Mapping[str, Path]
) -> str:
    """Why a row cannot be checked; empty if it can."""
    if not candidates:
        return "no forecast file"
    if len(candidates) > 1:
        return f"several forecast files: {', '.join(str(path) for path, _ in candidates)}"
    header = candidates[0][1]
    differing = [name for name in CONTENT if getattr(header, name) != getattr(row, name)]
    if differing:
        return f"its forecast file has another {', '.join(differing)}"
    return "" if row.fingerprint in stores else f"no data set {row.fingerprint[:12]}"


def _find_forecasts(root: Path) -> dict[RowKey, list[tuple[Path, ForecastHeader]]]:
    """The forecasts under the root by row; also unfinished ones, which scoring rejects."""
    forecasts: dict[RowKey, list[tuple[Path, ForecastHeader]]] = {}
    for path in _folders(root, FORECAST_MANIFEST):
        manifest = read_forecast_manifest(path)
        if manifest is not None:
            forecasts.setdefault(manifest.header.key, []).append((path, manifest.header))
    return forecasts


def _find_stores(root: Path) -> dict[str, Path]:
    """The data sets under the root by fingerprint."""
    manifests = {path: read_manifest(path) for path in _folders(root, MANIFEST)}
    return {manifest.fingerprint: path for path, manifest in manifests.items() if manifest}


def _folders(root: Path, name: str) -> Iterator[Path]:
    """The folders under the root that hold a file of that name, in order and without nesting."""
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        if name in files:
            subfolders.clear()
            yield Path(folder)
