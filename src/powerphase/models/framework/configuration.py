"""Configs of models: frozen dataclasses, their variants, and the budget.

A config sits next to the model that it configures. It lists its variants as words with the fields
that each word sets. The table works both ways: `powerphase train deepar+reference` sets the fields,
and the result row of a config that has them is called `deepar+reference`. How configs are read from
files is the matter of `config_reader`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from powerphase.errors import ConfigError, UnknownName
from powerphase.resolution import PAPER_STEP_S, rescale_steps

C = TypeVar("C")
N = TypeVar("N", bound="NetworkConfig")

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
    IN_QUARTER_HOURS: ClassVar[Mapping[str, "Rescaling"]] = MappingProxyType({})
    """The fields that count quarter-hours, and what makes steps of another length of them."""

    def __post_init__(self) -> None:
        problems = [text for fails, text in self._rules() if fails]
        if problems:
            raise ConfigError("; ".join(problems))

    def _rules(self) -> list[tuple[bool, str]]:
        """What may be wrong with the fields: whether it is, and what is needed."""
        return []

    def at_step(self: N, step_s: int) -> N:
        """The config for a network that reads steps of so many seconds, which it then counts."""
        if step_s == PAPER_STEP_S:
            return self
        fields = self.IN_QUARTER_HOURS.items()
        return replace(self, **{name: scale(getattr(self, name), step_s) for name, scale in fields})

    def for_grid(self: N, grid: str) -> N:
        """The config with the batch size of this grid, unless it has its own."""
        if self.training.batch_size is not None:
            return self
        size = BATCH_SIZES.get(grid, DEFAULT_BATCH_SIZE)
        return replace(self, training=replace(self.training, batch_size=size))

    def variant(self, grid: str) -> str | None:
        """The words for what differs from the default; None if nothing does."""
        return variant_of(self.for_grid(grid), type(self)().for_grid(grid), self.VARIANTS)


Rescaling = Callable[[Any, int], Any]
"""From quarter-hours to steps of so many seconds."""


def rescale_all(quarters: tuple[int, ...], step_s: int) -> tuple[int, ...]:
    """Several numbers of quarter-hours in steps of this length, each once."""
    return tuple(dict.fromkeys(rescale_steps(number, step_s) for number in quarters))


def rescale_width(quarters: int, step_s: int) -> int:
    """The width of a window around a step: as far to both sides, and odd."""
    return 2 * round((quarters // 2) * PAPER_STEP_S / step_s) + 1


def rescale_widths(quarters: tuple[int, ...], step_s: int) -> tuple[int, ...]:
    """The widths of several windows around a step."""
    return tuple(rescale_width(width, step_s) for width in quarters)


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
