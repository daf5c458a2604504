"""What can be chosen, what it is called, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerphase.errors import ConfigError
from powerphase.models.framework.configuration import replaced
from powerphase.models.framework.variants import with_variants
from powerphase.models.timeprism.config import TimePrismConfig


@pytest.mark.parametrize(
    ("hypotheses", "shape"),
    [(625, (25, 25)), (16, (4, 4)), (12, (3, 4)), (7, (1, 7)), (2, (1, 2)), (24, (4, 6))],
)
def test_trends_are_the_largest_divisor_up_to_the_square_root(
    hypotheses: int, shape: tuple[int, int]
) -> None:
    config = TimePrismConfig(hypotheses=hypotheses)
    assert (config.trends, config.seasons) == shape


@pytest.mark.parametrize("word", TimePrismConfig.VARIANTS)
def test_a_variant_is_called_by_the_word_that_makes_it(word: str) -> None:
    config = with_variants(TimePrismConfig(), [word], TimePrismConfig.VARIANTS)
    assert config.variant("activsg500") == word


def test_a_batch_size_is_no_variant_and_other_choices_are() -> None:
    config = TimePrismConfig()
    assert config.variant("activsg500") is None
    assert replaced(config, {"training.batch_size": 8}).variant("activsg500") is None
    assert replace(config, average_steps=25).variant("activsg500") == "custom"
    both = with_variants(config, ["reference", "sixteen"], config.VARIANTS)
    assert both.variant("activsg500") == "reference-sixteen"


def test_every_variant_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "timeprism.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `timeprism\+([\w-]+)` \|", page, re.M) == list(TimePrismConfig.VARIANTS)


def test_the_budget_is_the_reference_s() -> None:
    training = TimePrismConfig().training
    assert (training.epochs, training.batches_per_epoch, training.batch_size) == (200, 30, None)
    found = (training.learning_rate, training.weight_decay, training.clip_norm, training.patience)
    assert found == (1e-3, 1e-8, 10, 10)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hypotheses": 1}, "hypotheses must be 2 or more"),
        ({"average_steps": 6}, "average_steps must be odd"),
        ({"least_scale": 0.0}, "least_scale must be above 0"),
        ({"least_temperature": -1.0}, "least_temperature must be above 0"),
        ({"slack": 1.0}, "slack must be in"),
        ({"cooling": 0.0}, "cooling must be in"),
        ({"score_weight": -1.0}, "score_weight must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TimePrismConfig(**changes)
