"""Equal chances: every network has the same budget, and its tuned setting is its best trial."""

import json
from pathlib import Path
from typing import Any

import pytest

from powerphase.grid import CATALOG
from powerphase.models import NeuralForecaster
from powerphase.models.framework import (
    BATCH_SIZES,
    DEFAULT_BATCH_SIZE,
    apply_variants,
    make_config,
    with_training,
)
from powerphase.registry import MODELS, model_class

NETWORKS = [name for name in MODELS if issubclass(model_class(name), NeuralForecaster)]
TRIALS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks/measured/trials.json").read_text()
)
MOST_TRIALS = 6


def trials_of(name: str) -> list[dict[str, Any]]:
    return [trial for trial in TRIALS if trial["model"] == name and trial["options"]]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_6000_steps_of_the_grids_batch(name: str) -> None:
    for grid in CATALOG:
        for words in ([], ["tuned"]):
            kind = model_class(name).config_type
            config = apply_variants(kind(), words, kind.VARIANTS).for_grid(grid)
            assert config.training.steps == 6000
            assert config.training.batch_size == BATCH_SIZES.get(grid, DEFAULT_BATCH_SIZE)
            assert config.variant(grid) == ("tuned" if words else None)
            smaller = with_training(config, {"batch_size": 1})
            assert smaller.variant(grid) == ("tuned-custom" if words else "custom")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tuned_setting_is_the_best_of_at_most_six_trials(name: str) -> None:
    trials = trials_of(name)
    settings = {json.dumps(trial["options"], sort_keys=True) for trial in trials}
    assert 1 < len(settings) <= MOST_TRIALS
    kind = model_class(name).config_type
    best = min(trials, key=lambda trial: float(trial["crps"]))
    assert make_config(kind, best["options"]) == apply_variants(kind(), ["tuned"], kind.VARIANTS)
