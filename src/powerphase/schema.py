"""Schemas: what a file from outside must hold, declared once and checked where it is read.

A schema is a `Rule` for a plain value, or a mapping of keys to schemas for a JSON object:

    SCHEMA = {"seed": integer(0), "outcome": nullable(plain_object), "domain": {"grid": text()}}
    document = read_json(file, SCHEMA, error=CheckpointError, advice="restore it")

All problems of a document are collected before it is rejected, since one mistake is often the
cause of several. Sizes are bounded before anything is allocated for them.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple

from powerphase.errors import PowerphaseError
from powerphase.files import is_json_object, parse_json, read_regular_file

MAX_JSON_BYTES = 2**26
"""No JSON file that this package writes comes near this size."""

MAX_COUNT = 10**12
"""No count in a file of this package comes near this number."""

MAX_BUSES, MAX_STEPS = 10**6, 10**6
"""The largest published grids have 10⁵ buses; 10⁶ steps are 28 years."""


class Rule(NamedTuple):
    """What a value must be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


class OptionalKey(NamedTuple):
    """Of a key that an object may lack: the schema that its value must follow."""

    schema: Any


Schema = Rule | OptionalKey | Mapping[str, Any]


def problems(value: Any, schema: Schema, name: str = "the file") -> Iterator[str]:
    """Everything in a value that its schema does not allow, one phrase each."""
    yield from _problems(value, schema, name, "")


def _problems(value: Any, schema: Schema, name: str, prefix: str) -> Iterator[str]:
    if isinstance(schema, OptionalKey):
        yield from _problems(value, schema.schema, name, prefix)
    elif isinstance(schema, Rule):
        if not schema.holds(value):
            yield f"{name} is {short(value)}, must be {schema.words}"
    elif not isinstance(value, dict):
        yield f"{name} is {short(value)}, must be an object"
    else:
        for key in sorted(value.keys() - schema.keys(), key=str):
            near = get_close_matches(str(key), schema, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            yield f"{name} has an unknown key {key!r}{hint}"
        for key, inner in schema.items():
            if key in value:
                yield from _problems(value[key], inner, f"{prefix}{key}", f"{prefix}{key}.")
            elif not isinstance(inner, OptionalKey):
                yield f"{name} lacks {key!r}"


def check(
    value: Any, schema: Schema, where: str, error: type[PowerphaseError], advice: str
) -> None:
    """Raise if the value departs from its schema, naming every departure."""
    departures = list(problems(value, schema))
    if departures:
        raise error(f"{where}: {'; '.join(departures)}; {advice}")


def read_json(
    file: Path,
    schema: Schema,
    error: type[PowerphaseError],
    advice: str,
    version: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """The JSON object in a file, which must follow its schema.

    Args:
        file: a regular file; pipes and devices are rejected.
        schema: the keys of the object and a rule for each.
        error: the exception for an invalid file.
        advice: what to do about an invalid file.
        version: the key of the format's version and the only one that this package reads.
    """
    try:
        content = read_regular_file(file, MAX_JSON_BYTES)
    except OSError as cause:
        raise error(f"{file}: cannot be read ({cause}); {advice}") from cause
    return parse_object(content, str(file), schema, error, advice, version)


def parse_object(
    content: bytes,
    where: str,
    schema: Schema,
    error: type[PowerphaseError],
    advice: str,
    version: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """The JSON object in the content of a file, which must follow its schema; see `read_json`."""
    try:
        value = parse_json(content.decode())
    except ValueError as cause:
        raise error(f"{where}: cannot be read ({cause}); {advice}") from cause
    if version and isinstance(value, dict) and value.get(version[0], version[1]) != version[1]:
        writer = f" ({short(value['version'])})" if "version" in value else ""
        raise error(
            f"{where}: written in {version[0]} {short(value[version[0]])}, this version reads "
            f"{version[0]} {version[1]}; install the powerphase that wrote it{writer}, or {advice}"
        )
    check(value, schema, where, error, advice)
    return dict(value)


def nullable(rule: Rule) -> Rule:
    """The rule, or null."""
    return Rule(f"{rule.words} or null", lambda value: value is None or rule.holds(value))


def number(low: float | int = -inf, high: float | int = inf) -> Rule:
    """A finite number within these limits."""

    def holds(value: Any) -> bool:
        # True and False are integers to Python, and an integer may be too large for a float.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return abs(value) <= sys.float_info.max and low <= value <= high

    return Rule(f"a number in [{low:g}, {high:g}]", holds)


def real(low: float = -inf, high: float = inf) -> Rule:
    """A finite number that is written with a decimal point or an exponent."""
    within = number(low, high)
    words = f"{within.words}, with a decimal point"
    return Rule(words, lambda value: isinstance(value, float) and within.holds(value))


def integer(low: int, high: int = MAX_COUNT) -> Rule:
    """A whole number within these limits."""
    within = number(low, high)
    words = f"a whole number from {low} to {high:,}"
    return Rule(words, lambda value: isinstance(value, int) and within.holds(value))


def text(words: str = "text", pattern: str = r".+") -> Rule:
    """Text that matches the whole pattern."""
    matches = re.compile(pattern).fullmatch
    return Rule(words, lambda value: isinstance(value, str) and bool(matches(value)))


def one_of(choices: Collection[Any]) -> Rule:
    """One of these values."""
    words = " or ".join(repr(choice) for choice in choices)
    return Rule(words, lambda value: any(value == c and type(value) is type(c) for c in choices))


def list_of(rule: Rule) -> Rule:
    """A list of values that all follow the rule."""
    words = f"a list with {rule.words} in every item"
    return Rule(words, lambda value: isinstance(value, list) and all(map(rule.holds, value)))


def mapping_of(rule: Rule) -> Rule:
    """An object whose values all follow the rule."""
    words = f"an object with {rule.words} under every key"
    return Rule(
        words, lambda value: isinstance(value, dict) and all(map(rule.holds, value.values()))
    )


def exactly(schema: Mapping[str, Schema]) -> Rule:
    """An object that follows the schema, for use within lists and mappings."""
    words = f"an object with valid {', '.join(schema)}"
    return Rule(words, lambda value: not any(problems(value, schema)))


def object_with(required: Mapping[str, Schema], optional: Mapping[str, Schema] = {}) -> Rule:
    """An object with these keys, and any others: what a reader needs of a longer report."""

    def holds(value: Any) -> bool:
        if not is_json_object(value) or not required.keys() <= value.keys():
            return False
        known = {**required, **optional}
        return not any(any(problems(value[key], known[key])) for key in known.keys() & value.keys())

    return Rule(f"an object with valid {', '.join([*required, *optional])}", holds)


def fits_axes(shape: Sequence[int], axes: str, sizes: dict[str, int]) -> bool:
    """Whether a shape has these axes: a number is a size, a letter has one size everywhere.

    Args:
        shape: of an array.
        axes: such as "N 4".
        sizes: the known sizes of letters, to which those of the shape are added.
    """
    names = axes.split()
    return len(names) == len(shape) and all(
        (int(name) if name.isdigit() else sizes.setdefault(name, size)) == size
        for name, size in zip(names, shape, strict=True)
    )


plain_object = Rule("an object of JSON values", is_json_object)
