"""Rows scored again: from forecast files and data sets that are there, to what still holds.

A row is a claim, and so are the arrays beside it. Whoever has its forecast file and its data set
can compute every number again; what cannot be computed again is said to be unchecked, and never
taken for right.
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
from powerphase.task.windows import Task

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]

Outcome = Literal["matches", "differs", "unchecked"]

DIGITS = 5
"""Two numbers match if they differ by no more than one unit in the last of so many digits.

Sums in another order, on another device, differ in single precision from about the seventh on.
"""

CONTENT = ("task_version", "fingerprint", "config", "windows")
"""What both must say alike, or they are not of one another."""

CANCELLING = {"excursion_bias": "excursion_error", "twcrps": "necv"}
"""Scores that are what is left of excursions, and the score that is as large as these are."""

NEVER_ALIKE = ("physical/seconds",)
"""Arrays that tell what something cost, which a forecast made again does not repeat."""


@dataclass(frozen=True)
class Difference:
    """A number of a row that is not found again, or the first such number of an array beside it."""

    name: str
    """Such as `crps`, `by_type.V.crps`, `by_window.crps[3]`, `truth.necv` or `by_bus/brier[7]`."""
    old: float | str | None
    new: float | str | None
    """Of an array of another type or shape, these."""


@dataclass(frozen=True)
class Check:
    """What became of one row."""

    row: Result
    outcome: Outcome
    why: str = ""
    """Why it could not be checked."""
    differences: tuple[Difference, ...] = ()


def recheck(
    rows: Mapping[Path, Result], forecasts: str | Path, data: str | Path, device: str = "auto"
) -> Iterator[Check]:
    """Score the forecast of every row again, where it and its data set are there.

    Args:
        rows: what to check, by the file beside which its sidecar lies.
        forecasts: a folder under which forecasts lie, anywhere.
        data: a folder under which data sets lie, anywhere, or one itself.
        device: where to score: cpu, cuda, or auto for a GPU where there is one.
    """
    files = _forecasts(Path(forecasts))
    stores = _stores(Path(data))

    @cache
    def task(path: Path, context: int, horizon: int, windows: int, every: bool) -> Task:
        return Task(path, context=context, horizon=horizon, windows="all" if every else windows)

    for file, row in rows.items():
        found = files.get(row.key, [])
        problem = _obstacle(row, found, stores)
        if problem:
            yield Check(row, "unchecked", problem)
            continue
        (path, header), store = found[0], stores[row.fingerprint]
        every = row.task.endswith("-all")
        try:
            given = task(store, header.context, header.horizon, len(header.windows), every)
            again = score(path, given, device=device)
        except PowerphaseError as error:
            yield Check(row, "unchecked", str(error))
            continue
        yield _compared(file, row, again)


def confirmed(checks: Sequence[Check]) -> bool:
    """Whether some rows hold and none is wrong; where nothing was checked, nothing is confirmed."""
    return not nothing_checked(checks) and all(check.outcome != "differs" for check in checks)


def nothing_checked(checks: Sequence[Check]) -> bool:
    """Whether no row could be scored again."""
    return all(check.outcome == "unchecked" for check in checks)


def differences(row: Result, again: Result) -> Iterator[Difference]:
    """The numbers in which two rows of one forecast differ, the scores first."""
    old, new = numbers(row), numbers(again)
    # A bias is what is left of excursions that cancel, and as exact as these are.
    coarse = abs(row.scores["excursion_error"] or 0.0)
    for name in old:
        least = coarse if "excursion_bias" in name else 0.0
        if not _match(old[name], new.get(name), least):
            yield Difference(name, old[name], new.get(name))


def array_differences(old: Arrays, new: Arrays) -> Iterator[Difference]:
    """The first number in which each array differs, of those that both sidecars have."""
    for name in (name for name in new if name in old and name not in NEVER_ALIKE):
        forms = [f"{one.dtype} {one.shape}" for one in (old[name], new[name])]
        if forms[0] != forms[1]:
            yield Difference(name, *forms)
            continue
        # In float16 not even the tolerances would be exact.
        was, is_now = old[name].astype(float), new[name].astype(float)
        differs = ~np.isclose(was, is_now, **_tolerances(name, new), equal_nan=True)
        if differs.any():
            place = np.argwhere(differs)[0].tolist()
            at = tuple(place)
            yield Difference(f"{name}{place or ''}", float(was[at]), float(is_now[at]))


def numbers(row: Result) -> dict[str, float | None]:
    """Everything in a row that scoring computes, by name."""
    found: dict[str, float | None] = dict(row.scores)
    found |= {f"truth.{name}": value for name, value in row.truth.items()}
    found |= {f"by_type.{k}.{n}": v for k, own in row.by_type.items() for n, v in own.items()}
    for name, values in row.by_window.items():
        found |= {f"by_window.{name}[{k}]": value for k, value in enumerate(values or ())}
    return found


def _compared(file: Path, row: Result, again: Evaluation) -> Check:
    """What became of a row and of the arrays beside it, now that both were made again."""
    found = list(differences(row, again.row))
    try:
        there = read_sidecar(file)
        found += array_differences(there, again.sidecar)
        _check_whole(file, there, again.sidecar)
    except ResultError as error:
        # A row that is wrong is so without its arrays too; one that is right is half of a claim.
        if not found:
            return Check(row, "unchecked", f"its scores match, but not all can be checked: {error}")
    return Check(row, "differs" if found else "matches", differences=tuple(found))


def _check_whole(file: Path, there: Arrays, again: Arrays) -> None:
    """Refuse a sidecar without an array that all have had, or it would match by being empty."""
    lacking = [name for name in again if name not in there and name not in NOT_IN_OLDER]
    if lacking:
        more = f" and {len(lacking) - 1} more arrays" if len(lacking) > 1 else ""
        raise ResultError(
            f"{file.with_suffix('.npz')}: lacks {lacking[0]}{more}; restore it or score the "
            "forecast again"
        )


def _tolerances(name: str, arrays: Arrays) -> dict[str, Any]:
    """How far numbers of an array may lie from those found again, as NumPy's `isclose` has it."""
    array = arrays[name]
    if name == RISK:
        return {"rtol": 0, "atol": 1}  # what lies halfway between two levels goes to either
    if array.dtype.kind != "f":
        return {"rtol": 0, "atol": 0}
    precision = np.finfo(array.dtype)  # float16 has fewer digits than are asked for
    relative = max(10.0**-DIGITS, float(precision.eps))
    least = max(ROUNDING, float(precision.eps) * float(precision.tiny))
    return {"rtol": relative, "atol": np.fmax(least, relative * _cancelling(name, arrays))}


