"""Training steps: the same as by hand, and the same when captured."""

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from powerphase.errors import TrainingError
from powerphase.metrics import Fan, crps
from powerphase.models.framework import (
    CapturableNetwork,
    Losses,
    Network,
    ProcessGroup,
    Stepper,
    Trainer,
    TrainingConfig,
    make_optimiser,
    seed_torch,
    set_rates,
)
from powerphase.models.framework import training as training_module
from powerphase.models.powerforge import PowerForgeNetwork
from powerphase.scenarios import Context, Scenarios
from tests.models.powerforge import TINY, windows
from tests.models.toys import CPU, Shelf, Toy, flat_training, wavy_training

CONFIG = TrainingConfig(batch_size=4, learning_rate=0.05, weight_decay=0.1, clip_norm=0.3)

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def adam(values: Tensor, gradients: list[Tensor], rate: float) -> Tensor:
    """The values after so many steps with betas of 0.9 and 0.999, by the paper's equations."""
    first = second = torch.zeros_like(values)
    for number, gradient in enumerate(gradients, start=1):
        gradient = gradient + CONFIG.weight_decay * values
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        root = (second / (1 - 0.999**number)).sqrt() + 1e-8
        values = values - rate * first / (1 - 0.9**number) / root
    return values


class Bowl(nn.Module):
    """A loss with a known gradient: half of a square, times the mean of the target."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))

    def forward(self, context: Context, target: Tensor) -> Losses:
        loss = target.mean() * self.position.square().sum() / 2
        return Losses(loss, {"depth": loss.detach()})


def test_a_step_clips_the_gradient_and_follows_adam() -> None:
    net = Bowl()
    stepper = Stepper(net, make_optimiser(net, CONFIG, CPU), CONFIG, CPU)
    context, target = windows()
    start, gradients = net.position.detach().clone(), []
    for steepness in (2.0, 0.01):
        before = net.position.detach().clone()
        parts = stepper(context, torch.full_like(target, steepness))
        gradient = steepness * before
        gradients.append(gradient * min(1.0, CONFIG.clip_norm / (gradient.norm() + 1e-6)))
        assert parts["gradient norm"].item() == pytest.approx(gradient.norm().item())
        expected = steepness * before.square().sum().item() / 2
        assert parts["loss"].item() == parts["depth"].item() == pytest.approx(expected)
        assert not any(part.requires_grad for part in parts.values())
        moved = adam(start, gradients, CONFIG.learning_rate)
        torch.testing.assert_close(net.position.detach(), moved, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("precision", "half"), [("bfloat16", True), ("float32", False)])
def test_only_the_forward_pass_runs_in_half_precision(precision: Any, half: bool) -> None:
    net = Bowl()
    seen: list[bool] = []
    net.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    net.position.register_hook(lambda gradient: seen.append(torch.is_autocast_enabled("cpu")))
    config = replace(CONFIG, precision=precision)
    Stepper(net, make_optimiser(net, config, CPU), config, CPU)(*windows())
    assert seen == [half, False]


def test_set_rates_sets_the_optimiser_s_rate() -> None:
    net = Bowl()
    optimiser = make_optimiser(net, CONFIG, CPU)
    assert optimiser.param_groups[0]["lr"] == CONFIG.learning_rate
    set_rates(optimiser, [0.5])
    assert optimiser.param_groups[0]["lr"] == 0.5


def test_a_rate_that_is_a_tensor_is_set_in_place() -> None:
    """A captured step reads the rate from that tensor."""
    rate = torch.tensor(0.4)
    optimiser = torch.optim.Adam(Bowl().parameters(), rate)
    set_rates(optimiser, [0.2])
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.2)
    schedule = ReduceLROnPlateau(optimiser, factor=0.5, patience=0)
    for _ in range(2):
        schedule.step(1.0)
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)


class Capturable(Toy, CapturableNetwork):
    """A toy whose steps could be captured."""

    def inputs(self, context: Context, target: Tensor) -> tuple[Tensor, ...]:
        return context.past, target

    def losses(self, *inputs: Any, **named_inputs: Any) -> Losses:
        raise AssertionError("nothing is captured here")


class Slow(Capturable):
    """A toy whose steps could be captured, but should not."""

    is_capturable = False


@pytest.mark.parametrize(
    ("network", "device", "members", "captured"),
    [
        (Capturable, "cuda", 1, True),
        (Slow, "cuda", 1, False),
        (Capturable, "cpu", 1, False),
        (Capturable, "cuda", 2, False),
        (Toy, "cuda", 1, False),
    ],
)
def test_steps_are_captured_on_a_gpu_in_one_process_if_the_network_allows_it(
    monkeypatch: pytest.MonkeyPatch,
    network: type[Network],
    device: str,
    members: int,
    captured: bool,
) -> None:
    monkeypatch.setattr(training_module, "DistributedDataParallel", lambda network: network)
    trainer = Trainer(network(), flat_training(), CONFIG, 42, CPU, Shelf())
    trainer.device = torch.device(device)
    assert trainer._stepper(ProcessGroup(0, members)).capture == captured


class Shortcut(Toy):
    """A toy with a CRPS that needs no scenarios."""

    def __init__(self, known: float) -> None:
        super().__init__()
        self.known = known

    def crps(self, context: Context, target: Tensor) -> Tensor:
        return torch.tensor(self.known)

    def scenarios(self, context: Context, seed: int = 0) -> Scenarios:
        raise AssertionError("no scenarios are needed")


def test_a_network_s_crps_replaces_that_of_its_scenarios() -> None:
    shelf = Shelf()
    config = replace(CONFIG, epochs=1, batches_per_epoch=1, criterion="crps")
    Trainer(Shortcut(0.25), wavy_training(), config, 42, CPU, shelf).run()
    assert shelf.lines[0]["validation_crps"] == pytest.approx(0.25)


def test_a_network_can_be_validated_by_the_crps_of_its_scenarios() -> None:
    torch.manual_seed(0)
    net, train = Toy().eval(), wavy_training()
    trainer = Trainer(net, train, replace(CONFIG, criterion="crps"), 42, CPU, Shelf())
    context, target = train.validation.context(0), train.validation.target(0)
    expected = crps(Fan.of(net.scenarios(context)), target).mean()
    torch.testing.assert_close(trainer._criterion(context, target), expected.double())


GPU = torch.device("cuda")


def on_device(number: int, device: torch.device = GPU) -> tuple[Context, Tensor]:
    """Windows as `Batches` returns them: past and target in one tensor."""
    context, target = windows(seed=number)
    whole = torch.cat([context.past, target], dim=1).to(device, torch.float32)
    past = context.past.shape[1]
    return replace(context, past=whole[:, :past]), whole[:, past:]


def take_steps(capture: bool, start: PowerForgeNetwork, rates: list[float]) -> tuple[Tensor, Any]:
    """Parts of the loss of steps at these rates, and the network after them."""
    net = deepcopy(start).to(GPU)
    optimiser = make_optimiser(net, CONFIG, GPU)
    stepper, rows = Stepper(net, optimiser, CONFIG, GPU, capture), []
    for number, rate in enumerate(rates):
        seed_torch(GPU, 7, "step", number)
        set_rates(optimiser, [rate])
        parts = stepper(*on_device(number))
        rows.append(torch.stack([parts[name] for name in sorted(parts)]))
    return torch.stack(rows), net


@on_gpu
def test_captured_steps_equal_uncaptured_ones() -> None:
    """With other windows, dropout, noise and rates in each of them."""
    torch.manual_seed(1)
    start = PowerForgeNetwork(replace(TINY, dropout=0.3), 5, 36, 12)
    rates = [1e-2] * 5 + [1e-4] * 2
    (result, net), (expected, other) = (
        take_steps(capture, start, rates) for capture in (True, False)
    )
    assert len(expected.unique(dim=0)) == len(rates)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-7)
    for parameter, oracle in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, oracle, rtol=1e-4, atol=1e-6)


@on_gpu
def test_captured_steps_after_a_break_equal_those_without_one() -> None:
    torch.manual_seed(1)
    whole, parts = (PowerForgeNetwork(replace(TINY, dropout=0.3), 5, 36, 12) for _ in range(2))
    parts.load_state_dict(whole.state_dict())
    states: list[Any] = []
    for net, breaks in ((whole.to(GPU), ()), (parts.to(GPU), (3,))):
        optimiser = make_optimiser(net, CONFIG, GPU)
        stepper = Stepper(net, optimiser, CONFIG, GPU, capture=True)
        for number in range(6):
            if number in breaks:
                stepper = Stepper(net, optimiser, CONFIG, GPU, capture=True)
            seed_torch(GPU, 7, "step", number)
            stepper(*on_device(number))
        states.append(net.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=on_gpu)], ids=str)
def test_batches_of_another_size_raise(device: torch.device) -> None:
    net = PowerForgeNetwork(TINY, 5, 36, 12).to(device)
    stepper = Stepper(net, make_optimiser(net, CONFIG, device), CONFIG, device, capture=True)
    context, target = on_device(0, device)
    if device == GPU:
        stepper(context, target)
    else:  # nothing can be captured on a CPU, but inputs are checked
        stepper._set_inputs(net.inputs(context, target))
    sizes = re.escape("(2, 36, 20), and now (1, 36, 20)")
    with pytest.raises(TrainingError, match=sizes):
        stepper(replace(context, past=context.past[:1], time=context.time[:1]), target[:1])


@on_gpu
def test_a_captured_step_follows_the_learning_rate() -> None:
    torch.manual_seed(1)
    start = PowerForgeNetwork(TINY, 5, 36, 12)
    before, after = (take_steps(True, start, [1e-2] * 5 + rest)[1] for rest in ([], [0.0]))
    for parameter, other in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(parameter, other)


@on_gpu
def test_the_seed_fixes_dropout_and_noise_of_a_captured_step() -> None:
    torch.manual_seed(1)
    start = PowerForgeNetwork(replace(TINY, dropout=0.5), 5, 36, 12)
    net = deepcopy(start).to(GPU)
    optimiser = make_optimiser(net, CONFIG, GPU)
    stepper, losses = Stepper(net, optimiser, CONFIG, GPU, capture=True), []
    set_rates(optimiser, [0.0])  # so that nothing but the seed changes
    context, target = windows()
    context = replace(context, past=context.past.to(GPU, torch.float32))
    for number in (1, 2, 3, 1, 2, 3, 1):
        seed_torch(GPU, 7, "step", number)
        losses.append(stepper(context, target.to(GPU, torch.float32))["loss"].item())
    assert losses == pytest.approx([*losses[:3], *losses[:3], losses[0]], rel=1e-6)
    assert len({round(loss, 4) for loss in losses}) == 3


def test_networks_are_validated_by_their_loss() -> None:
    net, train, shelf = Toy(), wavy_training(), Shelf()
    trainer = Trainer(net, train, replace(CONFIG, epochs=5, batches_per_epoch=5), 42, CPU, shelf)
    net.eval()
    context, target = train.validation.context(0), train.validation.target(0)
    assert torch.equal(trainer._criterion(context, target), net(context, target).loss)
    trainer.run()
    assert "validation_crps" not in shelf.lines[0]
    assert trainer.best == min(line["validation_loss"] for line in shelf.lines)
