"""Configs of models: frozen dataclasses made from plain data, their variants, and the budget.

A config sits next to the model that it configures. `make_config` fills it from what TOML or JSON
gives and reports everything that is wrong with the data at once: unknown fields with near misses,
values of the wrong type, and what the config's `__post_init__` rejects. A field is an int, float,
bool, str, a tuple of these, a Literal, a nested config, or one of these or None.

A config lists its variants as words with the fields that each word sets. The table works both ways:
`powerphase train deepar+reference` sets the fields, and the result row of a config that has them is
called `deepar+reference`.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from powerphase.errors import ConfigError, UnknownName
from powerphase.files import parse_json, read_regular_file

C = TypeVar("C")
N = TypeVar("N", bound="NetworkConfig")

MAX_BYTES = 2**20
"""No config that a person or this package writes comes near this size."""

SCALARS: Mapping[type, str] = MappingProxyType(
    {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
)
"""How messages name the types of single values."""

Variants = Mapping[str, Mapping[str, Any]]
"""Words, each with the values of the fields (by dotted name) that it sets; longer lists first."""

SHORT: Variants = MappingProxyType({"short": {"training.epochs": 20}})
"""A tenth of the default budget. Any training shorter than the model's default is called so."""

BUDGET = ("training.epochs", "training.batches_per_epoch")


BATCH_SIZES: Mapping[str, int] = MappingProxyType(
    {
        "activsg500": 32,
        "pegase1354": 32,
        "polish2383": 16,
        "pegase2869": 32,
        "polish3120": 32,
        "pegase9241": 8,
    }
)
"""The paper's batch sizes of PowerForge, which all networks take; see `DEFAULT_BATCH_SIZE`."""

DEFAULT_BATCH_SIZE = 32
"""On all other grids."""


class AnyValue(NamedTuple):
    """In a variant: the field may have any value but the default."""

    usual: Any
    """The value that the word sets."""


@dataclass(frozen=True)
class TrainingConfig:
    """The budget of a training, and how its steps are taken."""

    epochs: int = 200
    batches_per_epoch: int = 30
    batch_size: int | None = None
    """None: that of the grid, `BATCH_SIZES`."""
    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    clip_norm: float = 10.0
    patience: int = 10
    """Epochs without a better validation before the learning rate is lowered."""
    factor: float = 0.5
    criterion: Literal["loss", "crps"] = "loss"
    """What is computed on the validation windows to choose the best epoch and to lower the learning
    rate: the model's loss, or the CRPS of its scenarios."""
    precision: Literal["float32", "tf32", "bfloat16"] = "tf32"
    """Of matrix products and their inputs; all else is float32. tf32 is for GPUs, and means float32
    on a CPU."""

    def __post_init__(self) -> None:
        rules = (
            (min(self.epochs, self.batches_per_epoch) < 1, "epochs and batches_per_epoch must be 1 "
             "or more"),
            (self.batch_size is not None and self.batch_size < 1, "batch_size must be 1 or more"),
            (self.learning_rate <= 0 or self.clip_norm <= 0, "learning_rate and clip_norm must be "
             "above 0"),
            (self.weight_decay < 0 or self.patience < 0, "weight_decay and patience must be 0 or "
             "more"),
            (not 0 < self.factor < 1, "factor must be between 0 and 1"),
        )  # fmt: skip
        problems = [text for fails, text in rules if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def steps(self) -> int:
        """Number of steps in all."""
        return self.epochs * self.batches_per_epoch


@dataclass(frozen=True)
class NetworkConfig:
    """The config of a network; a subclass adds the fields of its model.

    Every network has the same budget by default, so that a table compares models: 6,000 steps of
    the grid's batch size.
    """

    training: TrainingConfig = field(default_factory=TrainingConfig)

    VARIANTS: ClassVar[Variants] = SHORT
    """The words that may follow the model's name."""

    def __post_init__(self) -> None:
        problems = [text for fails, text in self._rules() if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        """What may be wrong with the fields: whether it is, and what is needed."""
        return []

    def for_grid(self: N, grid: str) -> N:
        """The config with the batch size of this grid, unless it has its own."""
        if self.training.batch_size is not None:
            return self
        size = BATCH_SIZES.get(grid, DEFAULT_BATCH_SIZE)
        return replace(self, training=replace(self.training, batch_size=size))

    def variant(self, grid: str) -> str | None:
        """The words for what differs from the default; None if nothing does."""
        return variant_of(self.for_grid(grid), type(self)().for_grid(grid), self.VARIANTS)


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


def changed_fields(config: Any, default: Any) -> list[str]:
    """The dotted names of the fields in which two configs of one type differ, in field order."""
    if type(config) is not type(default):
        raise TypeError(f"{type(config).__name__} is no {type(default).__name__} to compare with")
    names = []
    for name in (option.name for option in fields(config)):
        value, usual = getattr(config, name), getattr(default, name)
        if is_dataclass(value) and type(value) is type(usual):
            names += [f"{name}.{inner}" for inner in changed_fields(value, usual)]
        elif value != usual:
            names.append(name)
    return names


def replace_fields(config: C, values: Mapping[str, Any]) -> C:
    """The config with other values in the fields of these dotted names."""
    for name, value in values.items():
        first, _, rest = name.partition(".")
        inner = replace_fields(getattr(config, first), {rest: value}) if rest else value
        config = replace(config, **{first: inner})  # type: ignore[type-var]
    return config


def apply_variants(config: C, words: list[str], variants: Variants) -> C:
    """The config with the fields of these words set; words may also be joined by hyphens."""
    values: dict[str, Any] = {}
    for word in (single for joined in words for single in _split_words(joined, variants)):
        changes = {
            name: _any_value(config, name, value) if isinstance(value, AnyValue) else value
            for name, value in variants[word].items()
        }
        clash = [name for name, value in changes.items() if values.get(name, value) != value]
        if clash:
            raise ConfigError(f"variants {' and '.join(words)} set {clash[0]} differently")
        values |= changes
    return replace_fields(config, values)


def _any_value(config: Any, name: str, value: AnyValue) -> Any:
    """The config's value if it is not the default, else the usual one."""
    current, default = _value(config, name), _value(type(config)(), name)
    return value.usual if current == default else current


def _split_words(joined: str, variants: Variants) -> list[str]:
    """The words of a variant such as season-24-stale, as rows have it."""
    for word in sorted(variants, key=len, reverse=True):
        if joined == word:
            return [word]
        if joined.startswith(f"{word}-"):
            return [word, *_split_words(joined.removeprefix(f"{word}-"), variants)]
    raise UnknownName.among("variant", joined, variants)


def variant_of(config: Any, default: Any, variants: Variants) -> str | None:
    """The words for what differs from the default; None if nothing does.

    `custom` stands for whatever no word covers, `short` for any budget smaller than the default's.
    """
    left = {name: _value(config, name) for name in changed_fields(config, default)}
    words = []
    for word, values in variants.items():
        if word != "short" and all(_matches(left, *item) for item in values.items()):
            words.append(word)
            left = {name: value for name, value in left.items() if name not in values}
    if set(BUDGET) & set(left) and config.training.steps < default.training.steps:
        words.append("short")
        left = {name: value for name, value in left.items() if name not in BUDGET}
    return "-".join([*words, *["custom"] * bool(left)]) or None


def _matches(left: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in left if isinstance(value, AnyValue) else left.get(name) == value


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


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
