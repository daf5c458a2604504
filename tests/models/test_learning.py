"""Every network learns the day and the last value from a record in which both are planted.

The networks are small, and have the settings of their `tuned` variants. The bounds are far from
what a flat line gives: a slope of 0, and a first hour as bad as the last.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from powerphase.models.framework import make_config
from powerphase.registry import model_class
from tests.models.planted import Recovery, planted_training, recover

LEAST_SLOPE, MOST_FIRST_TO_LAST = 0.8, 0.8
BUDGET = {"batches_per_epoch": 50, "batch_size": 16, "learning_rate": 5e-3}

LAGGED = {"lags": [1, 2, 12], "lag_inputs": 10, "cells": 16, "dropout": 0.0, "paths": 50}
STANDARDISED = {**LAGGED, "standardise": True}
FLOW = {"condition": 16, "hidden": 16, "coupling_inputs": 2}

NETWORKS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "deepar": (6, {**STANDARDISED, "noise": True, "factor_norm": 0.3}),
    "timemcl": (
        6,
        {k: v for k, v in STANDARDISED.items() if k != "paths"} | {"hypotheses": 8},
    ),
    "tempflow": (10, {**LAGGED, **FLOW}),
    "transformer-tempflow": (
        10,
        {k: v for k, v in LAGGED.items() if k != "cells"}
        | {**FLOW, "width": 16, "heads": 4, "layers": 1},
    ),
    "timegrad": (
        10,
        {
            **STANDARDISED,
            "noise": True,
            "condition": 16,
            "diffusion_steps": 20,
            "blocks": 2,
            "rows": 400,
        },
    ),
    "timeprism": (6, {"hypotheses": 25, "scaler": "mean-deviation"}),
    "tactis-2": (20, {"bag": 4, "validation_bags": 1, "paths": 50}),
}
"""Epochs of 50 steps, and settings."""


@pytest.mark.parametrize("name", NETWORKS)
def test_it_learns_the_day_and_the_last_value(name: str) -> None:
    epochs, settings = NETWORKS[name]
    kind: Any = model_class(name)
    config = make_config(kind.config_type, {**settings, "training": {**BUDGET, "epochs": epochs}})
    train = planted_training()
    recovery = recover(kind(config, seed=1, device="cpu").fit(train), train)
    assert_learnt(recovery)


def assert_learnt(recovery: Recovery) -> None:
    """Raise if the forecasts of a kind miss the day or the last value."""
    torch.testing.assert_close(
        recovery.slope.clamp(LEAST_SLOPE, 1.2), recovery.slope, rtol=0, atol=0
    )
    assert (recovery.first_to_last < MOST_FIRST_TO_LAST).all(), recovery.first_to_last
