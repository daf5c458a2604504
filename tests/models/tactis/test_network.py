"""The network: its loss is the likelihood of its marginals over bags, and it draws from them."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from powerphase.models.tactis import TactisNetwork, context_scale
from powerphase.models.tactis import model as model_module
from powerphase.scenarios import Context, Scenarios
from tests.models.recurrent.toys import HORIZON, window, windows_of
from tests.models.tactis.toys import network_of


def bag_loss(network: TactisNetwork, past: Tensor, target: Tensor, bag: list[int]) -> Tensor:
    """The loss of one window's bag, from the distribution's derivative token by token."""
    mean, size = past[:, bag].mean(0), past[:, bag].std(0)
    before, after = (past[:, bag] - mean) / size, (target[:, bag] - mean) / size
    encoded = network.encoder(before.mT[None], torch.tensor([bag]), HORIZON)
    x = after.mT[None].requires_grad_()
    level = network.margins(encoded).distribution(x)
    density = torch.autograd.grad(level.sum(), x, create_graph=True)[0]
    return -density.log().sum() / len(bag)


def test_the_loss_is_the_negative_log_density_per_channel() -> None:
    network, (context, target) = network_of(bag=3), windows_of()
    past, future, series, order = network.inputs(context, target)
    expected = [bag_loss(network, context.past[k], target[k], series[k].tolist()) for k in range(3)]
    losses = network.losses(past, future, series, order)
    torch.testing.assert_close(losses.loss, torch.stack(expected).mean())
    torch.testing.assert_close(losses.parts["per token"] * HORIZON, losses.loss.detach())
    gradients = torch.autograd.grad(losses.loss, list(network.parameters()))
    oracles = torch.autograd.grad(torch.stack(expected).mean(), list(network.parameters()))
    for gradient, oracle in zip(gradients, oracles, strict=True):
        torch.testing.assert_close(gradient, oracle, rtol=1e-8, atol=1e-10)


def test_the_mean_over_bags_is_not_the_loss_of_all_channels_together() -> None:
    """A channel attends only to its bag, so each bag is a model of its own."""
    network, (context, target) = network_of(4, bag=2, validation_bags=1), windows_of(1, 4)
    network.requires_grad_(False)
    past, count = context.past[0], 1000
    time = context.time.repeat(count, axis=0)
    many = Context(context.past.expand(count, -1, -1), time, context.layout)
    bags = [list(pair) for pair in combinations(range(4), 2)]
    losses = torch.stack([bag_loss(network, past, target[0], bag) for bag in bags]).detach()
    torch.manual_seed(0)
    mean = network(many, target.expand(count, -1, -1)).loss
    assert abs(mean - losses.mean()) < 4 * losses.std() / count**0.5
    whole = bag_loss(network, past, target[0], [0, 1, 2, 3]).detach()
    assert abs(whole - losses.mean()) > 1e-6


def test_validation_uses_several_bags_and_training_one() -> None:
    network, batch = network_of(bag=3, validation_bags=3), windows_of()
    for count in (3, 1):
        torch.manual_seed(0)
        loss, parts = network.train(count == 1)(*batch)
        torch.manual_seed(0)
        bags = [network.losses(*network.inputs(*batch)) for _ in range(count)]
        torch.testing.assert_close(loss, torch.stack([bag.loss for bag in bags]).mean())
        for name, value in parts.items():
            torch.testing.assert_close(value, torch.stack([b.parts[name] for b in bags]).mean())


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_change_neither_loss_nor_gradient(block: int) -> None:
    results = []
    for size in (None, block):
        network = network_of(8, size, bag=3)
        torch.manual_seed(4)
        loss, parts = network(*windows_of())
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        results.append([loss, *parts.values(), *gradients])
    for whole, part in zip(*results, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


def test_draws_follow_the_marginals_of_their_tokens() -> None:
    network, (context, _) = network_of(paths=2000, tail=1e-3), windows_of(1)
    scenarios = network.scenarios(context, seed=3)
    assert isinstance(scenarios, Scenarios)
    scale = context_scale(context.past, 1e-4)
    z = (scenarios.values - scale.mean[:, None, None]) / scale.deviation[:, None, None]
    encoded = network.encoder(scale.normalise(context.past), torch.arange(8)[None], HORIZON)
    margin = network.margins(encoded).unsqueeze()
    level = margin.distribution(z.permute(0, 3, 2, 1)).detach().flatten(0, 2).mT
    assert ((level > 1e-3 - 1e-9) & (level < 1 - 1e-3 + 1e-9)).all()
    assert (level.mean(0) - 0.5).abs().max() < 4.5 * (1 / 12 / 2000) ** 0.5
    correlation = torch.corrcoef(level.mT) - torch.eye(level.shape[1])
    assert correlation.abs().max() < 5 / 2000**0.5


def test_forecasts_in_blocks_of_channels_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, (context, _) = network_of(), windows_of(2)
    monkeypatch.setattr(model_module, "ANSWER_CHANNELS", 3)
    whole = network.scenarios(context, seed=3)
    assert isinstance(whole, Scenarios)
    for number in range(2):
        network.channel_block = 2
        pieces = network.scenarios(window(context, number), seed=3)
        assert not isinstance(pieces, Scenarios)
        for channels, scenarios in pieces:
            expected = whole.values[number : number + 1, ..., channels]
            torch.testing.assert_close(scenarios.values, expected, rtol=1e-9, atol=1e-9)
    assert channels == slice(6, 8)
