"""The mapping of a source: what its columns are called, their units and their signs.

It is a small TOML file. Each variable has a section with the name of its column, its unit and, for
powers, its sign; several sections of one variable are added up:

    time = "timestamp"
    zone = "Europe/Berlin"
    bus = "station"

    [[P]]
    column = "load_kw"
    unit = "kW"
    sign = "load"

    [[P]]
    column = "pv_kw"
    unit = "kW"
    sign = "generation"
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import pi
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from powerphase.axes import VARIABLES
from powerphase.errors import RecordError
from powerphase.files import read_regular_file
from powerphase.schema import Rule, Schema, number, one_of, problems, text

MAX_MAPPING_BYTES = 2**24
"""A million names of buses fit into it."""

UNITS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "P": {"MW": 1.0, "kW": 1e-3, "W": 1e-6, "GW": 1e3},
        "Q": {"MVAr": 1.0, "kVAr": 1e-3, "VAr": 1e-6},
        "V": {"p.u.": 1.0, "kV": 1.0, "V": 1e-3},
        "theta": {"rad": 1.0, "degree": pi / 180},
    }
)
"""The units of each variable, and their size in MW, MVAr, p.u. or kV, and rad."""

SIGNS = MappingProxyType({"load": 1.0, "generation": -1.0, "injection": -1.0})
"""Which direction of a power is positive; a data set stores consumption."""

NAMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **{"p_mw": ("P", "MW"), "p_kw": ("P", "kW"), "q_mvar": ("Q", "MVAr")},
        **{"q_kvar": ("Q", "kVAr"), "vm_pu": ("V", "p.u."), "vm_kv": ("V", "kV")},
        **{"va_degree": ("theta", "degree"), "va_rad": ("theta", "rad")},
    }
)
"""Columns that need no mapping, because their names say what they are. Powers are consumption."""

BUS = "{bus}"
"""Stands for the name of a bus in the columns of a wide table."""


@dataclass(frozen=True)
class Column:
    """One column, or in a wide table one column of each bus, and what its numbers are."""

    column: str
    """The name of the column; of a wide table with `{bus}` where the name of the bus is."""
    unit: str
    sign: str = "load"

    def factor(self, variable: str) -> float:
        """What turns its numbers into MW, MVAr, p.u. or kV, and rad of consumption."""
        return UNITS[variable][self.unit] * SIGNS[self.sign]

    def bus_of(self, name: str) -> str | None:
        """The bus whose column of a wide table has this name; None for other columns."""
        pattern = re.escape(self.column).replace(re.escape(BUS), "(.+)")
        match = re.fullmatch(pattern, name)
        return match[1] if match else None


@dataclass(frozen=True)
class SourceMapping:
    """What the parts of a source are called and what they mean."""

    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    """By variable; those of one variable are added up."""
    time: str = "time"
    bus: str | None = None
    """The column of the buses of a long table; None for a wide one."""
    zone: str | None = None
    """The time zone of times without an offset."""
    stamp: str = "start"
    """Whether a time is the start or the end of its step."""
    time_format: str | None = None
    """How times are written, in Python's notation, if not by ISO 8601."""
    start: str | None = None
    """The first time, UTC, of a source that only numbers its steps."""
    step: str | None = None
    """The step of such a source, such as `15min`."""
    separator: str = ","
    decimal: str = "."
    buses: Mapping[str, str] = field(default_factory=dict)
    """The bus of the grid for names that the grid does not have."""
    nominal_kv: float | Mapping[str, float] = field(default_factory=dict)
    """The nominal voltage of all buses or of each, for voltages in kV, where no grid states it."""

    def nominal_kv_of(self, bus: str) -> float:
        """The nominal voltage of a bus of the source; 0 if it is not given."""
        given = self.nominal_kv
        return given.get(bus, 0.0) if isinstance(given, Mapping) else float(given)


def read_mapping(source: str | Path | Mapping[str, Any] | SourceMapping | None) -> SourceMapping:
    """The mapping in a TOML file or in a dictionary of the same structure."""
    if isinstance(source, SourceMapping):
        return source
    if source is None:
        return SourceMapping()
    if isinstance(source, Mapping):
        return parse_mapping(dict(source), "the mapping")
    try:
        document = tomllib.loads(read_regular_file(Path(source), MAX_MAPPING_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{source}: cannot be read as TOML ({error})") from error
    return parse_mapping(document, str(source))


def parse_mapping(document: dict[str, Any], where: str) -> SourceMapping:
    """The mapping in the content of a file; raise with all that is wrong in it."""
    values = {**document}
    sections: dict[str, Any] = {}
    for variable in VARIABLES:
        if variable in values:
            section = values.pop(variable)
            sections[variable] = [section] if isinstance(section, dict) else section
    departures = list(problems(values, {key: _RULES[key] for key in values if key in _RULES}))
    departures += _section_problems(sections)
    if departures:
        known = ", ".join([*VARIABLES, *_RULES])
        raise RecordError(f"{where}: {'; '.join(departures)}; a mapping has {known}")
    columns = {
        variable: tuple(Column(**entry) for entry in entries)
        for variable, entries in sections.items()
    }
    return SourceMapping(columns=columns, **values)


def _section_problems(sections: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong in the sections of the variables."""
    for variable, entries in sections.items():
        if not isinstance(entries, list) or not entries:
            yield f"{variable} is {entries!r}, must be a section or a list of sections"
            continue
        rules: dict[str, Schema] = {"column": text(), "unit": one_of(list(UNITS[variable]))}
        if variable in ("P", "Q"):  # a sign that is guessed is wrong half of the time
            rules["sign"] = one_of(list(SIGNS))
        for entry in entries:
            yield from problems(entry, rules, variable)


def _is_zone(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ZoneInfo(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False


def parse_step(value: str) -> timedelta:
    """A step such as `15min`, `1h` or `900s`."""
    match = re.fullmatch(r"([1-9]\d{0,5})(s|min|h)", value)
    if match is None:
        raise RecordError(f"step {value!r} is not a step; write it as 15min, 1h or 900s")
    return timedelta(seconds=int(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]])


def _mapping_rule(rule: Rule, words: str) -> Rule:
    return Rule(
        words, lambda value: isinstance(value, dict) and all(map(rule.holds, value.values()))
    )


def _nominal_rule(rule: Rule) -> Rule:
    by_bus = _mapping_rule(rule, "nominal voltages [kV] by bus, or a number for all")
    return Rule(by_bus.words, lambda value: by_bus.holds(value) or rule.holds(value))


_STEP = text("a step such as '15min', '1h' or '900s'", r"[1-9]\d{0,5}(s|min|h)")
_RULES: dict[str, Schema] = {
    "time": text(),
    "bus": text(),
    "zone": Rule("a time zone such as 'Europe/Berlin' or 'UTC'", _is_zone),
    "stamp": one_of(["start", "end"]),
    "time_format": text(),
    "start": text("a time such as '2016-01-01T00:00'", r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?"),
    "step": _STEP,
    "separator": text("one character", r"(?s)."),
    "decimal": one_of([".", ","]),
    "buses": _mapping_rule(text(), "names of the grid's buses by those of the source"),
    "nominal_kv": _nominal_rule(number(1e-3, 1e4)),
}
