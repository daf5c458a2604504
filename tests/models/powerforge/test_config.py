"""PowerForge's constants: the paper's, what may be changed, and how that is called."""

from dataclasses import replace

import pytest

from powerphase.errors import ConfigError
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.powerforge.config import ABLATIONS, BATCH_SIZES, PowerForgeConfig

CONFIG = PowerForgeConfig()

BROKEN = [
    *(
        ({name: 0}, f"{name} must be 1 or more")
        for name in (
            "segments",
            "segment_steps",
            "query_steps",
            "bias_steps",
            "hidden",
            "tokens",
            "scale_hidden",
            "node_embedding",
            "type_embedding",
            "calibration_batches",
        )
    ),
    ({"scenarios": 1}, "scenarios must be 2 or more"),
    ({"kernels": (5, 4)}, "kernels must be odd numbers"),
    ({"kernels": (-3,)}, "kernels must be odd numbers"),
    ({"query_steps": 97}, "query_steps must lie within a segment"),
    ({"dropout": 1.0}, "dropout must be in"),
    ({"dropout": -0.1}, "dropout must be in"),
    ({"lowest_level": 0.0}, "0 < lowest_level < highest_level < 1"),
    ({"highest_level": 1.0}, "0 < lowest_level < highest_level < 1"),
    ({"lowest_level": 0.6, "highest_level": 0.4}, "0 < lowest_level < highest_level < 1"),
    ({"width_levels": (0.9, 0.1)}, "width_levels must be two ascending numbers"),
    ({"width_levels": (0.1, 0.5, 0.9)}, "width_levels must be two ascending numbers"),
    ({"type_weight_range": (3.0, 0.3)}, "type_weight_range must be"),
    ({"type_weight_range": (0.3,)}, "type_weight_range must be"),
    ({"noise_start": 0.0}, "noise_start must be above 0"),
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"deviation_floor": 0.0}, "deviation_floor must be above 0"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_what_makes_no_model_is_refused(changes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PowerForgeConfig(**changes)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"hidden must .*; scenarios must .*; dropout must"):
        PowerForgeConfig(hidden=0, scenarios=1, dropout=2.0)


def test_the_defaults_are_the_papers_table() -> None:
    table = {
        "hidden": 128,
        "kernels": (5, 25, 97),
        "segment_steps": 96,
        "tokens": 64,
        "node_embedding": 8,
        "type_embedding": 2,
        "dropout": 0.1,
        "scenarios": 16,
        "bridge_scale": 1.0,
        "segments": 7,
        "query_steps": 8,
        "bias_steps": 8,
        "temperature": 0.5,
        "stabiliser": 1e-8,
        "objective": "ordered-quantile",
        "lowest_level": 0.05,
        "highest_level": 0.95,
        "law_mean_weight": 5e-3,
        "law_concentration_weight": 1e-3,
        "voltage_weight": 0.05,
        "angle_weight": 0.01,
        "width_weight": 0.002,
        "width_levels": (0.1, 0.9),
        "width_cap": 1.0,
        "jitter_weight": 0.001,
        "type_weight_penalty": 2e-4,
        "type_weight_range": (0.3, 3.0),
        "calibration_batches": 40,
        "gate_weight": 2e-4,
        "voltage_range": 0.05,
        "voltage_range_floor": 1e-4,
        "noise": "gaussian",
        "student_degrees": 3.0,
    }
    assert {name: getattr(CONFIG, name) for name in table} == table
    assert CONFIG.training.learning_rate == 1e-3
    assert CONFIG.training.weight_decay == 1e-6


@pytest.mark.parametrize(("grid", "size"), [*BATCH_SIZES.items(), ("ieee14", 32)])
def test_each_grid_has_its_batch_size(grid: str, size: int) -> None:
    assert CONFIG.for_grid(grid).training.batch_size == size
    assert replace(CONFIG.for_grid(grid), training=CONFIG.training) == CONFIG


def test_a_batch_size_that_is_given_stays() -> None:
    given = PowerForgeConfig(training=TrainingConfig(batch_size=5))
    assert given.for_grid("pegase9241") is given


def test_the_papers_recipe_has_no_name() -> None:
    assert CONFIG.variant("pegase9241") is None
    assert CONFIG.for_grid("pegase9241").variant("pegase9241") is None
    assert PowerForgeConfig(training=TrainingConfig(batch_size=8)).variant("pegase9241") is None


@pytest.mark.parametrize("field", ABLATIONS)
def test_an_ablation_is_called_by_what_is_missing(field: str) -> None:
    value = "winner-takes-all" if field == "objective" else False
    assert replace(CONFIG, **{field: value}).variant("ieee14") == ABLATIONS[field]


@pytest.mark.parametrize(
    ("changes", "training", "name"),
    [
        ({}, {"epochs": 10}, "short"),
        ({}, {"batches_per_epoch": 5}, "short"),
        ({}, {"epochs": 400, "batches_per_epoch": 5}, "short"),
        ({}, {"epochs": 400}, "custom"),
        ({}, {"epochs": 300, "batches_per_epoch": 20}, "custom"),
        ({}, {"batch_size": 7}, "custom"),
        ({}, {"learning_rate": 1e-4}, "custom"),
        ({}, {"epochs": 10, "learning_rate": 1e-4}, "short-custom"),
        ({"hidden": 64}, {}, "custom"),
        ({"bridge": False}, {"epochs": 10}, "no-bridge-short"),
        ({"mixer": False, "anchor": False}, {}, "no-anchor-no-mixer"),
        ({"mixer": False, "hidden": 64}, {"epochs": 10}, "no-mixer-short-custom"),
    ],
)
def test_a_variant_says_what_is_not_the_papers(changes, training, name: str) -> None:
    config = replace(CONFIG, **changes, training=replace(CONFIG.training, **training))
    assert config.variant("ieee14") == name
