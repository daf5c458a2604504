"""Networks with forecasts as inputs: they learn a planted wind that only the forecast knows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ForecastError
from powerphase.issued import Issued, IssuedSeries
from powerphase.metrics import Fan, crps
from powerphase.models.framework import KnownForecasts, describe, make_config
from powerphase.registry import model_class
from powerphase.scenarios import Context, Known, Record, Training, Windows
from tests.models.planted import DAY, HORIZON, planted_training, planted_values

CONTEXT, N_DAYS, N_TRAINING = 3 * DAY, 150, 120
LEADS, ISSUE_HOURS = 36, 6
BUDGET = {"batches_per_epoch": 40, "batch_size": 16, "learning_rate": 1e-2, "epochs": 3}
LSTM = {"lags": [4, 8, 48], "lag_inputs": 10, "dropout": 0.0, "cells": 16, "standardise": True}

NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "deepar": {**LSTM, "noise": True, "factor_norm": 0.3, "paths": 50},
    "timemcl": {**LSTM, "hypotheses": 8},
    "powerforge": {"segments": 2, "hidden": 16, "kernels": [5], "calibration_batches": 5},
}


def windy_training() -> Training:
    """Channels that follow a wind, which changes from day to day, and forecasts that know it."""
    n_steps = N_DAYS * DAY
    rng = np.random.default_rng(7)
    knots = rng.normal(size=2 * N_DAYS + 1)
    wind = np.interp(np.arange(n_steps) / (DAY / 2), np.arange(len(knots)), knots)
    calm = planted_training(CONTEXT).layout
    values = planted_values(n_steps) + 0.3 * wind[:, None]
    time = np.datetime64("2015-01-01", "s") + 3600 * np.arange(n_steps)
    issue = np.arange(0, n_steps - LEADS, ISSUE_HOURS)
    valid = issue[:, None] + np.arange(LEADS)
    issued = np.broadcast_to(issue[:, None], valid.shape)
    megawatts = (5e3 + 1e3 * wind[valid]).astype(np.float32)
    series = IssuedSeries(
        "wind", "MW", *(x.ravel() for x in (time[issued], time[valid], megawatts))
    )

    def record(n: int) -> Record:
        return Record(
            calm,
            time[:n],
            lambda steps, channels: values[steps, channels].astype(np.float32),
            read_forecasts=lambda: Issued([series]),
        )

    n_training = N_TRAINING * DAY
    origins = np.arange(n_training + CONTEXT, n_steps - LEADS - HORIZON, 31)
    return Training(record(n_training), Windows(record(n_steps), origins, CONTEXT, HORIZON))


def trained(name: str, train: Training, informed: bool) -> Any:
    kind: Any = model_class(name)
    settings = {**NETWORKS[name], "informed": informed, "training": BUDGET}
    model = kind(make_config(kind.config_type, settings), seed=1, device="cpu")
    model.fit(train)
    return model


def mean_crps(model: Any, train: Training) -> float:
    scores = [
        crps(Fan.of(model.predict(context)), target).mean()
        for context, target in train.validation.load(16)
    ]
    return float(torch.stack(scores).mean())


@pytest.mark.parametrize("name", NETWORKS)
def test_it_learns_what_only_the_forecast_knows(name: str) -> None:
    train = windy_training()
    informed, uninformed = (
        mean_crps(trained(name, train, is_informed), train) for is_informed in (True, False)
    )
    assert informed < 0.75 * uninformed


@pytest.mark.parametrize("name", NETWORKS)
def test_a_task_without_forecasts_is_refused(name: str) -> None:
    with pytest.raises(ForecastError, match="informed"):
        trained(name, planted_training(CONTEXT), True)


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_state_the_switch_only_where_it_is_on(name: str) -> None:
    kind: Any = model_class(name)
    off, on = (kind(make_config(kind.config_type, part)) for part in ({}, {"informed": True}))
    assert "informed" not in describe(off).config
    assert describe(on).config["informed"] is True
    assert on.config.variant("ieee14") == "informed"


def test_what_was_not_issued_counts_as_average() -> None:
    values = torch.tensor([[[7.0], [torch.nan], [5.0]]])
    known = Known(("wind",), ("MW",), values, np.full((1, 3, 1), "2015-01-01", "datetime64[s]"), 1)
    time = np.datetime64("2015-01-01", "s") + 3600 * np.arange(3)
    layout = planted_training(CONTEXT).layout
    context = Context(torch.zeros(1, 2, layout.n_channels), time[None], layout, None, known)
    network = KnownForecasts()
    network.mean[2], network.size[2] = 5.0, 2.0
    expected = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    torch.testing.assert_close(network(context), expected)
