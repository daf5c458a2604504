"""TimeMCL: the loss against the plain form, paths against teacher forcing, and learned modes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.errors import ConfigError
from powerphase.models.framework import apply_variants
from powerphase.models.recurrent import Window
from powerphase.models.timemcl import TimeMCL, TimeMCLConfig, TimeMCLNetwork
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
    hidden = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, REACH:] / scale[:, None]
    head, count = network.head, network.config.hypotheses
    outputs = [F.linear(hidden, head.weight[k], head.bias[k, :, 0]) for k in range(count)]
    errors = torch.stack([(out - values).square().sum(2).mean(1) for out in outputs], dim=1)
    losses, winners = [], errors.argmin(1)
    for error, winner in zip(errors, winners, strict=True):
        others = torch.cat([error[:winner], error[winner + 1 :]])
        losses.append(0.9 * error[winner] + 0.1 * others.mean())
    logits = [F.linear(hidden, head.score.weight[k], head.score.bias[k]) for k in range(count)]
    probabilities = [torch.sigmoid(logit).mean(1) for logit in logits]
    truth = F.one_hot(winners, count).double()
    score = F.binary_cross_entropy(torch.stack(probabilities, dim=1), truth)
    return torch.stack(losses).mean() + 0.5 * score


@pytest.mark.parametrize("block", [None, 1, 3])
def test_the_loss_and_its_gradients_match_the_plain_form(block: int | None) -> None:
    network = network_of(block)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    actual, expected = network(*windows_of()).loss, plain_loss(network)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, trained),
        torch.autograd.grad(expected, trained),
        rtol=1e-8,
        atol=1e-11,
    )


def test_the_log_reports_the_winners() -> None:
    network, (context, target) = network_of(), windows_of(2)
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.tensor([0.0, 9, 99, 999])[:, None, None].expand(-1, 8, 1))
    relaxed = network(context, target).parts
    assert relaxed["winners"] == 1
    network.config = tiny(TimeMCLConfig, objective="plain")
    plain = network(context, target).parts
    assert plain["error"] == plain["winner's error"] < relaxed["error"]


def teacher_forced(
    network: TimeMCLNetwork, context: Context, path: Tensor
) -> tuple[Tensor, Tensor]:
    """The encoder's outputs over the horizon if this path were the truth, and its input gates."""
    scale = network.encode(context).scale
    forced = Window(context.past, path, scale)
    clock = network._clock(context)
    return network.encoder(forced, clock)[:, -HORIZON:], network.encoder.project_window(
        forced, clock
    )


@pytest.mark.parametrize("at_once", [None, 3])
@torch.no_grad()
def test_each_hypothesis_is_fed_its_own_values(at_once: int | None) -> None:
    network, (context, _) = network_of(), windows_of()
    network.paths_at_once = at_once
    scenarios, scale, head = (
        network.scenarios(context, 1),
        network.encode(context).scale,
        network.head,
    )
    scores = []
    for k in range(4):
        hidden, _ = teacher_forced(network, context, scenarios.values[:, k])
        expected = F.linear(hidden, head.weight[k], head.bias[k, :, 0]) * scale[:, None]
        torch.testing.assert_close(scenarios.values[:, k], expected)
        scores.append(torch.sigmoid(head.score(hidden)[..., k]).mean(1))
    score = torch.stack(scores, dim=1)
    expected = (score / score.sum(1, keepdim=True))[..., None].expand_as(scenarios.weights)
    torch.testing.assert_close(scenarios.weights, expected)


@torch.no_grad()
def test_a_leaking_state_comes_from_the_previous_hypothesis() -> None:
    network, (context, _) = network_of(leak=True), windows_of()
    scenarios, seen, head = network.scenarios(context, 1), network.encode(context), network.head
    state = seen.state
    for k in range(4):
        _, gates = teacher_forced(network, context, scenarios.values[:, k])
        hidden, state = network.encoder.run(gates[:, -HORIZON:], state)
        expected = F.linear(hidden, head.weight[k], head.bias[k, :, 0]) * seen.scale[:, None]
        torch.testing.assert_close(scenarios.values[:, k], expected)
    clean = network_of().scenarios(context, 1).values
    torch.testing.assert_close(scenarios.values[:, 0], clean[:, 0])
    assert not torch.allclose(scenarios.values[:, 1], clean[:, 1])


@torch.no_grad()
def test_resampling_draws_hypotheses_by_weight_for_each_window() -> None:
    network, (context, _) = network_of(), windows_of()
    network.head.score.weight.zero_()  # equal weights for all windows, but different draws
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


def test_steps_are_counted_only_in_training() -> None:
    network = network_of()
    network(*windows_of())
    assert network.steps == 0
    network.train()
    network(*windows_of())
    network(*windows_of())
    assert network.steps == 2
    assert "steps" in network.state_dict()


def test_training_finds_both_modes_and_their_frequencies() -> None:
    """Every fourth step is 1 or, with probability 0.3, −1; all other steps are 1.

    The lags reach past a window's four encoded steps, so that nothing reveals the mode in advance.
    The fixed point of the hypotheses follows from the relaxed loss: a mode of frequency f pulls its
    hypothesis with 0.9 f and the other with 0.1 f.
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
    model: Any = TimeMCL(config, device="cpu")
    model.fit(train)
    number = next(k for k in range(5) if (train.validation.origins[k] + 1) % 4 == 0)
    scenarios = model.predict(train.validation.context(number))
    level, weight = scenarios.values[0, :, 1].mean(1), scenarios.weights[0, :, 0]
    order = level.argsort(descending=True)
    rare = 1 - common
    expected = [
        (0.9 * common - 0.1 * rare) / (0.9 * common + 0.1 * rare),
        (0.1 * common - 0.9 * rare) / (0.1 * common + 0.9 * rare),
    ]
    np.testing.assert_allclose(level[order], expected, atol=0.1)
    np.testing.assert_allclose(weight[order], [common, rare], atol=0.07)
    np.testing.assert_allclose(scenarios.values[0, :, [0, 2]], 1, atol=0.1)


def test_the_reference_variant_has_all_quirks() -> None:
    reference = apply_variants(TimeMCLConfig(), ["reference"], TimeMCLConfig.VARIANTS)
    assert (reference.resamples, reference.leak, reference.zero_scale) == (100, True, "batch")
    both = apply_variants(TimeMCLConfig(), ["resampled", "leak"], TimeMCLConfig.VARIANTS)
    assert both.variant("ieee14") == "resampled-leak"


def test_parameter_count_equals_the_used_parameters_of_the_reference() -> None:
    model, train = TimeMCL(TimeMCLConfig(lags=(1, 2, 3, 4, 5))), training_of(np.ones((60, 8)))
    model.configure(train)
    model.network = model._initial_network()
    lstm = torch.nn.LSTM(5 * 8 + 6, 40, 2)
    heads = 41 * 100 + 16 * 101 * 8 + 16 * 101
    assert model.n_parameters == sum(p.numel() for p in lstm.parameters()) + heads


def test_invalid_configurations_raise() -> None:
    with pytest.raises(ConfigError, match=r"hypotheses .*slack"):
        TimeMCLConfig(hypotheses=1, slack=1.0)
    with pytest.raises(ConfigError, match=r"temperatures .*cooling .*resamples"):
        TimeMCLConfig(temperature=0.0, cooling=0.0, resamples=0)
