"""The rules for a valid result row: its keys, its values, and which of them must agree.

A row may be of an older schema. What that schema does not have is missing in its file and None in
memory. All problems of a row are collected before the row is rejected, since one mistake often
causes many.
"""

from collections.abc import Collection, Iterator
from datetime import date, datetime
from functools import cache
from itertools import pairwise
from math import fsum, isclose
from reprlib import repr as short
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.errors import ResultError
from powerphase.records.scores import SCORES, Score
from powerphase.schema import (
    Rule,
    Schema,
    exactly,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    one_of,
    plain_object,
    problems,
    text,
)

Number = float | int

SCHEMA = 2
"""Raised whenever a reader of older rows would misread or reject a newer one."""

RELATIVE_ROUNDING, ROUNDING = 1e-6, 1e-12
"""The tolerances between two computations of the same mean."""

WINDOW_FORMAT = "%Y-%m-%dT%H:%M"
"""The format of a window's start, UTC."""

AT_MOST = (("brier", "safety_mbrier"), ("excursion_bias", "excursion_error"))
"""Pairs of scores of which the first is at most the second in size, as (p - Y)² ≤ |p - Y|."""


def check(row: dict[str, Any], where: str, advice: str = "score the forecast again") -> None:
    """Raise if a row has missing, unknown or invalid keys, or contradicts itself.

    The row is that of `add_missing`, so it has every key, whatever its schema.
    """
    check_schema(row["schema"], where)
    rules = row_rules(row["schema"])
    faults = [*problems(row, rules, "the row"), *_uneven_curve(row.get("training"))]
    scored = {key: row[key] for key in SCORED if key in row}
    if not any(problems(scored, {key: rules[key] for key in SCORED})):
        faults += _contradictions(row["schema"], **scored)
    if faults:
        raise ResultError(f"{where}: {'; '.join(faults)}; {advice}")


def check_schema(schema: object, where: str) -> None:
    """Raise if this version does not know the schema."""
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise ResultError(
            f"{where}: written in schema {short(schema)}, this version reads schemas 1 to "
            f"{SCHEMA}; install the powerphase that wrote it"
        )


