"""Variants: a word sets fields, and these fields have that word."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from powerphase.errors import ConfigError, UnknownName
from powerphase.models.framework import (
    SHORT,
    SavedForecaster,
    TrainingConfig,
    Variants,
    apply_variants,
    replace_fields,
    variant_of,
)
from powerphase.registry import MODELS, model_class


@dataclass(frozen=True)
class Config:
    """With three switches, two of which have a word together."""

    one: bool = False
    two: str = "no"
    three: int = 3
    training: TrainingConfig = field(default_factory=TrainingConfig)

    VARIANTS: ClassVar[Variants] = {
        "both": {"one": True, "two": "yes"},
        "one": {"one": True},
        "two": {"two": "yes"},
        **SHORT,
    }


DEFAULT = Config()
WITH_VARIANTS = [name for name in MODELS if issubclass(model_class(name), SavedForecaster)]


def name_of(config: Config) -> str | None:
    return variant_of(config, DEFAULT, Config.VARIANTS)


def test_the_default_has_no_variant() -> None:
    assert name_of(Config()) is None


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_every_variant_of_every_model_round_trips(name: str) -> None:
    kind = model_class(name).config_type
    words = [[word] for word in kind.VARIANTS]
    for chosen in words:
        config = apply_variants(kind(), chosen, kind.VARIANTS)
        assert config.variant("ieee14") == chosen[0]
        assert config.for_grid("ieee14").variant("ieee14") == chosen[0]


def test_a_word_for_several_fields_comes_before_words_for_each() -> None:
    assert name_of(Config(one=True, two="yes")) == "both"
    assert name_of(Config(one=True)) == "one"
    assert name_of(apply_variants(DEFAULT, ["one", "two"], Config.VARIANTS)) == "both"


def test_fields_without_a_word_are_custom() -> None:
    assert name_of(Config(two="maybe")) == "custom"
    assert name_of(Config(one=True, three=4)) == "one-custom"
    assert name_of(Config(one=True, two="maybe")) == "one-custom"


def test_any_smaller_budget_is_short_and_any_larger_custom() -> None:
    assert name_of(replace_fields(DEFAULT, {"training.epochs": 3})) == "short"
    assert name_of(apply_variants(DEFAULT, ["short", "both"], Config.VARIANTS)) == "both-short"
    assert name_of(replace_fields(DEFAULT, {"training.epochs": 300})) == "custom"


def test_a_dotted_name_sets_a_field_within_a_field() -> None:
    expected = replace(DEFAULT, one=True, training=TrainingConfig(epochs=3))
    assert replace_fields(DEFAULT, {"training.epochs": 3, "one": True}) == expected


def test_the_variant_of_a_row_can_be_applied() -> None:
    for name in ("one-short", "both-short", "two"):
        assert name_of(apply_variants(DEFAULT, [name], Config.VARIANTS)) == name


def test_contradicting_words_raise() -> None:
    variants = {**Config.VARIANTS, "three": {"three": 4}, "four": {"three": 5}}
    with pytest.raises(ConfigError, match="three and four"):
        apply_variants(DEFAULT, ["three", "four"], variants)
    apply_variants(DEFAULT, ["both", "one"], variants)  # equal values do not clash


def test_an_unknown_word_raises_and_suggests_the_right_one() -> None:
    with pytest.raises(UnknownName, match=r"'sohrt'.*short"):
        apply_variants(DEFAULT, ["sohrt"], Config.VARIANTS)
