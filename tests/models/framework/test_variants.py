"""Variants: a word sets fields, and fields have that word."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from powerphase.errors import ConfigError, UnknownName
from powerphase.models.framework.configuration import (
    SHORT,
    TrainingConfig,
    Variants,
    apply_variants,
    replace_fields,
    variant_of,
)
from powerphase.models.framework.saved import SavedForecaster
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


def named(config: Config) -> str | None:
    return variant_of(config, DEFAULT, Config.VARIANTS)


def test_the_default_has_no_name() -> None:
    assert named(Config()) is None


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_every_word_of_every_model_sets_what_it_names(name: str) -> None:
    kind = model_class(name).config_type
    words = [[word] for word in kind.VARIANTS]
    for chosen in words:
        made = apply_variants(kind(), chosen, kind.VARIANTS)
        assert made.variant("ieee14") == chosen[0]
        assert made.for_grid("ieee14").variant("ieee14") == chosen[0]


def test_a_word_for_several_fields_goes_before_the_words_for_each() -> None:
    assert named(Config(one=True, two="yes")) == "both"
    assert named(Config(one=True)) == "one"
    assert named(apply_variants(DEFAULT, ["one", "two"], Config.VARIANTS)) == "both"


def test_what_no_word_covers_is_custom() -> None:
    assert named(Config(two="maybe")) == "custom"
    assert named(Config(one=True, three=4)) == "one-custom"
    assert named(Config(one=True, two="maybe")) == "one-custom"


def test_any_smaller_budget_is_short_and_any_larger_custom() -> None:
    assert named(replace_fields(DEFAULT, {"training.epochs": 3})) == "short"
    assert named(apply_variants(DEFAULT, ["short", "both"], Config.VARIANTS)) == "both-short"
    assert named(replace_fields(DEFAULT, {"training.epochs": 300})) == "custom"


def test_a_dotted_name_sets_a_field_within_a_field() -> None:
    wanted = replace(DEFAULT, one=True, training=TrainingConfig(epochs=3))
    assert replace_fields(DEFAULT, {"training.epochs": 3, "one": True}) == wanted


def test_the_name_of_a_row_can_be_asked_for() -> None:
    for name in ("one-short", "both-short", "two"):
        assert named(apply_variants(DEFAULT, [name], Config.VARIANTS)) == name


def test_words_that_contradict_each_other_are_refused() -> None:
    variants = {**Config.VARIANTS, "three": {"three": 4}, "four": {"three": 5}}
    with pytest.raises(ConfigError, match="variants three and four set three differently"):
        apply_variants(DEFAULT, ["three", "four"], variants)
    apply_variants(DEFAULT, ["both", "one"], variants)  # the same twice is none


def test_an_unknown_word_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownName, match="no variant 'sohrt'; did you mean short"):
        apply_variants(DEFAULT, ["sohrt"], Config.VARIANTS)