def add_missing(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a file, with None for whatever its schema does not have."""
    newer = dict.fromkeys(_newer_scores(row["schema"]))
    complete = dict.fromkeys((*_newer_facts(row["schema"]), *RARE)) | row
    if row["schema"] == 1 and "truth" in row:
        complete["truth"] = _merge({"overloads": None}, row["truth"])
    for name in ("scores", "by_window"):
        if name in row:
            complete[name] = _merge(newer, row[name])
    if isinstance(row.get("by_type"), dict):
        complete["by_type"] = {
            kind: _merge({name: None for name in newer if _has(kind, name)}, scores)
            for kind, scores in row["by_type"].items()
        }
    return complete


def drop_missing(row: dict[str, Any]) -> dict[str, Any]:
    """The row as its file has it, without what its schema does not have."""
    scores, facts = _newer_scores(row["schema"]), _newer_facts(row["schema"])
    kept = {
        name: value
        for name, value in row.items()
        if name not in facts and not (name in RARE and value is None)
    }
    if row["schema"] == 1:
        kept["truth"] = {key: value for key, value in row["truth"].items() if key != "overloads"}
    for name in ("scores", "by_window"):
        kept[name] = {key: value for key, value in row[name].items() if key not in scores}
    kept["by_type"] = {
        kind: {key: value for key, value in values.items() if key not in scores}
        for kind, values in row["by_type"].items()
    }
    return kept


def _merge(missing: dict[str, None], values: Any) -> Any:
    """The values after those that are missing; what is not an object stays for the rules."""
    return missing | values if isinstance(values, dict) else values


def _newer_scores(schema: int) -> list[str]:
    return [name for name, score in SCORES.items() if score.since > schema]


def _newer_facts(schema: int) -> list[str]:
    return [name for name, since in FACTS_SINCE.items() if since > schema]


def _contradictions(
    schema: int,
    windows: list[str],
    scores: dict[str, Any],
    by_type: dict[str, dict[str, Any]],
    by_window: dict[str, Any],
) -> Iterator[str]:
    """Scores of a row that are valid by themselves but disagree with each other."""
    observed = [kind for kind in VARIABLES if any(v is not None for v in by_type[kind].values())]
    for name, score in SCORES.items():
        types = [by_type[kind][name] for kind in observed if name in by_type[kind]]
        overall, values = scores[name], by_window[name]
        has_it = score.needs_v and not score.nullable and score.since <= schema
        if overall is None and has_it and "V" in observed:
            yield f"{name} is null, although voltages were scored"
        if len({value is None for value in (overall, values, *types)}) > 1:
            yield f"{name} is null in one of scores, by_type and by_window but not in all"
        elif values is not None and len(values) != len(windows):
            yield f"by_window.{name} has {len(values)} values for {len(windows)} windows"
        elif values is not None:
            yield from _wrong_mean(name, overall, values, "windows")
            if score.pointwise:
                yield from _wrong_mean(name, overall, types, "types")
    for smaller, larger in AT_MOST:
        if None in (scores[smaller], scores[larger]):
            continue
        if abs(scores[smaller]) > scores[larger] + ROUNDING:
            yield (
                f"scores.{smaller} of {scores[smaller]!r} is larger in size than "
                f"scores.{larger} of {scores[larger]!r}"
            )


def _uneven_curve(training: Any) -> Iterator[str]:
    """A curve whose columns have different lengths."""
    if training is None or not TRAINING.holds(training):
        return
    lengths = {name: len(column) for name, column in training["curve"].items()}
    if len(set(lengths.values())) > 1:
        yield f"training.curve has columns of different lengths: {lengths}"


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


def _has(kind: str, name: str) -> bool:
    """Whether a variable has the score: only voltages have those of the band, none has lines."""
    return SCORES[name].has_types and (kind == "V" or not SCORES[name].voltage_only)


def _score(score: Score, schema: int, per_window: bool = False) -> Rule:
    if score.since > schema:
        return _newer(schema)
    limits = number(score.low, score.high)
    rule = list_of(limits) if per_window else limits
    return nullable(rule) if score.nullable or score.needs_v else rule


def _of_type(score: Score, schema: int) -> Rule:
    """The rule of a score of one variable, which is null if the record never observed it."""
    return nullable(_score(score, schema))


def _truth(schema: int) -> dict[str, Rule]:
    overloads = nullable(number(0.0, 1.0)) if schema > 1 else _newer(schema)
    # Null for a record in which no voltage is observed.
    necv, violations = nullable(number(0.0)), nullable(number(0.0, 1.0))
    return {"necv": necv, "violations": violations, "overloads": overloads}


def _newer(schema: int) -> Rule:
    return Rule(f"null, as schema {schema} does not have it", lambda value: value is None)


NAME = text("a name in lower case letters, digits and hyphens", r"[a-z0-9]+(-[a-z0-9]+)*")
ANY_TEXT = text("some text", r".+")
_AMOUNT = nullable(number(0.0))
_NUMBERS = list_of(nullable(number()))

TRAINING = exactly(
    {
        "windows_seen": integer(1),
        "best_epoch": integer(1),
        "criterion": text(),
        "curve": exactly({"step": list_of(integer(1)), "loss": _NUMBERS, "validation": _NUMBERS}),
    }
)
"""How a network was trained: the windows of all its steps, the epoch whose weights were kept by
which criterion on the validation windows, and both losses by epoch."""

FAILED = exactly(
    {
        "instead": text(),
        "series": mapping_of(nullable(mapping_of(text()))),
    }
)
"""The series that a model could not forecast, and what they have instead: by the start of each
window that has any, the names with the reasons, or null for windows of which that is unknown since
they were forecast before an interruption."""

SCORED = ("windows", "scores", "by_type", "by_window")
"""What must agree within a row."""

FACTS_SINCE = dict.fromkeys(
    ("model_version", "joint", "data_verified", "daily_slope", "training"), 2
)
"""The facts that older rows lack, with the first schema that has each."""

RARE = ("failed",)
"""Facts that a file states only where they are not None."""


@cache
def row_rules(schema: int) -> dict[str, Schema]:
    """The rules for all keys of a row of that schema."""
    rules: dict[str, Schema] = {
        "schema": one_of([schema]),
        "task": NAME,
        "task_version": integer(1),
        "grid": text("a name that is valid for a folder", r"\w[\w .+-]*"),
        "edition": NAME,
        "fingerprint": text("64 hexadecimal digits", r"[0-9a-f]{64}"),
        "data_verified": nullable(one_of([True, False])),
        "model": NAME,
        "variant": nullable(NAME),
        "config": plain_object,
        "model_version": integer(1),
        "parameters": nullable(integer(0)),
        "seed": integer(0),
        "windows": Rule(
            "a list of ascending UTC times such as '2016-07-01T00:00'", are_window_starts
        ),
        "scenarios": integer(1),
        "joint": nullable(one_of([True, False])),
        "daily_slope": nullable(exactly(dict.fromkeys(VARIABLES, nullable(number())))),
        "training": nullable(TRAINING),
        "failed": nullable(FAILED),
        "truth": _truth(schema),
        "scores": {name: _score(score, schema) for name, score in SCORES.items()},
        "by_type": {
            kind: {name: _of_type(s, schema) for name, s in SCORES.items() if _has(kind, name)}
            for kind in VARIABLES
        },
        "by_window": {name: _score(score, schema, True) for name, score in SCORES.items()},
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
    return rules | dict.fromkeys(_newer_facts(schema), _newer(schema))
