"""PowerForge's settings: the paper's values, rejected values, and the names of variants."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from powerphase.cli.quickstart import PRETRAINED
from powerphase.errors import ConfigError
from powerphase.models.framework import BATCH_SIZES, RunFolder, TrainingConfig, restore_config
from powerphase.models.powerforge import ABLATIONS, PowerForge, PowerForgeConfig

CONFIG = PowerForgeConfig()

INVALID: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: 0}, name)
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
    ({"scenarios": 1}, "scenarios"),
    ({"kernels": (5, 4)}, "kernels"),
    ({"kernels": (-3,)}, "kernels"),
    ({"query_steps": 97}, "query_steps"),
    ({"dropout": 1.0}, "dropout"),
    ({"dropout": -0.1}, "dropout"),
    ({"lowest_level": 0.0}, "lowest_level"),
    ({"highest_level": 1.0}, "lowest_level"),
    ({"lowest_level": 0.6, "highest_level": 0.4}, "lowest_level"),
    ({"width_levels": (0.9, 0.1)}, "width_levels"),
    ({"width_levels": (0.1, 0.5, 0.9)}, "width_levels"),
    ({"type_weight_range": (3.0, 0.3)}, "type_weight_range"),
    ({"type_weight_range": (0.3,)}, "type_weight_range"),
    ({"noise_start": 0.0}, "noise_start"),
    ({"temperature": 0.0}, "temperature"),
    ({"deviation_floor": 0.0}, "deviation_floor"),
    ({"volatility_floor": 0.0}, "volatility_floor"),
    ({"voltage_range": 1e-4}, "voltage_range_floor"),
]


@pytest.mark.parametrize(("changes", "field"), INVALID)
def test_invalid_values_are_rejected(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        PowerForgeConfig(**changes)


def test_an_error_names_all_problems() -> None:
    with pytest.raises(ConfigError, match=r"hidden.*scenarios.*dropout"):
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
def test_each_grid_has_the_papers_batch_size(grid: str, size: int) -> None:
    assert CONFIG.for_grid(grid).training.batch_size == size
    assert replace(CONFIG.for_grid(grid), training=CONFIG.training) == CONFIG


def test_a_given_batch_size_is_kept() -> None:
    config = PowerForgeConfig(training=TrainingConfig(batch_size=5))
    assert config.for_grid("pegase9241") is config


def test_the_papers_configuration_is_no_variant() -> None:
    assert CONFIG.variant("pegase9241") is None
    assert CONFIG.for_grid("pegase9241").variant("pegase9241") is None
    assert PowerForgeConfig(training=TrainingConfig(batch_size=8)).variant("pegase9241") is None


@pytest.mark.parametrize("field", ABLATIONS)
def test_an_ablation_is_named_after_the_missing_part(field: str) -> None:
    value = "winner-takes-all" if field == "objective" else False
    changes: dict[str, Any] = {field: value}
    assert replace(CONFIG, **changes).variant("ieee14") == ABLATIONS[field]


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
        ({"voltage_gate": "clamp", "deviation_floor": 1e-4}, {}, "clamp-fine-deviation"),
        ({"still_channels": "skip", "deviation_floor": 1e-4}, {}, "moving-channels"),
        ({"still_channels": "skip"}, {}, "custom"),
        ({"physics": False}, {"criterion": "crps"}, "no-physics-crps-checkpoint"),
    ],
)
def test_a_variant_names_the_differences_from_the_paper(
    changes: dict[str, Any], training: dict[str, Any], name: str
) -> None:
    config = replace(CONFIG, **changes, training=replace(CONFIG.training, **training))
    assert config.variant("ieee14") == name


def saved(config: PowerForgeConfig) -> dict[str, Any]:
    """The config as trainings saved it before gate and criterion were fields."""
    data = asdict(config)
    for name in ("voltage_gate", "still_channels", "volatility_floor"):
        del data[name]
    del data["training"]["criterion"]
    return data


def test_an_earlier_config_is_read_as_what_was_computed_then() -> None:
    data = saved(PowerForgeConfig(deviation_floor=1e-4))
    config = restore_config(PowerForgeConfig, data)
    assert config.variant("ieee14") == "clamp-fine-deviation-crps-checkpoint"
    assert "criterion" not in data["training"]


def test_the_shipped_training_is_read_as_it_was_made() -> None:
    saved_config = RunFolder.open(PRETRAINED).header.config
    config = PowerForge.load(PRETRAINED).config
    assert config.voltage_gate == saved_config.get("voltage_gate", "clamp")
    assert config.training.criterion == saved_config["training"].get("criterion", "crps")
    assert config.deviation_floor == saved_config["deviation_floor"]


@pytest.mark.parametrize("config", [CONFIG, PowerForgeConfig(voltage_gate="clamp")])
def test_a_config_with_all_fields_is_read_as_it_is(config: PowerForgeConfig) -> None:
    assert restore_config(PowerForgeConfig, asdict(config)) == config
