"""The rules for a valid result row: its keys, its values, and which of them must agree.

All problems of a row are collected before the row is rejected, since one mistake often causes many.
"""

from collections.abc import Collection, Iterator
from datetime import date, datetime
from itertools import pairwise
from math import fsum, isclose
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.errors import ResultError
from powerphase.records.scores import SCORES, Score
from powerphase.schema import (
    Rule,
    integer,
    list_of,
    nullable,
    number,
    plain_object,
    problems,
    text,
)

Number = float | int

RELATIVE_ROUNDING, ROUNDING = 1e-6, 1e-12
"""The tolerances between two computations of the same mean."""

WINDOW_FORMAT = "%Y-%m-%dT%H:%M"
"""The format of a window's start, UTC."""

AT_MOST = (("brier", "safety_mbrier"), ("excursion_bias", "excursion_error"))
"""Pairs of scores of which the first is at most the second in size, as (p - Y)² ≤ |p - Y|."""


def check(row: dict[str, Any], where: str, advice: str = "score the forecast again") -> None:
    """Raise if a row has missing, unknown or invalid keys, or contradicts itself."""
    faults = list(problems(row, _ROW, "the row"))
    scored = {key: row[key] for key in _SCORED if key in row}
    if not any(problems(scored, _SCORED)):
        faults += _contradictions(**scored)
    if faults:
        raise ResultError(f"{where}: {'; '.join(faults)}; {advice}")


def _contradictions(
    windows: list[str],
    scores: dict[str, Any],
    by_type: dict[str, dict[str, Any]],
    by_window: dict[str, Any],
) -> Iterator[str]:
    """Scores of a row that are valid by themselves but disagree with each other."""
    for name, score in SCORES.items():
        types = [by_type[kind][name] for kind in VARIABLES if name in by_type[kind]]
        overall, values = scores[name], by_window[name]
        if len({value is None for value in (overall, values, *types)}) > 1:
            yield f"{name} is null in one of scores, by_type and by_window but not in all"
        elif values is not None and len(values) != len(windows):
            yield f"by_window.{name} has {len(values)} values for {len(windows)} windows"
        elif values is not None:
            yield from _wrong_mean(name, overall, values, "windows")
            if score.pointwise:
                yield from _wrong_mean(name, overall, types, "types")
    for smaller, larger in AT_MOST:
        if abs(scores[smaller]) > scores[larger] + ROUNDING:
            yield (
                f"scores.{smaller} of {scores[smaller]!r} is larger in size than "
                f"scores.{larger} of {scores[larger]!r}"
            )


def _wrong_mean(name: str, overall: Number, parts: Collection[Number], of: str) -> Iterator[str]:
    mean = fsum(part / len(parts) for part in parts)  # the sum itself might overflow
    if not isclose(overall, mean, rel_tol=RELATIVE_ROUNDING, abs_tol=ROUNDING):
        yield f"scores.{name} is {overall!r}, but the mean over its {of} is {mean!r}"


def are_window_starts(value: Any) -> bool:
    """Whether the value is a list of ascending UTC times such as `2016-07-01T00:00`."""
    try:
        starts = [datetime.strptime(start, WINDOW_FORMAT) for start in value]
    except (TypeError, ValueError):
        return False
    as_written = [start.strftime(WINDOW_FORMAT) for start in starts]
    return bool(starts) and value == as_written and all(a < b for a, b in pairwise(starts))


def _is_date(value: Any) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        return False


def _score(score: Score, per_window: bool = False) -> Rule:
    limits = number(score.low, score.high)
    rule = list_of(limits) if per_window else limits
    return nullable(rule) if score.needs_samples else rule


NAME = text("a name in lower case letters, digits and hyphens", r"[a-z0-9]+(-[a-z0-9]+)*")
ANY_TEXT = text("some text", r".+")
_AMOUNT = nullable(number(0.0))

_SCORED: dict[str, Any] = {
    "windows": Rule("a list of ascending UTC times such as '2016-07-01T00:00'", are_window_starts),
    "scores": {name: _score(score) for name, score in SCORES.items()},
    "by_type": {
        kind: {n: _score(s) for n, s in SCORES.items() if kind == "V" or not s.voltage_only}
        for kind in VARIABLES
    },
    "by_window": {name: _score(score, per_window=True) for name, score in SCORES.items()},
}
_ROW: dict[str, Any] = {
    "task": NAME,
    "task_version": integer(1),
    "grid": text("a name that is valid for a folder", r"\w[\w .+-]*"),
    "edition": NAME,
    "fingerprint": text("64 hexadecimal digits", r"[0-9a-f]{64}"),
    "model": NAME,
    "variant": nullable(NAME),
    "config": plain_object,
    "parameters": nullable(integer(0)),
    "seed": integer(0),
    "scenarios": integer(1),
    "truth": {"necv": number(0.0), "violations": number(0.0, 1.0)},
    **_SCORED,
    "cost": {
        "train_s": _AMOUNT,
        "predict_s": _AMOUNT,
        "score_s": _AMOUNT,
        "steps": nullable(integer(0)),
        "peak_memory_gib": _AMOUNT,
        "hardware": ANY_TEXT,
    },
    "version": ANY_TEXT,
    "commit": nullable(ANY_TEXT),
    "date": Rule("a day such as '2016-07-01'", _is_date),
}
