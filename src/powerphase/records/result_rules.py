"""The rules for a valid result row: its keys, its values, and which of them must agree.

All problems of a row are collected before the row is rejected, since one mistake often causes many.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import date, datetime
from difflib import get_close_matches
from itertools import pairwise
from math import fsum, inf, isclose
from reprlib import repr as short
from typing import Any, NamedTuple

from powerphase.axes import VARIABLES
from powerphase.errors import ResultError
from powerphase.files import is_json_object
from powerphase.records.scores import SCORES, Score

Number = float | int

RELATIVE_ROUNDING, ROUNDING = 1e-6, 1e-12
"""The tolerances between two computations of the same mean."""

WINDOW_FORMAT = "%Y-%m-%dT%H:%M"
"""The format of a window's start, UTC."""

AT_MOST = (("brier", "safety_mbrier"), ("excursion_bias", "excursion_error"))
"""Pairs of scores of which the first is at most the second in size, as (p - Y)² ≤ |p - Y|."""


def check(row: dict[str, Any], where: str, advice: str = "score the forecast again") -> None:
    """Raise if a row has missing, unknown or invalid keys, or contradicts itself."""
    problems = list(_violations("the row", row, _ROW))
    scored = {key: row[key] for key in _SCORED if key in row}
    if not any(_violations("", scored, _SCORED)):
        problems += _contradictions(**scored)
    if problems:
        raise ResultError(f"{where}: {'; '.join(problems)}; {advice}")


def _violations(name: str, value: Any, schema: Any) -> Iterator[str]:
    """Unknown, missing and invalid keys of a value, and of all values in it."""
    if isinstance(schema, _Rule):
        if not schema.holds(value):
            yield f"{name} is {short(value)}, must be {schema.words}"
    elif not isinstance(value, dict):
        yield f"{name} is {short(value)}, must be an object"
    else:
        for key in sorted(value.keys() - schema.keys(), key=str):
            near = get_close_matches(str(key), schema, n=1)
            advice = f" (did you mean {near[0]!r}?)" if near else ""
            yield f"{name} has an unknown key {key!r}{advice}"
        for key, inner in schema.items():
            if key in value:
                full_name = f"{name}.{key}".removeprefix("the row.")
                yield from _violations(full_name, value[key], inner)
            else:
                yield f"{name} lacks {key!r}"


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


class _Rule(NamedTuple):
    """A requirement on a value, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _or_null(rule: _Rule) -> _Rule:
    return _Rule(f"{rule.words} or null", lambda value: value is None or rule.holds(value))


def _number(low: float = 0.0, high: float = inf) -> _Rule:
    def holds(value: Any) -> bool:
        # Python counts True and False as integers, and an integer may be too large for a float.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) <= sys.float_info.max and low <= value <= high

    return _Rule(f"a number in [{low:g}, {high:g}]", holds)


def _whole(low: int) -> _Rule:
    number, words = _number(float(low)), f"a whole number of {low} or more"
    return _Rule(words, lambda value: isinstance(value, int) and number.holds(value))


def _text(words: str, pattern: str) -> _Rule:
    return _Rule(words, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)))


def _per_window(rule: _Rule) -> _Rule:
    words = f"a list with {rule.words} for each window"
    return _Rule(words, lambda value: isinstance(value, list) and all(map(rule.holds, value)))


def _is_date(value: Any) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        return False


def _score(score: Score, per_window: bool = False) -> _Rule:
    number = _number(score.low, score.high)
    rule = _per_window(number) if per_window else number
    return _or_null(rule) if score.needs_samples else rule


_NAME = _text("a name in lower case letters, digits and hyphens", r"[a-z0-9]+(-[a-z0-9]+)*")
_ANY_TEXT = _text("some text", r".+")
_AMOUNT = _or_null(_number())

_SCORED: dict[str, Any] = {
    "windows": _Rule("a list of ascending UTC times such as '2016-07-01T00:00'", are_window_starts),
    "scores": {name: _score(score) for name, score in SCORES.items()},
    "by_type": {
        kind: {n: _score(s) for n, s in SCORES.items() if kind == "V" or not s.voltage_only}
        for kind in VARIABLES
    },
    "by_window": {name: _score(score, per_window=True) for name, score in SCORES.items()},
}
_ROW: dict[str, Any] = {
    "task": _NAME,
    "task_version": _whole(1),
    "grid": _text("a name that is valid for a folder", r"\w[\w .+-]*"),
    "edition": _NAME,
    "fingerprint": _text("64 hexadecimal digits", r"[0-9a-f]{64}"),
    "model": _NAME,
    "variant": _or_null(_NAME),
    "config": _Rule("an object of JSON values", is_json_object),
    "parameters": _or_null(_whole(0)),
    "seed": _whole(0),
    "scenarios": _whole(1),
    "truth": {"necv": _number(), "violations": _number(high=1.0)},
    **_SCORED,
    "cost": {
        "train_s": _AMOUNT,
        "predict_s": _AMOUNT,
        "score_s": _AMOUNT,
        "steps": _or_null(_whole(0)),
        "peak_memory_gib": _AMOUNT,
        "hardware": _ANY_TEXT,
    },
    "version": _ANY_TEXT,
    "commit": _or_null(_ANY_TEXT),
    "date": _Rule("a day such as '2016-07-01'", _is_date),
}
