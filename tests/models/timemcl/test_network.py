"""TimeMCL: its loss against the plain form, its paths against teacher forcing, what it learns."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.errors import ConfigError
from powerphase.models.framework.variants import with_variants
from powerphase.models.recurrent.inputs import Window
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.model import TimeMCL
from powerphase.models.timemcl.network import TimeMCLNetwork
from powerphase.scenarios import Context, Scenarios
from tests.models.recurrent.toys import (
    CONTEXT,
    HORIZON,
    LAGS,
    tiny,
    training_of,
    window,
    windows_of,
)

REACH = max(LAGS)


def network_of(block: int | None = None, **changes: Any) -> TimeMCLNetwork:
    torch.manual_seed(1)
    config = tiny(TimeMCLConfig, **{"condition": 7, "hypotheses": 4, **changes})
    return TimeMCLNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()


def plain_loss(network: TimeMCLNetwork) -> Tensor:
    """The relaxed loss with a linear layer for each hypothesis, as the reference writes it."""
    past, target, clock, scale = network.inputs(*windows_of())
    known = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, REACH:] / scale[:, None]
    head, count = network.head, network.config.hypotheses
    made = [F.linear(known, head.weight[k], head.bias[k, :, 0]) for k in range(count)]
    errors = torch.stack([(one - values).square().sum(2).mean(1) for one in made], dim=1)
    losses, winners = [], errors.argmin(1)
    for error, winner in zip(errors, winners, strict=True):
        others = torch.cat([error[:winner], error[winner + 1 :]])
        losses.append(0.9 * error[winner] + 0.1 * others.mean())
    likely = [torch.sigmoid(F.linear(known, head.score.weight[k], head.score.bias[k])).mean(1)
              for k in range(count)]  # fmt: skip
    truth = F.one_hot(winners, count).double()
    score = F.binary_cross_entropy(torch.stack(likely, dim=1), truth)
    return torch.stack(losses).mean() + 0.5 * score


@pytest.mark.parametrize("block", [None, 1, 3])
def test_the_loss_and_its_gradients_are_those_of_the_plain_form(block: int | None) -> None:
    network = network_of(block)
    trained = [one for one in network.parameters() if one.requires_grad]
    found, expected = network(*windows_of()).loss, plain_loss(network)
    torch.testing.assert_close(found, expected)
    pairs = zip(torch.autograd.grad(found, trained), torch.autograd.grad(expected, trained),
                strict=True)  # fmt: skip
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


def test_parts_tell_of_the_winners() -> None:
    network, (context, target) = network_of(), windows_of(2)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.tensor([0.0, 9, 99, 999])[:, None, None].expand(-1, 8, 1))
    parts = network(context, target).parts
    assert parts["winners"] == 1
    network.config = tiny(TimeMCLConfig, objective="plain")
    found = network(context, target).parts
    assert found["error"] == found["winner's error"] < parts["error"]


def forced(network: TimeMCLNetwork, context: Context, made: Tensor) -> tuple[Tensor, Tensor]:
    """What the encoder knows in the horizon when it is told one path, and what feeds it."""
    scale = network.see(context).scale
    told = Window(context.past, made, scale)
    clock = network._clock(context)
    return network.encoder(told, clock)[:, -HORIZON:], network.encoder.shifted(told, clock)


@pytest.mark.parametrize("at_once", [None, 3])
@torch.no_grad()
def test_each_hypothesis_is_fed_with_its_own_values(at_once: int | None) -> None:
    network, (context, _) = network_of(), windows_of()
    network.paths_at_once = at_once
    found, scale, head = network.scenarios(context, 1), network.see(context).scale, network.head
    scores = []
    for k in range(4):
        known, _ = forced(network, context, found.values[:, k])
        expected = F.linear(known, head.weight[k], head.bias[k, :, 0]) * scale[:, None]
        torch.testing.assert_close(found.values[:, k], expected)
        scores.append(torch.sigmoid(head.score(known)[..., k]).mean(1))
    score = torch.stack(scores, dim=1)
    expected = (score / score.sum(1, keepdim=True))[..., None].expand_as(found.weights)
    torch.testing.assert_close(found.weights, expected)


@torch.no_grad()
def test_a_leaking_state_is_that_of_the_hypothesis_before() -> None:
    network, (context, _) = network_of(leak=True), windows_of()
    found, seen, head = network.scenarios(context, 1), network.see(context), network.head
    state = seen.state
    for k in range(4):
        _, gates = forced(network, context, found.values[:, k])
        known, state = network.encoder.run(gates[:, -HORIZON:], state)
        expected = F.linear(known, head.weight[k], head.bias[k, :, 0]) * seen.scale[:, None]
        torch.testing.assert_close(found.values[:, k], expected)
    clean = network_of().scenarios(context, 1).values
    torch.testing.assert_close(found.values[:, 0], clean[:, 0])
    assert not torch.allclose(found.values[:, 1], clean[:, 1])


@torch.no_grad()
def test_resamples_are_hypotheses_drawn_by_weight_for_each_window_anew() -> None:
    network, (context, _) = network_of(), windows_of()
    network.head.score.weight.zero_()  # all windows have the same weights, but not the same draws
    network.head.score.bias.copy_(torch.tensor([3.0, 0, -3, -9]))
    whole = network.scenarios(context, 1)
    network.config = tiny(TimeMCLConfig, condition=7, hypotheses=4, resamples=2000)
    drawn = network.scenarios(context, 1)
    assert isinstance(drawn, Scenarios)
    same = (drawn.values[:, :, None] == whole.values[:, None]).flatten(3).all(3)
    assert same.any(2).all()
    torch.testing.assert_close(same.double().mean(1), whole.weights[..., 0], rtol=0, atol=0.04)
    assert not torch.equal(same[0], same[1])
    alone = network.scenarios(window(context, 1), 1)
    torch.testing.assert_close(alone.values[0], drawn.values[1])
    assert torch.equal(drawn.weights, torch.full_like(drawn.weights, 1 / 2000))


def test_steps_are_counted_in_training_alone() -> None:
    network = network_of()
    network(*windows_of())
    assert network.steps == 0
    network.train()
    network(*windows_of())
    network(*windows_of())
    assert network.steps == 2
    assert "steps" in network.state_dict()


def test_both_modes_are_found_with_their_frequencies() -> None:
    """Every fourth step is 1 or, three times in ten, −1; all others are 1.

    The lags reach past a window's four encoded steps, so that nothing tells the mode before it
    happens. Where hypotheses then settle follows from the shares: a mode of frequency f pulls its
    own with 0.9 f and the other with 0.1 f.
    """
    generator = np.random.default_rng(2)
    events = np.where(generator.random(2000) < 0.3, -1.0, 1.0)
    values = np.where(np.arange(2000) % 4 == 0, events, 1.0)
    common = events[::4].mean() / 2 + 0.5  # how often it is 1
    budget = {"batches_per_epoch": 50, "batch_size": 64, "learning_rate": 0.01, "patience": 2}
    config = tiny(
        TimeMCLConfig, epochs=6, training=budget, lags=(4, 8), condition=8, hypotheses=2,
        dropout=0.0,
    )  # fmt: skip
    train = training_of(np.repeat(values[:, None], 8, axis=1), context=9, horizon=3)
    model = TimeMCL(config, device="cpu")
    model.fit(train)
    asked = next(k for k in range(5) if (train.validation.origins[k] + 1) % 4 == 0)
    found = model.predict(train.validation.context(asked))
    level, weight = found.values[0, :, 1].mean(1), found.weights[0, :, 0]
    order = level.argsort(descending=True)
    rare = 1 - common
    expected = [
        (0.9 * common - 0.1 * rare) / (0.9 * common + 0.1 * rare),
        (0.1 * common - 0.9 * rare) / (0.1 * common + 0.9 * rare),
    ]
    np.testing.assert_allclose(level[order], expected, atol=0.1)
    np.testing.assert_allclose(weight[order], [common, rare], atol=0.07)
    np.testing.assert_allclose(found.values[0, :, [0, 2]], 1, atol=0.1)


def test_the_reference_has_all_quirks_and_each_has_its_word() -> None:
    reference = with_variants(TimeMCLConfig(), ["reference"], TimeMCLConfig.VARIANTS)
    assert (reference.resamples, reference.leak, reference.zero_scale) == (100, True, "batch")
    both = with_variants(TimeMCLConfig(), ["resampled", "leak"], TimeMCLConfig.VARIANTS)
    assert both.variant("ieee14") == "resampled-leak"


def test_parameters_are_as_many_as_the_reference_s_that_are_used() -> None:
    model, train = TimeMCL(TimeMCLConfig(lags=(1, 2, 3, 4, 5))), training_of(np.ones((60, 8)))
    model.settle(train)
    model.network = model._fresh_network()
    lstm = torch.nn.LSTM(5 * 8 + 6, 40, 2)
    heads = 41 * 100 + 16 * 101 * 8 + 16 * 101
    assert model.n_parameters == sum(p.numel() for p in lstm.parameters()) + heads


def test_odd_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="hypotheses must be 2 or more; slack must be in"):
        TimeMCLConfig(hypotheses=1, slack=1.0)
    with pytest.raises(ConfigError, match=r"temperatures must be above 0; cooling .*; resamples"):
        TimeMCLConfig(temperature=0.0, cooling=0.0, resamples=0)
