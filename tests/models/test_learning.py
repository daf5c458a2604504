"""Every network learns the day and the last value from a record in which both are planted.

The networks are small. Their settings are of the kind with which they learn on large grids: wide
layers that start small and learn slowly, and standardised targets. A flat line has a slope of 0,
and a first hour as bad as the last.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from powerphase.models.framework import make_config
from powerphase.registry import model_class
from tests.models.planted import DAY, planted_training, recover

LEAST_SLOPE, MOST_FIRST_TO_LAST = 0.8, 0.95
CONTEXT = 3 * DAY  # enough for their scale and their lags; a week takes twice as long
EPOCH_STEPS = 50
BUDGET = {"batches_per_epoch": EPOCH_STEPS, "batch_size": 16, "learning_rate": 5e-3}

LAGGED = {"lags": [4, 8, 48], "lag_inputs": 10, "dropout": 0.0}  # 1, 2 and 12 hours
LSTM = {**LAGGED, "cells": 16}
STANDARDISED = {**LSTM, "standardise": True}
FLOW = {"condition": 16, "hidden": 16, "coupling_inputs": 2, "paths": 30}
TRANSFORMER = {"width": 16, "heads": 4, "layers": 1, "feed_forward": 32, "couplings": 2}
TACTIS = {
    "bag": 4,
    "validation_bags": 1,
    "noise": 1.0,
    "encoder_layers": 1,
    "flow_layers": 1,
    "paths": 50,
    "training": {"learning_rate": 3e-3},
}
DIFFUSION = {
    "condition": 16,
    "most_noise": 0.4,
    "rows": 800,
    "diffusion_steps": 16,
    "blocks": 2,
    "paths": 15,
}

NETWORKS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "deepar": (300, {**STANDARDISED, "noise": True, "factor_norm": 0.3, "paths": 50}),
    "timemcl": (300, {**STANDARDISED, "hypotheses": 8}),
    "tempflow": (300, {**LSTM, **FLOW}),
    "transformer-tempflow": (300, {**LAGGED, **FLOW, **TRANSFORMER}),
    "timegrad": (300, {**STANDARDISED, **DIFFUSION, "noise": True}),
    "timeprism": (300, {"hypotheses": 25, "scaler": "mean-deviation", "average_steps": 25}),
    "tactis-2": (600, TACTIS),
}
"""Steps, and settings."""


@pytest.mark.parametrize("name", NETWORKS)
def test_it_learns_the_day_and_the_last_value(name: str) -> None:
    steps, settings = NETWORKS[name]
    budget = {**BUDGET, **settings.get("training", {}), "epochs": steps // EPOCH_STEPS}
    kind: Any = model_class(name)
    config = make_config(kind.config_type, {**settings, "training": budget})
    model, train = kind(config, seed=1, device="cpu"), planted_training(CONTEXT)
    model.fit(train)
    recovery = recover(model, train)
    assert (recovery.slope > LEAST_SLOPE).all(), recovery.slope
    assert recovery.first_to_last.mean() < MOST_FIRST_TO_LAST, recovery.first_to_last
