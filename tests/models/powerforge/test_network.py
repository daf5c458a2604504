"""The network against the straightforward one: the same loss, forecast and gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from powerphase.errors import TaskError, UnknownName
from powerphase.models.framework import kernels as backend_module
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from tests.models.powerforge import ABLATED, TINY, network, windows
from tests.models.powerforge.straightforward import Straightforward

CONFIGS = {
    "the defaults": TINY,
    **{f"no {name}": config for name, config in ABLATED.items()},
    "student-t noise": replace(TINY, noise="student-t"),
    "seven scenarios": replace(TINY, scenarios=7),
    "two scenarios": replace(TINY, scenarios=2),
    "one filter": replace(TINY, kernels=(7,)),
    "another width": replace(TINY, scenarios=9, width_cap=2.0, width_levels=(0.3, 0.7)),
}
SIZES = {
    "3 buses": {"n_buses": 3},
    "1 bus": {"n_buses": 1},
    "a longer past": {"n_past": 41},
    "2.5 days ahead": {"horizon": 30},
    "less than a day ahead": {"horizon": 7},
    "blocks of 2 buses": {"channel_block": 8},
    "blocks of less than a bus": {"channel_block": 3},
}


def graded(model: torch.nn.Module, net: PowerForgeNetwork, *given) -> tuple:
    """The loss, its parts, and the gradient of every parameter of the network."""
    net.zero_grad()
    loss, parts = model(*given)
    loss.backward()
    return loss.detach(), parts, {name: p.grad.clone() for name, p in net.named_parameters()}


def both(net: PowerForgeNetwork, n_past: int = 36) -> tuple[tuple, tuple]:
    """What the network and the oracle say of the same windows and noise."""
    context, target = windows(net.n_buses, n_past, net.horizon)
    noise = net.decoder.draw_noise()
    net.decoder.draw_noise = lambda generator=None: noise
    oracle = Straightforward(net)
    return graded(net, net, context, target), graded(oracle, net, context, target, noise.mT)


def check(found: tuple, wanted: tuple, loss: float, gradient: float) -> None:
    """Each number within a share of the oracle's, each gradient within a share of its norm."""
    torch.testing.assert_close(found[0], wanted[0], rtol=loss, atol=0)
    assert found[1].keys() == wanted[1].keys()
    for name, part in wanted[1].items():
        assert part > 0, f"{name} tests nothing"
        torch.testing.assert_close(found[1][name], part.detach(), rtol=loss, atol=1e-3 * loss)
    for name, oracle in wanted[2].items():
        off = (found[2][name] - oracle).norm() / oracle.norm()
        assert off <= gradient, f"the gradient of {name} is off by {off:.1e}"


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loss_and_gradients_are_the_oracles(config: PowerForgeConfig) -> None:
    check(*both(network(config)), loss=1e-9, gradient=1e-9)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
def test_loss_and_gradients_are_the_oracles_at_every_size(objective, size: dict[str, int]) -> None:
    net = network(replace(TINY, objective=objective), **size)
    check(*both(net, size.get("n_past", 36)), loss=1e-9, gradient=1e-9)


def test_loss_and_gradients_are_the_oracles_at_the_papers_sizes() -> None:
    net = network(PowerForgeConfig(dropout=0.0), n_buses=3, n_past=672, horizon=96)
    check(*both(net, n_past=672), loss=1e-9, gradient=1e-9)


def test_loss_and_gradients_are_the_oracles_where_training_begins() -> None:
    torch.manual_seed(1)
    # An odd number, since of an even one two are equally near to the median.
    net = PowerForgeNetwork(replace(TINY, scenarios=7), 5, 36, 12).double()
    with torch.no_grad():
        net.encoder.gates.fill_(1e-3)  # at 0 they cost nothing, and `check` wants all parts
        net.objective.calibrate(torch.tensor([0.5, 0.4, 0.01, 0.3]))
        net.objective.law.raw += 1e-3
    check(*both(net), loss=1e-9, gradient=1e-9)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_float32_stays_close_to_the_oracle(config: PowerForgeConfig) -> None:
    net = network(config)
    context, target = windows()
    noise = net.decoder.draw_noise()
    net.decoder.draw_noise = lambda generator=None: noise.to(net.decoder.scenario)
    wanted = graded(Straightforward(net), net, context, target, noise.mT)
    rough = replace(context, past=context.past.float())
    loss, parts, gradients = graded(net.float(), net, rough, target.float())
    assert loss.dtype == torch.float32
    exact = {name: part.double() for name, part in parts.items()}
    found = loss.double(), exact, {name: g.double() for name, g in gradients.items()}
    check(found, wanted, loss=1e-5, gradient=1e-4)


