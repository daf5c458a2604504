"""Grids with constant or nearly constant channels: voltages of generators, buses without load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.flows import TempFlow, TransformerTempFlow, flow_numbers
from powerphase.models.framework import apply_variants
from powerphase.models.recurrent import Moments, Window
from tests.models.recurrent.toys import tiny, training_of, waves, windows_of
from tests.models.toys import curve_of

EMPTY, FIXED, QUIET = [1, 4], 2, 6
"""Channels that are always 0, always 1.05, and that move by a thousandth of their size."""

each_flow = pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])


def constant_grid() -> np.ndarray:
    values = waves(600)
    values[:, EMPTY], values[:, FIXED] = 0.0, 1.05
    values[:, QUIET] = 1 + 1e-3 * values[:, QUIET]
    return values


def train(kind: Any, variants: list[str], run: Path) -> Any:
    sizes = {"condition": 16, "hidden": 24, "dropout": 0.0}
    budget = {"batches_per_epoch": 10, "batch_size": 8, "learning_rate": 1e-2}
    config = tiny(kind.config_type, 5, budget, **sizes)
    model = kind(apply_variants(config, variants, kind.config_type.VARIANTS), device="cpu", run=run)
    model.fit(training_of(constant_grid()))
    return model


@each_flow
def test_validation_follows_training_and_constant_channels_are_forecast_constant(
    kind: Any, tmp_path: Path
) -> None:
    model = train(kind, [], tmp_path)
    curve = curve_of(tmp_path)
    assert all(line["validation_loss"] < line["loss"] + 8 for line in curve)  # a nat per channel
    assert model.outcome["best_epoch"] > 1
    values = model.predict(training_of(constant_grid()).validation.context(0)).values
    assert (values[..., EMPTY].abs() < 1e-6).all()
    assert ((values[..., FIXED] - 1.05).abs() < 0.01).all()
    assert ((values[..., QUIET] - 1).abs() < 0.02).all()


@each_flow
def test_validation_diverges_with_the_reference_flow(kind: Any, tmp_path: Path) -> None:
    train(kind, ["reference-flow"], tmp_path)
    last = curve_of(tmp_path)[-1]
    assert last["validation_loss"] > last["loss"] + 80  # more than ten nats per channel


@each_flow
@pytest.mark.parametrize("block", [None, 3])
def test_channels_are_standardised_by_the_values_of_the_loss(kind: Any, block: int | None) -> None:
    batches = training_of(constant_grid()).batches(4, 0)
    for noise in (1e-3, 0.0):
        network = kind.network_type(tiny(kind.config_type, noise=noise), 8, 16, 6, block)
        network.prepare(batches)
        values = []
        for number in range(10):
            past, target, _, scale = network.inputs(*batches[number])
            values.append(network.loss_values(Window(past, target, scale)).compute())
        mean, variance = Moments.of(torch.cat(values))
        centre, width = (mean, (variance + noise**2).sqrt()) if noise else (0 * mean, mean**0)
        torch.testing.assert_close(network.flow.centre, centre)
        torch.testing.assert_close(network.flow.width, width, rtol=1e-3, atol=1e-7)


@each_flow
def test_noise_is_added_only_in_training(kind: Any) -> None:
    losses = []
    for noise in (0.5, 0.0):
        torch.manual_seed(1)
        network = kind.network_type(tiny(kind.config_type, noise=noise, dropout=0.0), 8, 16, 6)
        network.double().eval()
        losses.append(network(*windows_of()).loss)
        repeated = [network.train()(*windows_of()).loss for _ in range(2)]
        assert (repeated[0] != repeated[1]) == bool(noise)
    assert torch.equal(*losses)


@each_flow
@pytest.mark.parametrize("fast", [False, True])
def test_noise_takes_one_more_tensor(kind: Any, fast: bool) -> None:
    without, with_noise = (
        flow_numbers(kind.config_type(noise=noise), 10, 8, None, fast) for noise in (0.0, 1e-3)
    )
    assert with_noise == (without[0], without[1] + 10 * 8)
