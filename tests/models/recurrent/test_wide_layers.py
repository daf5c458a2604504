"""Rates and starts of wide layers, and standardised targets."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.deepar import DeepARConfig, DeepARNetwork
from powerphase.models.flows import TempFlowConfig, TempFlowNetwork
from powerphase.models.framework import Trainer, make_optimiser
from powerphase.models.recurrent import RecurrentNetwork, Window
from powerphase.models.timegrad import TimeGradConfig, TimeGradNetwork
from powerphase.models.timemcl import TimeMCLConfig, TimeMCLNetwork
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, waves, windows_of
from tests.models.toys import CPU, Shelf, same_weights

STANDARDISED: list[tuple[Any, Any]] = [
    (DeepARNetwork, DeepARConfig),
    (TimeMCLNetwork, TimeMCLConfig),
    (TimeGradNetwork, TimeGradConfig),
]


def network_of(kind: Any, config: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    return kind(tiny(config, **changes), 8, CONTEXT, HORIZON)


def test_a_wide_layer_starts_and_learns_as_if_it_had_fewer_inputs() -> None:
    plain, narrow = (network_of(TimeMCLNetwork, TimeMCLConfig, lag_inputs=n) for n in (None, 6.0))
    share = 6 / (8 * len(LAGS))
    torch.testing.assert_close(narrow.encoder.project, sqrt(share) * plain.encoder.project)
    before = {name: weight.detach().clone() for name, weight in narrow.named_parameters()}
    optimiser = make_optimiser(narrow, narrow.config.training, CPU)
    for weight in narrow.parameters():
        weight.grad = torch.ones_like(weight)
    optimiser.step()
    rate = narrow.config.training.learning_rate
    for name, weight in narrow.named_parameters():
        if weight.requires_grad:
            factor = share if name == "encoder.project" else 1.0
            step = (weight - before[name]).detach().abs().mean().item()
            assert step == pytest.approx(factor * rate, rel=1e-3)


def test_more_inputs_than_there_are_change_nothing() -> None:
    sizes = {"lag_inputs": 1e3, "coupling_inputs": 1e3}
    plain, same = (network_of(TempFlowNetwork, TempFlowConfig, **s) for s in ({}, sizes))
    assert same_weights(plain, same)
    assert set(same.rate_factors.values()) == {1.0}


def test_couplings_start_and_learn_as_if_they_read_fewer_channels() -> None:
    plain, narrow = (
        network_of(TempFlowNetwork, TempFlowConfig, coupling_inputs=n) for n in (None, 1.0)
    )
    weight = "flow.couplings.0.still"
    expected = plain.get_parameter(weight) / sqrt(4)
    torch.testing.assert_close(narrow.get_parameter(weight), expected)
    assert narrow.rate_factors[weight] == 1 / 4


def test_factors_have_the_gain_and_nothing_else_does() -> None:
    plain, slow = (network_of(DeepARNetwork, DeepARConfig, factor_norm=n) for n in (None, 0.5))
    hidden = torch.randn(3, plain.encoder.width)
    unscaled, other = plain.head(hidden), slow.head(hidden)
    torch.testing.assert_close(other.factors[0], unscaled.factors[0] * 0.5 / sqrt(8))
    assert torch.equal(other.mean, unscaled.mean)
    assert torch.equal(other.diagonal, unscaled.diagonal)


@pytest.mark.parametrize(("kind", "config"), STANDARDISED)
def test_the_head_sees_values_of_mean_zero_and_deviation_one(kind: Any, config: Any) -> None:
    values = waves(400) * np.array([1, 0.1, 10, 1] * 2) + 20
    values[:, 1] = 1.02
    train = training_of(values)
    net = network_of(kind, config, standardise=True)
    batches = train.batches(32, 0)
    net.prepare(batches)
    windows = [Window(*(net.inputs(*batches[k])[part] for part in (0, 1, 3))) for k in range(10)]
    heads = [net.eval()._standardise(window) for window in windows]
    seen = torch.cat([head.scaled(slice(None), max(LAGS)) for head in heads])
    moving = [0, 2, 3, 4, 5, 6, 7]
    torch.testing.assert_close(seen.mean((0, 1))[moving], torch.zeros(7), atol=1e-3, rtol=0)
    torch.testing.assert_close(seen.std((0, 1))[moving], torch.ones(7), atol=1e-2, rtol=0)
    assert net.width[1] == pytest.approx(net.config.least_deviation, rel=1e-2)
    restored = net.restore(heads[0].past)
    torch.testing.assert_close(restored, windows[0].scaled(slice(None))[:, :CONTEXT])


def test_noise_gives_a_still_channel_unit_deviation_in_training_alone() -> None:
    values = waves(400)
    values[:, 1] = 1.0
    batches = training_of(values).batches(64, 0)
    net = network_of(DeepARNetwork, DeepARConfig, standardise=True, noise=True)
    net.prepare(batches)
    context, target = batches[0]
    past, target, _, scale = net.inputs(context, target)
    deviations = [
        net.train(mode)._standardise(Window(past, target, scale)).past[..., 1].std().item()
        for mode in (True, False)
    ]
    assert deviations[0] == pytest.approx(1, abs=0.1)
    assert deviations[1] < 0.01


@pytest.mark.parametrize(("kind", "config"), STANDARDISED)
def test_forecasts_scale_with_what_the_head_is_told(kind: Any, config: Any) -> None:
    """Twice the width and a moved centre move draws in the same way, before they are fed back."""
    net: RecurrentNetwork = network_of(kind, config, standardise=True)
    drawn = torch.randn(2, 3, 8)
    net.centre.fill_(3.0)
    net.width.fill_(2.0)
    torch.testing.assert_close(net.restore(drawn), 3 + 2 * drawn)
    context, _ = windows_of(dtype=torch.float32)
    scenarios = net.eval().scenarios(context, 0)
    assert scenarios.values.isfinite().all()


class Interrupted(Shelf):
    """Checkpoints of a training that continues from the state it is given."""

    def __init__(self, saved: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None) -> None:
        super().__init__()
        self._start = saved

    def load_state(self) -> Any:
        return self._start


def test_a_training_with_several_rates_continues_bit_for_bit() -> None:
    changes = {"lag_inputs": 2.0, "standardise": True, "training": {"patience": 0, "factor": 0.3}}
    train = training_of(waves())

    def run(epochs: int, saved: Any) -> tuple[Any, Interrupted]:
        net = network_of(TimeMCLNetwork, TimeMCLConfig, epochs=epochs, **changes)
        shelf = Interrupted(saved)
        Trainer(net, train, net.config.training, 3, CPU, shelf).run()
        return net, shelf

    whole, _ = run(6, None)
    _, shelf = run(3, None)
    continued, _ = run(6, shelf.saved)
    assert same_weights(whole, continued)
