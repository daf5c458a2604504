"""Variants: names for what is not a model's default.

A config lists its variants as words and the fields that each sets. The same table serves both ways:
`powerphase train deepar+reference` sets the fields, and a result row of a config that has them is
called `deepar+reference`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from powerphase.errors import ConfigError, UnknownName
from powerphase.models.framework.configuration import changed, replaced

C = TypeVar("C")

Variants = Mapping[str, Mapping[str, Any]]
"""Words, and by dotted name the fields that each sets; longer lists first."""


class AnyValue(NamedTuple):
    """Of a field whose word is the same whatever it is set to."""

    usual: Any
    """What the word sets."""


BUDGET = ("training.epochs", "training.batches_per_epoch")

SHORT: Variants = MappingProxyType({"short": {"training.epochs": 20}})
"""A tenth of the reference's budget. Whatever trains less than the model's default is called so."""


def with_variants(config: C, words: list[str], variants: Variants) -> C:
    """The config with the fields of these words set; words may also be joined by hyphens."""
    given: dict[str, Any] = {}
    for word in (single for joined in words for single in _singles(joined, variants)):
        fields = {
            name: _chosen(config, name, value) if isinstance(value, AnyValue) else value
            for name, value in variants[word].items()
        }
        clash = [name for name, value in fields.items() if given.get(name, value) != value]
        if clash:
            raise ConfigError(f"variants {' and '.join(words)} set {clash[0]} differently")
        given |= fields
    return replaced(config, given)


def _chosen(config: Any, name: str, value: AnyValue) -> Any:
    """What the config has already, if it is not the default, or else the usual."""
    here, default = _value(config, name), _value(type(config)(), name)
    return value.usual if here == default else here


def _singles(joined: str, variants: Variants) -> list[str]:
    """The words of a name such as season-24-stale, which is that of a row."""
    for word in sorted(variants, key=len, reverse=True):
        if joined == word:
            return [word]
        if joined.startswith(f"{word}-"):
            return [word, *_singles(joined.removeprefix(f"{word}-"), variants)]
    raise UnknownName.among("variant", joined, variants)


def variant_of(config: Any, default: Any, variants: Variants) -> str | None:
    """The words for what is not the default's; None if nothing is.

    `custom` stands for whatever no word covers, `short` for any smaller budget than the default's.
    """
    left = {name: _value(config, name) for name in changed(config, default)}
    words = []
    for word, fields in variants.items():
        if word != "short" and all(_matches(left, *field) for field in fields.items()):
            words.append(word)
            left = {name: value for name, value in left.items() if name not in fields}
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
