"""The settings of TimePrism, the names of variants, and rejected values."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerphase.errors import ConfigError
from powerphase.models.framework import apply_variants, replace_fields
from powerphase.models.timeprism import TimePrismConfig


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
def test_every_variant_reports_its_name(word: str) -> None:
    config = apply_variants(TimePrismConfig(), [word], TimePrismConfig.VARIANTS)
    assert config.variant("activsg500") == word


def test_the_grids_batch_size_makes_no_variant_and_other_changes_do() -> None:
    config = TimePrismConfig()
    assert config.variant("activsg500") is None
    assert config.for_grid("activsg500").variant("activsg500") is None
    assert replace_fields(config, {"training.batch_size": 8}).variant("activsg500") == "custom"
    assert replace(config, average_steps=25).variant("activsg500") == "custom"
    both = apply_variants(config, ["reference", "sixteen"], config.VARIANTS)
    assert both.variant("activsg500") == "reference-sixteen"


def test_the_page_lists_every_variant() -> None:
    page = (Path(__file__).parents[3] / "docs" / "timeprism.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `timeprism\+([\w-]+)` \|", page, re.M) == list(TimePrismConfig.VARIANTS)


def test_the_training_settings_are_the_references() -> None:
    training = TimePrismConfig().training
    assert (training.epochs, training.batches_per_epoch, training.batch_size) == (200, 30, None)
    optimiser = (
        training.learning_rate,
        training.weight_decay,
        training.clip_norm,
        training.patience,
    )
    assert optimiser == (1e-3, 1e-8, 10, 10)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hypotheses": 1}, "hypotheses"),
        ({"average_steps": 6}, "average_steps"),
        ({"least_scale": 0.0}, "least_scale"),
        ({"least_temperature": -1.0}, "least_temperature"),
        ({"slack": 1.0}, "slack"),
        ({"cooling": 0.0}, "cooling"),
        ({"score_weight": -1.0}, "score_weight"),
    ],
)
def test_invalid_values_are_rejected(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        TimePrismConfig(**changes)