def _cancelling(name: str, arrays: Arrays) -> Shaped[np.ndarray, "..."] | float:
    """The size of what cancels in the numbers of an array, which are only as exact as that is."""
    place, _, score = name.partition("/")
    if score in CANCELLING:
        return np.abs(arrays[f"{place}/{CANCELLING[score]}"])
    # A certain violation leaves the rounding of weights that sum to 1.
    return 1.0 if score.endswith("brier") else 0.0


def _match(old: float | None, new: float | None, least: float) -> bool:
    if old is None or new is None:
        return old is new
    tolerance = 10.0**-DIGITS
    return isclose(old, new, rel_tol=tolerance, abs_tol=max(ROUNDING, tolerance * least))


def _obstacle(
    row: Result, found: Sequence[tuple[Path, ForecastHeader]], stores: Mapping[str, Path]
) -> str:
    """Why a row cannot be checked with what is there; empty if it can."""
    if not found:
        return "no forecast file"
    if len(found) > 1:
        return f"several forecast files: {', '.join(str(path) for path, _ in found)}"
    header = found[0][1]
    other = [name for name in CONTENT if getattr(header, name) != getattr(row, name)]
    if other:
        return f"its forecast file has another {', '.join(other)}"
    return "" if row.fingerprint in stores else f"no data set {row.fingerprint[:12]}"


def _forecasts(root: Path) -> dict[RowKey, list[tuple[Path, ForecastHeader]]]:
    """The forecasts under the root by name; also unfinished ones, which scoring refuses."""
    found: dict[RowKey, list[tuple[Path, ForecastHeader]]] = {}
    for path in _folders(root, FORECAST_MANIFEST):
        manifest = read_forecast_manifest(path)
        if manifest is not None:
            found.setdefault(manifest.header.key, []).append((path, manifest.header))
    return found


def _stores(root: Path) -> dict[str, Path]:
    """The data sets under the root by fingerprint."""
    found = {path: read_manifest(path) for path in _folders(root, MANIFEST)}
    return {manifest.fingerprint: path for path, manifest in found.items() if manifest}


def _folders(root: Path, mark: str) -> Iterator[Path]:
    """The folders under the root that hold the file `mark`, in order; what they hold is theirs."""
    for place, inner, files in os.walk(root):
        inner.sort()
        if mark in files:
            inner.clear()
            yield Path(place)
