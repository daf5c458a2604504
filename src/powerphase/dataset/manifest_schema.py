"""What the manifest of a data set must hold."""

from datetime import date
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.dataset.imported import KINDS_OF_DATA
from powerphase.resolution import STEPS_S
from powerphase.schema import (
    MAX_BUSES,
    OptionalKey,
    Rule,
    Schema,
    exactly,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    object_with,
    one_of,
    real,
    text,
)

MAX_STEPS = 10**7
"""95 years of five minutes."""

CHECKSUM = text("64 hexadecimal digits", r"[0-9a-f]{64}")


def manifest_schema(format_number: int, block_arrays: tuple[str, ...]) -> dict[str, Schema]:
    """The schema of a manifest whose blocks have these arrays."""
    checksums = object_with(dict.fromkeys(block_arrays, CHECKSUM))
    block: dict[str, Schema] = {
        "sha256": checksums,
        "provenance": Rule(
            "4 or 5 whole numbers",
            lambda value: any(_numbers(count, integer(0)).holds(value) for count in (4, 5)),
        ),
        "largest": _numbers(2, real(0.0)),
        "unsolved": integer(0),
        "promised": nullable(checksums),
    }
    return {
        "format": one_of([format_number]),
        "grid": text(),
        "edition": text(),
        "fingerprint": CHECKSUM,
        "recipe": Rule(
            "the recipe of generated or of imported data",
            lambda value: any(exactly(schema).holds(value) for schema in (_RECIPE, _IMPORT)),
        ),
        "n_steps": integer(1, MAX_STEPS),
        "step_s": OptionalKey(one_of(STEPS_S)),  # older data sets have 15 minutes
        "calendar": OptionalKey({"country": nullable(text()), "zone": text()}),
        "n_buses": integer(1, MAX_BUSES),
        "block_steps": integer(1, MAX_STEPS),
        "attribution": list_of(text(pattern=r"(?s).*")),
        "filled_signal_values": integer(0),
        "made_with": mapping_of(text()),
        "cpu_features": list_of(text()),
        "static_sha256": mapping_of(CHECKSUM),
        "blocks": mapping_of(exactly(block)),
        "complete": one_of([True, False]),
    }


def _numbers(count: int, rule: Rule) -> Rule:
    every = list_of(rule)
    words = f"{count} numbers, each {rule.words}"
    return Rule(words, lambda value: every.holds(value) and len(value) == count)


def _is_day(value: Any) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        return False


_DAY = Rule("a day such as '2016-07-01'", _is_day)

_VARIABLES = list_of(one_of(VARIABLES))

_IMPORT: dict[str, Schema] = {
    "kind": one_of(KINDS_OF_DATA),
    "grid_sha256": nullable(CHECKSUM),
    "bus_sha256": CHECKSUM,
    "start": text("a time such as '2016-07-01T00:00:00'", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"),
    "step_s": integer(1, 86_400),
    "given": _VARIABLES,
    "solved": _VARIABLES,
    "segments": list_of(
        exactly(
            {
                "n_steps": integer(1, MAX_STEPS),
                "sha256": CHECKSUM,
                "findings": list_of(text(pattern=r"(?s).*")),
            }
        )
    ),
    "version": integer(1),
}

_RECIPE: dict[str, Schema] = {
    "grid_sha256": CHECKSUM,
    "signals_sha256": CHECKSUM,
    "seed": integer(0, 2**64),
    "dispatch": text(),
    "setpoint": Rule(
        "'case' or a voltage [p.u.]", lambda value: value == "case" or number(0.0).holds(value)
    ),
    "start": _DAY,
    "end": _DAY,
    "version": integer(1),
}