def check_half_precision(net: PowerForgeNetwork, n_past: int, off: float) -> None:
    context, target = windows(net.n_buses, n_past, net.horizon)
    given, found = (replace(context, past=context.past.float()), target.float()), []
    for half in (True, False):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss, _ = net(*given)
        gradient = torch.autograd.grad(loss, list(net.parameters()))
        found.append((loss.detach(), torch.cat([slope.flatten() for slope in gradient])))
    (rough, one), (exact, other) = found
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=off, atol=0)
    assert torch.cosine_similarity(one, other, dim=0) > 0.999


WITHOUT = {
    "nothing": {},
    "anchor": {"anchor": False},
    "quantile regularisation": {"quantile_regularisation": False},
    "ordered quantiles": {"objective": "winner-takes-all"},
    "physics": {"physics": False},
    "bridge": {"bridge": False},
    "mixer": {"mixer": False},
}


@pytest.mark.parametrize("changes", WITHOUT.values(), ids=WITHOUT)
def test_half_precision_stays_close_to_full(changes: dict[str, Any]) -> None:
    # At the paper's sizes, since in sums of few numbers roundings do not cancel; with weights as
    # large as in a training, since with those of `network`, ten times larger, the cosine is 0.997.
    torch.manual_seed(1)
    net = PowerForgeNetwork(PowerForgeConfig(dropout=0.0, **changes), 20, 672, 96)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    check_half_precision(net, 672, off=1e-3)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_forecasts_are_the_oracles(config: PowerForgeConfig) -> None:
    net = network(config)
    context, _ = windows()
    found, wanted = net.scenarios(context), Straightforward(net).scenarios(context)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_forecasts_are_the_oracles_at_every_size(size: dict[str, int]) -> None:
    net = network(**size)
    context, _ = windows(net.n_buses, size.get("n_past", 36), net.horizon)
    found, wanted = net.scenarios(context), Straightforward(net).scenarios(context)
    torch.testing.assert_close(found.values, wanted.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_loss_is_the_sum_of_its_parts(config: PowerForgeConfig) -> None:
    loss, parts = network(config)(*windows())
    torch.testing.assert_close(loss, sum(parts.values()))
    assert not any(part.requires_grad for part in parts.values())


def test_training_takes_noise_and_dropout_from_the_seed() -> None:
    net = network(replace(TINY, dropout=0.5))
    given = windows()

    def loss(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return net(*given)[0].detach()

    assert torch.equal(loss(1), loss(1))
    assert not torch.equal(loss(1), loss(2))


def test_blocks_change_neither_noise_nor_dropout() -> None:
    found = []
    for block in (None, 8):
        net = network(replace(TINY, dropout=0.5), channel_block=block)
        torch.manual_seed(3)
        found.append(graded(net, net, *windows()))
    check(*found, loss=1e-12, gradient=1e-12)


def test_what_a_step_needs_is_tensors_alone() -> None:
    assert all(isinstance(part, torch.Tensor) for part in network().inputs(*windows()))


def test_another_backend_is_refused() -> None:
    with pytest.raises(UnknownName, match="no backend 'tritn'; did you mean triton"):
        network(backend="tritn")


def test_kernels_of_triton_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "HAS_TRITON", False)
    with pytest.raises(TaskError, match="Triton is not installed here; install it, or choose"):
        network(backend="triton")
    assert not network(backend="auto").is_fast


@pytest.mark.parametrize("is_interpreted", [True, False])
@pytest.mark.parametrize("has_triton", [True, False])
def test_without_a_gpu_pytorch_does_it(
    monkeypatch: pytest.MonkeyPatch, has_triton: bool, is_interpreted: bool
) -> None:
    monkeypatch.setattr(backend_module, "HAS_TRITON", has_triton)
    monkeypatch.setattr(backend_module, "IS_INTERPRETED", is_interpreted)
    assert not network().is_fast
    assert not network(backend="torch").is_fast
    if not has_triton:
        with pytest.raises(TaskError, match="Triton is not installed here"):
            network(backend="triton")
    elif is_interpreted:
        assert network(backend="triton").is_fast
    else:
        with pytest.raises(TaskError, match="need a GPU of NVIDIA"):
            network(backend="triton").is_fast  # noqa: B018


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_triton_does_it_unless_told_otherwise() -> None:
    assert network().cuda().is_fast == backend_module.HAS_TRITON
    assert not network(backend="torch").cuda().is_fast
