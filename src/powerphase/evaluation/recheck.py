"""Rechecking rows: their forecasts are scored again, and the numbers compared.

A row and its sidecar are claims. With the data set, its windows and what happened in them can be
checked; with the forecast file too, every number can be computed again. A row for which either is
missing is reported as unchecked, never as correct. One that contradicts its own task, or whose
sidecar or forecast is damaged, is refused.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from math import isclose
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from powerphase.axes import KINDS, V
from powerphase.dataset.manifest import MANIFEST
from powerphase.dataset.store import read_manifest
from powerphase.errors import PowerphaseError, ResultError
from powerphase.evaluation.forecasting import task_facts
from powerphase.evaluation.scoring import score
from powerphase.metrics.safety import bus_band, signed_excursion, violates
from powerphase.records.forecast_format import (
    FORECAST_MANIFEST,
    ForecastHeader,
    read_forecast_manifest,
)
from powerphase.records.result import Result
from powerphase.records.result_rules import ROUNDING, drop_missing
from powerphase.records.row_key import RowKey
from powerphase.records.sidecar import (
    EXCURSION,
    EXCURSION_HAPPENED,
    LEVELS,
    LINE,
    LINE_COUNTS,
    LINE_RISK,
    RISK,
    ROUNDING_NAME,
    ROUNDINGS,
    SCORES_BY,
    Arrays,
    Rounding,
    expand,
    first_lines,
    may_lack,
    read_sidecar,
    round_arrays,
    rounding_of,
)
from powerphase.task.protocol import Protocol
from powerphase.task.windows import Task

Outcome = Literal["matches", "differs", "refused", "unchecked"]

DIGITS = 5
"""Two numbers match if they differ by at most one unit in the last of so many digits.

