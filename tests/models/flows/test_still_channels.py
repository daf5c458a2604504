"""Grids with channels that hardly move or never do: voltages of generators, buses without load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.flows.memory import flow_numbers
from powerphase.models.flows.normalisation import Moments
from powerphase.models.flows.tempflow.model import TempFlow
from powerphase.models.flows.transformer.model import TransformerTempFlow
from powerphase.models.framework.variants import with_variants
from powerphase.models.recurrent.inputs import Window
from tests.models.recurrent.toys import tiny, training_of, waves, windows_of
from tests.models.toys import curve_of

EMPTY, FIXED, QUIET = [1, 4], 2, 6
"""Channels that are zero, that are 1.05 all along, and that move by a thousandth of their size."""

each_flow = pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])


def still_grid() -> np.ndarray:
    values = waves(600)
    values[:, EMPTY], values[:, FIXED] = 0.0, 1.05
    values[:, QUIET] = 1 + 1e-3 * values[:, QUIET]
    return values


def trained(kind: Any, words: list[str], run: Path) -> Any:
    sizes = {"condition": 16, "hidden": 24, "dropout": 0.0}
    budget = {"batches_per_epoch": 10, "batch_size": 8, "learning_rate": 1e-2}
    config = tiny(kind.config_type, 5, budget, **sizes)
    model = kind(with_variants(config, words, kind.config_type.VARIANTS), device="cpu", run=run)
    model.fit(training_of(still_grid()))
    return model


@each_flow
def test_validation_goes_with_training_and_what_is_still_is_drawn_so(
    kind: Any, tmp_path: Path
) -> None:
    model = trained(kind, [], tmp_path)
    curve = curve_of(tmp_path)
    assert all(line["validation_loss"] < line["loss"] + 8 for line in curve)  # a nat per channel
    assert model.outcome["best_epoch"] > 1
    values = model.predict(training_of(still_grid()).validation.context(0)).values
    assert (values[..., EMPTY].abs() < 1e-6).all()
    assert ((values[..., FIXED] - 1.05).abs() < 0.01).all()
    assert ((values[..., QUIET] - 1).abs() < 0.02).all()


@each_flow
def test_validation_explodes_in_the_reference_s_way(kind: Any, tmp_path: Path) -> None:
    trained(kind, ["reference-flow"], tmp_path)
    last = curve_of(tmp_path)[-1]
    assert last["validation_loss"] > last["loss"] + 80  # ten nats per channel, and soon far more


@each_flow
@pytest.mark.parametrize("block", [None, 3])
def test_channels_are_standardised_by_what_is_judged(kind: Any, block: int | None) -> None:
    batches = training_of(still_grid()).batches(4, 0)
    for noise in (1e-3, 0.0):
        network = kind.network_type(tiny(kind.config_type, noise=noise), 8, 16, 6, block)
        network.prepare(batches)
        judged = []
        for number in range(10):
            past, target, _, scale = network.inputs(*batches[number])
            judged.append(network.judged_values(Window(past, target, scale)).made())
        mean, variance = Moments.of(torch.cat(judged))
        centre, width = (mean, (variance + noise**2).sqrt()) if noise else (0 * mean, mean**0)
        torch.testing.assert_close(network.flow.centre, centre)
        torch.testing.assert_close(network.flow.width, width, rtol=1e-3, atol=1e-7)


@each_flow
def test_noise_is_a_matter_of_training_alone(kind: Any) -> None:
    found = []
    for noise in (0.5, 0.0):
        torch.manual_seed(1)
        network = kind.network_type(tiny(kind.config_type, noise=noise, dropout=0.0), 8, 16, 6)
        network.double().eval()
        found.append(network(*windows_of()).loss)
        trains = [network.train()(*windows_of()).loss for _ in range(2)]
        assert (trains[0] != trains[1]) == bool(noise)
    assert torch.equal(*found)


@each_flow
@pytest.mark.parametrize("fast", [False, True])
def test_noise_takes_one_tensor_more_of_rows_and_channels(kind: Any, fast: bool) -> None:
    still, blurred = (
        flow_numbers(kind.config_type(noise=noise), 10, 8, None, fast) for noise in (0.0, 1e-3)
    )
    assert blurred == (still[0], still[1] + 10 * 8)
