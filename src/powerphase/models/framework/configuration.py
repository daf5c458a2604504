"""Configs of models: frozen dataclasses that are made from plain data, or refused in full.

A config sits beside the model that it configures. Here it is only filled in, from what TOML or JSON
gives, and everything that is wrong with the data is said at once: unknown fields with the names
that were meant, values of the wrong type, and what a config's own `__post_init__` refuses. A field
is an int, float, bool, str, a tuple of such, a Literal, a config in turn, or one of these or None.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from powerphase.errors import ConfigError
from powerphase.files import parse_json

C = TypeVar("C")

SCALARS: Mapping[type, str] = MappingProxyType(
    {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
)
"""What a message calls the types of single values."""


def configured(kind: type[C], given: Mapping[str, Any]) -> C:
    """The config of the given type whose fields are as given, and at their defaults otherwise.

    A table for a nested config changes what it names and leaves the rest as the outer config has it
    by default. A config with a wrong field is not asked what its `__post_init__` thinks of the
    others: defaults in place of the wrong ones could make it complain of what nobody wrote.
    """
    reading = _Reading(kind)
    config = reading.table(kind, given, "", None)
    if reading.problems:
        raise ConfigError("; ".join(reading.problems))
    return config


def read_config(kind: type[C], file: str | Path) -> C:
    """The config of the given type in a `.toml` or `.json` file."""
    given = _read_table(Path(file))
    try:
        return configured(kind, given)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def changed(config: Any, default: Any) -> list[str]:
    """The dotted names of the fields in which two configs of one type differ, in field order."""
    if type(config) is not type(default):
        raise TypeError(f"{type(config).__name__} is no {type(default).__name__} to compare with")
    names = []
    for one in fields(config):
        mine, other = getattr(config, one.name), getattr(default, one.name)
        if is_dataclass(mine) and type(mine) is type(other):
            names += [f"{one.name}.{name}" for name in changed(mine, other)]
        elif mine != other:
            names.append(one.name)
    return names


def replaced(config: C, values: Mapping[str, Any]) -> C:
    """The config with other values in the fields of these dotted names."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        inner = replaced(getattr(config, first), {rest: value}) if rest else value
        config = replace(config, **{first: inner})  # type: ignore[type-var]
    return config


class _Reading:
    """A config on its way from plain data, and what was found wrong so far."""

    def __init__(self, root: type) -> None:
        self.known = list(_paths(root))
        self.problems: list[str] = []

    def table(self, kind: Any, given: Mapping[str, Any], path: str, base: Any) -> Any:
        """A config of the given type: `base`, or else the defaults, changed as given."""
        before = len(self.problems)
        kinds, options = get_type_hints(kind), _options(kind)
        values = {}
        for name, found in given.items():
            place = _joined(path, name)
            if name in options:
                default = _default(options[name], base)
                values[name] = self.value(kinds[name], found, place, default)
            else:
                self.problems.append(f"{place}: no such field, {self._advice(kind, path, name)}")
        for name, option in options.items():
            if name not in given and _default(option, base) is MISSING:
                needed = _needed(kinds[name])
                self.problems.append(f"{_joined(path, name)}: missing, needed {needed}")
        return self._made(kind, values, path, base) if len(self.problems) == before else None

    def value(self, kind: Any, found: Any, path: str, default: Any) -> Any:
        """What a field of the given type holds for what was found."""
        if found is None and NoneType in get_args(kind):
            return None
        inner = _without_none(kind)
        if is_dataclass(inner) and isinstance(found, Mapping):
            base = default if isinstance(default, inner) else None  # type: ignore[arg-type]
            return self.table(inner, found, path, base)
        if get_origin(inner) is tuple and isinstance(found, list | tuple):
            item = get_args(inner)[0]
            return tuple(
                self.value(item, one, f"{path}[{i}]", MISSING) for i, one in enumerate(found)
            )
        if not _fits(inner, found):
            self.problems.append(f"{path}: found {short(found)}, needed {_needed(kind, found)}")
            return None
        return float(found) if inner is float else found

    def _made(self, kind: Any, values: dict[str, Any], path: str, base: Any) -> Any:
        try:
            return kind(**values) if base is None else replace(base, **values)
        except ConfigError as error:
            self.problems.append(f"{path}: {error}" if path else str(error))
            return None

    def _advice(self, kind: Any, path: str, name: str) -> str:
        """The fields, here or elsewhere in the config, that may have been meant."""
        table, _, last = _joined(path, name).rpartition(".")
        if _joined(path, name) in self.known:  # "a.b" as one key, which TOML alone takes apart
            return f"write {last} in a table {table}"
        here = [_joined(path, one) for one in _options(kind)]
        elsewhere = [one for one in self.known if one not in here]
        near = _near(name, here, _last) + _near(name, elsewhere, _last)
        # A name that is exactly right elsewhere stands in the wrong table, and is no slip.
        near = [one for one in near if _last(one) == name] or near
        if near:
            return f"did you mean {' or '.join(near)}?"
        return f"the fields here are {', '.join(_options(kind)) or 'none'}"


