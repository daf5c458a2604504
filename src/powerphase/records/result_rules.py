"""What a result row must be: which keys, which values, and which of them must agree.

All problems of a row are found before it is refused, since one mistake is often the cause of many.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import date
from difflib import get_close_matches
from math import fsum, inf, isclose
from reprlib import repr as short
from typing import Any, NamedTuple

from powerphase.axes import VARIABLES
from powerphase.errors import ResultError
from powerphase.records.plain import are_window_starts, is_plain
from powerphase.records.scores import SCORES, Score

Number = float | int

RELATIVE_ROUNDING, ROUNDING = 1e-6, 1e-12
"""How far two ways to the same mean may lie apart."""

AT_MOST = (("brier", "safety_mbrier"), ("excursion_bias", "excursion_error"))
"""Pairs of scores, the first of which cannot be larger in size: (p - Y)² ≤ |p - Y| is one."""


def check(row: dict[str, Any], where: str, advice: str = "score the forecast again") -> None:
    """Refuse a row that lacks something, has too much, or contradicts itself."""
    problems = list(_departures("the row", row, _ROW))
    scored = {key: row[key] for key in _SCORED if key in row}
    if not any(_departures("", scored, _SCORED)):
        problems += _contradictions(**scored)
    if problems:
        raise ResultError(f"{where}: {'; '.join(problems)}; {advice}")


def _departures(place: str, found: Any, needed: Any) -> Iterator[str]:
    """What is unknown, missing or not as needed in a value and in all that it contains."""
    if isinstance(needed, _Need):
        if not needed.holds(found):
            yield f"{place} is {short(found)}, needed {needed.words}"
    elif not isinstance(found, dict):
        yield f"{place} is {short(found)}, needed an object"
    else:
        for key in sorted(found.keys() - needed.keys(), key=str):
            near = get_close_matches(str(key), needed, n=1)
            advice = f" (did you mean {near[0]!r}?)" if near else ""
            yield f"{place} has an unknown key {key!r}{advice}"
        for key, inner in needed.items():
            if key in found:
                inside = f"{place}.{key}".removeprefix("the row.")
                yield from _departures(inside, found[key], inner)
            else:
                yield f"{place} lacks {key!r}"


def _contradictions(
    windows: list[str],
    scores: dict[str, Any],
    by_type: dict[str, dict[str, Any]],
    by_window: dict[str, Any],
) -> Iterator[str]:
    """Where the scores of a row, each sound by itself, do not agree with one another."""
    for name, score in SCORES.items():
        of_types = [by_type[kind][name] for kind in VARIABLES if name in by_type[kind]]
        whole, each = scores[name], by_window[name]
        if len({value is None for value in (whole, each, *of_types)}) > 1:
            yield f"{name} is null in one of scores, by_type and by_window but not in all"
        elif each is not None and len(each) != len(windows):
            yield f"by_window.{name} has {len(each)} values for {len(windows)} windows"
        elif each is not None:
            yield from _disagreement(name, whole, each, "windows")
            if score.pointwise:
                yield from _disagreement(name, whole, of_types, "types")
    for smaller, larger in AT_MOST:
        if abs(scores[smaller]) > scores[larger] + ROUNDING:
            yield (
                f"scores.{smaller} of {scores[smaller]!r} is larger in size than "
                f"scores.{larger} of {scores[larger]!r}"
            )


def _disagreement(name: str, whole: Number, parts: Collection[Number], of: str) -> Iterator[str]:
    mean = fsum(part / len(parts) for part in parts)  # the sum itself might overflow
    if not isclose(whole, mean, rel_tol=RELATIVE_ROUNDING, abs_tol=ROUNDING):
        yield f"scores.{name} is {whole!r}, but the mean over its {of} is {mean!r}"


class _Need(NamedTuple):
    """What a value has to be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _or_null(need: _Need) -> _Need:
    return _Need(f"{need.words} or null", lambda found: found is None or need.holds(found))


def _number(low: float = 0.0, high: float = inf) -> _Need:
    def holds(found: Any) -> bool:
        # True and False are integers to Python, and an integer may be too large for a float.
        if isinstance(found, bool) or not isinstance(found, int | float):
            return False
        return abs(found) <= sys.float_info.max and low <= found <= high

    return _Need(f"a number in [{low:g}, {high:g}]", holds)


def _whole(low: int) -> _Need:
    number, words = _number(float(low)), f"a whole number from {low} on"
    return _Need(words, lambda found: isinstance(found, int) and number.holds(found))


def _text(words: str, pattern: str) -> _Need:
    return _Need(words, lambda found: isinstance(found, str) and bool(re.fullmatch(pattern, found)))


def _per_window(need: _Need) -> _Need:
    words = f"a list with {need.words} for each window"
    return _Need(words, lambda found: isinstance(found, list) and all(map(need.holds, found)))


def _is_date(found: Any) -> bool:
    try:
        return date.fromisoformat(found).isoformat() == found
    except (TypeError, ValueError):
        return False


def _score(score: Score, per_window: bool = False) -> _Need:
    number = _number(score.low, score.high)
    need = _per_window(number) if per_window else number
    return _or_null(need) if score.needs_samples else need


_NAME = _text("a name in lower case letters, digits and hyphens", r"[a-z0-9]+(-[a-z0-9]+)*")
_ANY_TEXT = _text("some text", r".+")
_AMOUNT = _or_null(_number())

_SCORED: dict[str, Any] = {
    "windows": _Need(
        "a list of UTC starts such as '2016-07-01T00:00', in order", are_window_starts
    ),
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
    "grid": _text("a name that a folder can have", r"\w[\w .+-]*"),
    "edition": _NAME,
    "fingerprint": _text("64 hexadecimal digits", r"[0-9a-f]{64}"),
    "model": _NAME,
    "variant": _or_null(_NAME),
    "config": _Need("an object of JSON values", is_plain),
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
    "date": _Need("a day such as '2016-07-01'", _is_date),
}