Sums in another order or on another device differ from about the seventh digit on.
"""

CONTENT = ("task_version", "fingerprint", "config", "windows")
"""What a row and its forecast must have in common."""

CONDITIONS = ("grid", "edition", "task_version", "windows")
"""What a row must have in common with its task on its data set."""

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
    """Why it was refused or not checked."""
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
    def make_task(path: Path, name: str) -> Task:
        return Task.of_protocol(path, Protocol.of_name(name))

    for file, row in rows.items():
        try:
            sidecar = read_sidecar(file)
            if not sidecar:
                raise ResultError(f"{file.with_suffix('.npz')}: is empty; restore it")
            if row.fingerprint not in stores:
                yield Check(row, "unchecked", f"no data set {row.fingerprint[:12]}")
                continue
            task = make_task(stores[row.fingerprint], row.task)
            _check_conditions(row, task)
            forecast_key = replace(row.key, task=Protocol.of_name(row.task).forecast_name)
            yield _check_numbers(file, row, sidecar, task, files.get(forecast_key, []), device)
        except PowerphaseError as error:
            yield Check(row, "refused", str(error))


def _check_conditions(row: Result, task: Task) -> None:
    """Raise if the row was scored under other conditions than those of its task."""
    for name, expected in task_facts(task).items():
        if name in CONDITIONS and getattr(row, name) != expected:
            raise ResultError(
                f"its {name} {short(getattr(row, name))} is not that of its task on this data set, "
                f"{short(expected)}; score the forecast again"
            )


def _check_numbers(
    file: Path,
    row: Result,
    sidecar: Arrays,
    task: Task,
    candidates: Sequence[tuple[Path, ForecastHeader]],
    device: str,
) -> Check:
    """The outcome of a row that has the conditions of its task."""
    happened = _truth(task)
    wrong = [
        Difference(f"truth.{name}", row.truth[name], happened[name])
        for name in happened
        if not _match(row.truth[name], happened[name], 0.0)
    ]
    if wrong:
        return Check(row, "differs", differences=tuple(wrong))
    problem = _obstacle(row, candidates)
    if problem:
        return Check(row, "unchecked", problem)
    again = score(candidates[0][0], task, device=device)
    differences = [
        *row_differences(row, again.row),
        *array_differences(sidecar, again.sidecar),
    ]
    if differences:
        return Check(row, "differs", differences=tuple(differences))
    _check_complete(file, row.schema, sidecar, again.sidecar)
    return Check(row, "matches")


def _truth(task: Task) -> dict[str, float]:
    """What happened in the windows of a task, as rows state it."""
    means = []
    for window in range(len(task.test)):
        voltage = task.test.target(window)[..., V::KINDS]
        band = bus_band(task.layout.limits, voltage)
        excursion, outside = signed_excursion(voltage, band).abs(), violates(voltage, band)
        observed = task.test.observed(window)
        if observed is not None:  # nothing is said of what was filled
            seen = observed[..., V::KINDS]
            excursion, outside = excursion[seen], outside[seen]
        means.append((excursion.double().mean(), outside.double().mean()))
    necv, violations = (float(sum(values)) / len(means) for values in zip(*means, strict=True))
    return {"necv": necv, "violations": violations}


def is_confirmed(checks: Sequence[Check]) -> bool:
    """Whether at least one row matches, and every other one is unchecked."""
    outcomes = {check.outcome for check in checks}
    return "matches" in outcomes and outcomes <= {"matches", "unchecked"}


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
    """The first number in which each array differs by more than its rounding.

    Only arrays that both sidecars have are compared. The two may be rounded differently, but by no
    more than one entry of `ROUNDINGS`, as the size of a file may lie just at the limit. For the
    same reason one may have fewer lines.
    """
    rounding = _coarser(old, new)
    if rounding is None:
        yield Difference(ROUNDING_NAME, *(str(side.get(ROUNDING_NAME)) for side in (old, new)))
        return
    old, new = _same_lines(old, new)
    names = [name for name in new if name in old and name not in NEVER_EQUAL]
    if rounding_of(old) == rounding_of(new):
        misshapen = {name for name in names if _form(old[name]) != _form(new[name])}
        yield from (Difference(n, _form(old[n]), _form(new[n])) for n in names if n in misshapen)
        old, new = ({n: side[n] for n in names if n not in misshapen} for side in (old, new))
    old, new = (expand(round_arrays(expand(side), rounding)) for side in (old, new))
    for name in (name for name in new if name in old):
        if old[name].shape != new[name].shape:
            yield Difference(name, _form(old[name]), _form(new[name]))
            continue
        before, after = old[name].astype(float), new[name].astype(float)
        differs = ~np.isclose(before, after, **_tolerances(name, new, rounding), equal_nan=True)
        if differs.any():
            index = np.argwhere(differs)[0].tolist()
            at = tuple(index)
            yield Difference(f"{name}{index or ''}", float(before[at]), float(after[at]))


def _same_lines(old: Arrays, new: Arrays) -> tuple[Arrays, Arrays]:
    """Both with the lines that both store, where the limit of a file explains the difference."""
    if LINE not in old or LINE not in new:
        return old, new
    fewer, more = sorted(len(side[LINE]) for side in (old, new))
    is_next = fewer in LINE_COUNTS[1:] and more <= LINE_COUNTS[LINE_COUNTS.index(fewer) - 1]
    if is_next or rounding_of(old) != rounding_of(new):
        return first_lines(old, fewer), first_lines(new, fewer)
    return old, new


def _form(array: Shaped[np.ndarray, "..."]) -> str:
    return f"{array.dtype} {array.shape}"


def numbers(row: Result) -> dict[str, float | None]:
    """Everything in a row that scoring computes and its schema has, by name."""
    file = drop_missing(vars(row))
    values: dict[str, float | None] = dict(file["scores"])
    values |= {f"truth.{name}": value for name, value in file["truth"].items()}
    slopes = file.get("daily_slope") or {}
    values |= {f"daily_slope.{variable}": value for variable, value in slopes.items()}
    for variable, scores in file["by_type"].items():
        values |= {f"by_type.{variable}.{name}": value for name, value in scores.items()}
    for name, series in file["by_window"].items():
        values |= {f"by_window.{name}[{k}]": value for k, value in enumerate(series or ())}
    return values


def _check_complete(file: Path, schema: int, sidecar: Arrays, again: Arrays) -> None:
    """Raise if the sidecar lacks an array that its schema has: an empty one would match."""
    missing = [name for name in again if name not in {*sidecar, *may_lack(schema)}]
    if missing:
        more = f" and {len(missing) - 1} more arrays" if len(missing) > 1 else ""
        raise ResultError(
            f"{file.with_suffix('.npz')}: lacks {missing[0]}{more}; restore it or score the "
            "forecast again"
        )


def _coarser(old: Arrays, new: Arrays) -> Rounding | None:
    """The coarser rounding of two sidecars; None where they are not comparable."""
    sides = ({ROUNDING_NAME: np.array(astuple(ROUNDINGS[0])), **side} for side in (old, new))
    both = [rounding_of(side) for side in sides]
    ranks = [ROUNDINGS.index(rounding) for rounding in both if rounding]
    if len(ranks) < 2 or abs(ranks[0] - ranks[1]) > 1:
        return None
    return ROUNDINGS[max(ranks)]


def _tolerances(name: str, arrays: Arrays, rounding: Rounding) -> dict[str, Any]:
    """How far the numbers of an array may differ, as arguments of NumPy's `isclose`."""
    array = arrays[name]
    if name in (RISK, LINE_RISK):  # halfway between two levels goes to either
        return {"rtol": 0, "atol": rounding.risk_step}
    if name in (EXCURSION, EXCURSION_HAPPENED):
        return {"rtol": 0, "atol": 1}
    if array.dtype.kind != "f":
        return {"rtol": 0, "atol": 0}
    if name in ("shown/target", "shown/scenario"):
        steps = (1,) if name == "shown/target" else (1, 2)
        level = np.ptp(array, axis=steps, keepdims=True) / LEVELS
        unit = 1 if name == "shown/target" else rounding.level_step
        return {"rtol": 2 * 10.0**-DIGITS, "atol": 1.01 * unit * level + ROUNDING}
    relative = 10.0**-DIGITS
    if name.startswith(SCORES_BY) and not name.endswith("/safety_mbrier"):
        relative = 2.0**-rounding.bits
    # What cancels is summed before it is rounded.
    return {"rtol": relative, "atol": np.fmax(ROUNDING, 10.0**-DIGITS * _cancelling(name, arrays))}


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


def _obstacle(row: Result, candidates: Sequence[tuple[Path, ForecastHeader]]) -> str:
    """Why a row cannot be checked; empty if it can."""
    if not candidates:
        return "no forecast file"
    if len(candidates) > 1:
        return f"several forecast files: {', '.join(str(path) for path, _ in candidates)}"
    header = candidates[0][1]
    differing = [name for name in CONTENT if getattr(header, name) != getattr(row, name)]
    if differing:
        return f"its forecast file has another {', '.join(differing)}"
    return ""


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