def _read_table(file: Path) -> dict[str, Any]:
    """What stands in a `.toml` or `.json` file."""
    parsers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": parse_json}
    if file.is_dir():
        raise ConfigError(f"{file}: is a folder; name a .toml or .json file in it")
    suffix = file.suffix.lower()
    if suffix not in parsers:
        raise ConfigError(f"{file}: found the suffix {file.suffix!r}; name a .toml or .json file")
    try:
        given = parsers[suffix](file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); name an existing .toml or .json file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: not {suffix[1:].upper()} in UTF-8 ({error}); correct it there"
        ) from error
    if not isinstance(given, dict):
        raise ConfigError(f"{file}: holds {short(given)}; write an object with the config's fields")
    return given


def _options(kind: Any) -> dict[str, "Field[Any]"]:
    """The fields that can be given, by name."""
    return {one.name: one for one in fields(kind) if one.init}


def _default(option: "Field[Any]", base: Any) -> Any:
    """What the field holds if it is not given; MISSING if it must be."""
    if base is not None:
        return getattr(base, option.name)
    return option.default if option.default_factory is MISSING else option.default_factory()


def _paths(kind: Any, path: str = "") -> Iterator[str]:
    """The dotted names of all fields, the nested ones after their table."""
    kinds = get_type_hints(kind)
    for name in _options(kind):
        place = _joined(path, name)
        inner = _without_none(kinds[name])
        if not _is_supported(inner):
            raise TypeError(f"{kind.__name__}.{name}: a config has no fields of type {inner}")
        yield place
        if is_dataclass(inner):
            yield from _paths(inner, place)


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _near(name: object, known: Iterable[str], key: Callable[[str], str]) -> list[str]:
    """Up to three of the known whose key resembles the name, the nearest first."""
    groups: dict[str, list[str]] = {}
    for one in known:
        groups.setdefault(key(one).lower(), []).append(one)
    matches = get_close_matches(str(name).lower(), groups)
    return [one for match in matches for one in groups[match]][:3]


def _without_none(kind: Any) -> Any:
    """X for `X | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    inner = [one for one in get_args(kind) if one is not NoneType]
    return inner[0] if len(inner) == 1 else kind


def _is_supported(kind: Any) -> bool:
    """Whether a config may have a field of this type."""
    if get_origin(kind) is tuple:
        item, *rest = get_args(kind)
        return rest == [...] and item in SCALARS
    return get_origin(kind) is Literal or kind in SCALARS or is_dataclass(kind)


def _fits(kind: Any, found: Any) -> bool:
    """Whether a single value is of the type, taken strictly: True is not 1, but 1 may be 1.0."""
    if get_origin(kind) is Literal:
        return any(type(found) is type(one) and found == one for one in get_args(kind))
    if kind is float:
        return type(found) in (int, float) and _is_finite(found)
    return type(found) is kind


def _is_finite(number: int | float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _needed(kind: Any, found: Any = None) -> str:
    """What a message says that a field of the type takes."""
    inner = _without_none(kind)
    if inner is not kind:
        return f"{_needed(inner, found)}, or null"
    if get_origin(kind) is Literal:
        choices = {str(one): repr(one) for one in get_args(kind)}
        near = _near(found, choices, str)
        return f"one of {', '.join(choices[one] for one in dict.fromkeys([*near, *choices]))}"
    if get_origin(kind) is tuple:
        return f"a list, each item {_needed(get_args(kind)[0])}"
    if is_dataclass(kind):
        return f"a table with {', '.join(_options(kind)) or 'no fields'}"
    return SCALARS[kind]
