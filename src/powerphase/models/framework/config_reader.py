"""Reads configs from plain data, as TOML and JSON give it.

`make_config` reports everything that is wrong with the data at once: unknown fields with near
misses, values of the wrong type, and what the config's `__post_init__` rejects. A field is an int,
float, bool, str, a tuple of these, a Literal, a nested config, or one of these or None.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from powerphase.errors import ConfigError
from powerphase.files import parse_json, read_regular_file

C = TypeVar("C")

MAX_BYTES = 2**20
"""No config that a person or this package writes comes near this size."""

SCALARS: Mapping[type, str] = MappingProxyType(
    {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
)
"""How messages name the types of single values."""


def make_config(kind: type[C], data: Mapping[str, Any]) -> C:
    """The config of that type with the fields of `data`, and defaults for the rest.

    A table for a nested config changes the fields that it names and keeps the rest as the outer
    config has it by default. If a field is wrong, the `__post_init__` of its config is not run:
    with a default in place of the wrong value, it could report what nobody wrote.
    """
    reader = _Reader(kind)
    config = reader.table(kind, data, "", None)
    if reader.problems:
        raise ConfigError("; ".join(reader.problems))
    return config


def restore_config(kind: type[C], saved: Mapping[str, Any]) -> C:
    """The config that a training saved, perhaps before the type had all its fields.

    The type's `EARLIER`, if it has one, says what was true of older trainings: the values (by
    dotted name) of fields that their configs lack, where they differ from today's defaults.
    """
    data = deepcopy(dict(saved))
    for name, value in getattr(kind, "EARLIER", {}).items():
        table, _, last = name.rpartition(".")
        fields = data.get(table) if table else data
        if isinstance(fields, dict):  # otherwise invalid, which is reported below
            fields.setdefault(last, value)
    return make_config(kind, data)


def read_config(kind: type[C], file: str | Path) -> C:
    """The config of that type in a `.toml` or `.json` file."""
    data = _read_table(Path(file))
    try:
        return make_config(kind, data)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


class _Reader:
    """Reads a config from plain data, and collects what is wrong with it."""

    def __init__(self, root: type) -> None:
        self.known = list(_paths(root))
        self.problems: list[str] = []

    def table(self, kind: Any, data: Mapping[str, Any], path: str, base: Any) -> Any:
        """A config of the type: `base`, or else the defaults, with the fields of `data`."""
        before = len(self.problems)
        kinds, options = get_type_hints(kind), _options(kind)
        values = {}
        for name, value in data.items():
            full_name = _join(path, name)
            if name in options:
                default = _default(options[name], base)
                values[name] = self.value(kinds[name], value, full_name, default)
            else:
                advice = self._advice(kind, path, name)
                self.problems.append(f"{full_name}: no such field, {advice}")
        for name, option in options.items():
            if name not in data and _default(option, base) is MISSING:
                needed = _expected(kinds[name])
                self.problems.append(f"{_join(path, name)}: missing, needed {needed}")
        return self._make(kind, values, path, base) if len(self.problems) == before else None

    def value(self, kind: Any, value: Any, path: str, default: Any) -> Any:
        """The value of a field of that type, from the value in the data."""
        if value is None and NoneType in get_args(kind):
            return None
        inner = _without_none(kind)
        if is_dataclass(inner) and isinstance(value, Mapping):
            base = default if isinstance(default, inner) else None  # type: ignore[arg-type]
            return self.table(inner, value, path, base)
        if get_origin(inner) is tuple and isinstance(value, list | tuple):
            item = get_args(inner)[0]
            return tuple(
                self.value(item, part, f"{path}[{i}]", MISSING) for i, part in enumerate(value)
            )
        if not _fits(inner, value):
            self.problems.append(f"{path}: found {short(value)}, needed {_expected(kind, value)}")
            return None
        return float(value) if inner is float else value

    def _make(self, kind: Any, values: dict[str, Any], path: str, base: Any) -> Any:
        try:
            return kind(**values) if base is None else replace(base, **values)
        except ConfigError as error:
            self.problems.append(f"{path}: {error}" if path else str(error))
            return None

    def _advice(self, kind: Any, path: str, name: str) -> str:
        """The fields, in this table or another, that may have been meant."""
        table, _, last = _join(path, name).rpartition(".")
        if _join(path, name) in self.known:  # "a.b" as one key, which TOML alone takes apart
            return f"write {last} in a table {table}"
        siblings = [_join(path, option) for option in _options(kind)]
        others = [field for field in self.known if field not in siblings]
        near = _near(name, siblings, _last) + _near(name, others, _last)
        # A name that is exactly right in another table is in the wrong table, not misspelt.
        near = [field for field in near if _last(field) == name] or near
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"the fields of this table are {', '.join(_options(kind)) or 'none'}"


def _read_table(file: Path) -> dict[str, Any]:
    """The content of a `.toml` or `.json` file."""
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": parse_json}
    if file.is_dir():
        raise ConfigError(f"{file}: is a folder; name a .toml or .json file in it")
    suffix = file.suffix.lower()
    if suffix not in parsers:
        raise ConfigError(f"{file}: found the suffix {file.suffix!r}; name a .toml or .json file")
    try:
        data = parsers[suffix](read_regular_file(file, MAX_BYTES).decode())
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); name an existing .toml or .json file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: not {suffix[1:].upper()} in UTF-8 ({error}); correct it there"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: holds {short(data)}; write an object with the config's fields")
    return data


def _options(kind: Any) -> dict[str, "Field[Any]"]:
    """The fields that can be set, by name."""
    return {field.name: field for field in fields(kind) if field.init}


def _default(option: "Field[Any]", base: Any) -> Any:
    """The value of a field that the data leave out; MISSING if they must not."""
    if base is not None:
        return getattr(base, option.name)
    return option.default if option.default_factory is MISSING else option.default_factory()


def _paths(kind: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all fields, the nested ones after their table."""
    kinds = get_type_hints(kind)
    for name in _options(kind):
        full_name = _join(path, name)
        inner = _without_none(kinds[name])
        if not _is_supported(inner):
            raise TypeError(f"{kind.__name__}.{name}: a config has no fields of type {inner}")
        yield full_name
        if is_dataclass(inner):
            yield from _paths(inner, full_name)


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _near(name: object, known: Iterable[str], key: Callable[[str], str]) -> list[str]:
    """Up to three known names whose key resembles the name, the nearest first."""
    groups: dict[str, list[str]] = {}
    for candidate in known:
        groups.setdefault(key(candidate).lower(), []).append(candidate)
    matches = get_close_matches(str(name).lower(), groups)
    return [candidate for match in matches for candidate in groups[match]][:3]


