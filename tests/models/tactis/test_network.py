"""The network: its loss is the likelihood of its margins, over bags; its draws are theirs."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from powerphase.models.tactis import network as network_module
from powerphase.models.tactis.encoder import scale_of
from powerphase.models.tactis.margins import Margin
from powerphase.models.tactis.network import TactisNetwork
from powerphase.scenarios import Context, Scenarios
from tests.models.recurrent.toys import HORIZON, window, windows_of
from tests.models.tactis.toys import network_of


def bag_loss(network: TactisNetwork, past: Tensor, target: Tensor, bag: list[int]) -> Tensor:
    """Of one window and some of its channels, token by token from the distribution's slope."""
    mean, size = past[:, bag].mean(0), past[:, bag].std(0)
    before, after = (past[:, bag] - mean) / size, (target[:, bag] - mean) / size
    known = network.encoder(before.mT[None], torch.tensor([bag]), HORIZON)
    x = after.mT[None].requires_grad_()
    risen = network.margins(known).distribution(x)
    density = torch.autograd.grad(risen.sum(), x, create_graph=True)[0]
    return -density.log().sum() / len(bag)


def test_the_loss_is_minus_the_sum_of_log_slopes_by_the_number_of_channels() -> None:
    network, (context, target) = network_of(bag=3), windows_of()
    past, future, series, order = network.inputs(context, target)
    expected = [bag_loss(network, context.past[k], target[k], series[k].tolist()) for k in range(3)]
    found = network.losses(past, future, series, order)
    torch.testing.assert_close(found.loss, torch.stack(expected).mean())
    torch.testing.assert_close(found.parts["per token"] * HORIZON, found.loss.detach())
    mine = torch.autograd.grad(found.loss, list(network.parameters()))
    theirs = torch.autograd.grad(torch.stack(expected).mean(), list(network.parameters()))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_the_mean_over_bags_is_the_mean_of_all_their_losses_and_not_that_of_all_channels() -> None:
    """A channel knows only those in its bag, so each bag is another model of its channels."""
    network, (context, target) = network_of(4, bag=2, validation_bags=1), windows_of(1, 4)
    network.requires_grad_(False)
    past, count = context.past[0], 1000
    time = context.time.repeat(count, axis=0)
    many = Context(context.past.expand(count, -1, -1), time, context.layout)
    bags = [list(pair) for pair in combinations(range(4), 2)]
    losses = torch.stack([bag_loss(network, past, target[0], bag) for bag in bags]).detach()
    torch.manual_seed(0)
    found = network(many, target.expand(count, -1, -1)).loss
    assert abs(found - losses.mean()) < 4 * losses.std() / count**0.5
    whole = bag_loss(network, past, target[0], [0, 1, 2, 3]).detach()
    assert abs(whole - losses.mean()) > 1e-6


def test_windows_are_judged_by_several_bags_and_learned_from_by_one() -> None:
    network, given = network_of(bag=3, validation_bags=3), windows_of()
    for count in (3, 1):
        torch.manual_seed(0)
        loss, parts = network.train(count == 1)(*given)
        torch.manual_seed(0)
        bags = [network.losses(*network.inputs(*given)) for _ in range(count)]
        torch.testing.assert_close(loss, torch.stack([one.loss for one in bags]).mean())
        for name, value in parts.items():
            torch.testing.assert_close(value, torch.stack([o.parts[name] for o in bags]).mean())


@pytest.mark.parametrize("block", [1, 7, 100])
def test_blocks_change_neither_loss_nor_gradient(block: int) -> None:
    found = []
    for size in (None, block):
        network = network_of(8, size, bag=3)
        torch.manual_seed(4)
        loss, parts = network(*windows_of())
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        found.append([loss, *parts.values(), *gradients])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


def test_draws_follow_the_margins_of_their_tokens() -> None:
    network, (context, _) = network_of(paths=2000, tail=1e-3), windows_of(1)
    drawn = network.scenarios(context, seed=3)
    assert isinstance(drawn, Scenarios)
    scale = scale_of(context.past, 1e-4)
    z = (drawn.values - scale.mean[:, None, None]) / scale.deviation[:, None, None]
    known = network.encoder(scale.normalised(context.past), torch.arange(8)[None], HORIZON)
    margin = network.margins(known)
    wide = Margin(tuple(one.unsqueeze() for one in margin.layers))
    flat = wide.distribution(z.permute(0, 3, 2, 1)).detach().flatten(0, 2).mT
    assert ((flat > 1e-3 - 1e-9) & (flat < 1 - 1e-3 + 1e-9)).all()
    assert (flat.mean(0) - 0.5).abs().max() < 4.5 * (1 / 12 / 2000) ** 0.5
    together = torch.corrcoef(flat.mT) - torch.eye(flat.shape[1])
    assert together.abs().max() < 5 / 2000**0.5


def test_a_block_of_channels_at_a_time_and_parts_draw_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, (context, _) = network_of(), windows_of(2)
    monkeypatch.setattr(network_module, "ANSWER_CHANNELS", 3)
    whole = network.scenarios(context, seed=3)
    assert isinstance(whole, Scenarios)
    for number in range(2):
        network.channel_block = 2
        pieces = network.scenarios(window(context, number), seed=3)
        assert not isinstance(pieces, Scenarios)
        for here, scenarios in pieces:
            expected = whole.values[number : number + 1, ..., here]
            torch.testing.assert_close(scenarios.values, expected, rtol=1e-9, atol=1e-9)
    assert here == slice(6, 8)