def _without_none(kind: Any) -> Any:
    """X for `X | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    inner = [part for part in get_args(kind) if part is not NoneType]
    return inner[0] if len(inner) == 1 else kind


def _is_supported(kind: Any) -> bool:
    """Whether a config may have a field of this type."""
    if get_origin(kind) is tuple:
        item, *rest = get_args(kind)
        return rest == [...] and item in SCALARS
    return get_origin(kind) is Literal or kind in SCALARS or is_dataclass(kind)


def _fits(kind: Any, value: Any) -> bool:
    """Whether a single value has the type, strictly: True is not 1, but 1 may be 1.0."""
    if get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if kind is float:
        return type(value) in (int, float) and _is_finite(value)
    return type(value) is kind


def _is_finite(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _expected(kind: Any, value: Any = None) -> str:
    """What a field of the type takes, as messages say it."""
    inner = _without_none(kind)
    if inner is not kind:
        return f"{_expected(inner, value)}, or null"
    if get_origin(kind) is Literal:
        choices = {str(choice): repr(choice) for choice in get_args(kind)}
        near = _near(value, choices, str)
        return f"one of {', '.join(choices[text] for text in dict.fromkeys([*near, *choices]))}"
    if get_origin(kind) is tuple:
        return f"a list, each item {_expected(get_args(kind)[0])}"
    if is_dataclass(kind):
        return f"a table with {', '.join(_options(kind)) or 'no fields'}"
    return SCALARS[kind]
