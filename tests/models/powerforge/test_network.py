"""The network has the loss, forecasts and gradients of the straightforward one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from powerphase.errors import TaskError, UnknownName
from powerphase.models.framework import kernels
from powerphase.models.powerforge import PowerForgeConfig, PowerForgeNetwork
from tests.models.powerforge import ABLATED, READ, TINY, network, windows
from tests.models.powerforge.straightforward import Straightforward

CONFIGS = {
    "the defaults": TINY,
    **{f"no {name}": config for name, config in ABLATED.items()},
    **READ,
    "student-t noise": replace(TINY, noise="student-t"),
    "seven scenarios": replace(TINY, scenarios=7),
    "two scenarios": replace(TINY, scenarios=2),
    "one filter": replace(TINY, kernels=(7,)),
    "another width": replace(TINY, scenarios=9, width_cap=2.0, width_levels=(0.3, 0.7)),
}
SIZES: dict[str, dict[str, Any]] = {
    "3 buses": {"n_buses": 3},
    "1 bus": {"n_buses": 1},
    "a longer past": {"n_past": 41},
    "2.5 days ahead": {"horizon": 30},
    "less than a day ahead": {"horizon": 7},
    "blocks of 2 buses": {"channel_block": 8},
    "blocks of less than a bus": {"channel_block": 3},
}


def evaluate(model: torch.nn.Module, net: PowerForgeNetwork, *batch: Any) -> Any:
    """The loss, its parts, and the gradient of every parameter of the network."""
    net.zero_grad()
    loss, parts = model(*batch)
    loss.backward()
    return (
        loss.detach(),
        parts,
        {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None},
    )


def network_and_oracle(net: PowerForgeNetwork, n_past: int = 36) -> tuple[Any, Any]:
    """Network and oracle, evaluated on the same windows and noise."""
    context, target = windows(net.n_buses, n_past, net.horizon)
    noise = net.decoder.draw_noise()
    decoder: Any = net.decoder
    decoder.draw_noise = lambda generator=None: noise
    oracle = Straightforward(net)
    return evaluate(net, net, context, target), evaluate(oracle, net, context, target, noise.mT)


def check(ours: Any, oracles: Any, loss: float, gradient: float) -> None:
    """Assert that loss, parts and the norm of each gradient's error are within tolerances."""
    torch.testing.assert_close(ours[0], oracles[0], rtol=loss, atol=0)
    assert ours[1].keys() == oracles[1].keys()
    for name, part in oracles[1].items():
        assert part > 0, f"{name} tests nothing"
        torch.testing.assert_close(ours[1][name], part.detach(), rtol=loss, atol=1e-3 * loss)
    for name, oracle in oracles[2].items():
        error = (ours[2][name] - oracle).norm() / oracle.norm()
        assert error <= gradient, f"the gradient of {name} is off by {error:.1e}"


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loss_and_gradients_equal_the_oracles(config: PowerForgeConfig) -> None:
    check(*network_and_oracle(network(config)), loss=1e-9, gradient=1e-9)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
def test_loss_and_gradients_equal_the_oracles_at_every_size(
    objective: str, size: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"objective": objective}
    net = network(replace(TINY, **changes), **size)
    check(*network_and_oracle(net, size.get("n_past", 36)), loss=1e-9, gradient=1e-9)


def test_loss_and_gradients_equal_the_oracles_at_the_papers_sizes() -> None:
    net = network(PowerForgeConfig(dropout=0.0), n_buses=3, n_past=672, horizon=96)
    check(*network_and_oracle(net, n_past=672), loss=1e-9, gradient=1e-9)


def test_loss_and_gradients_equal_the_oracles_at_the_start_of_training() -> None:
    torch.manual_seed(1)
    # An odd number, since with an even one two are equally near to the median.
    net = PowerForgeNetwork(replace(TINY, scenarios=7), 5, 36, 12).double()
    with torch.no_grad():
        net.encoder.gates.fill_(1e-3)  # at 0 their penalty is 0, and `check` needs positive parts
        net.objective.calibrate(torch.tensor([0.5, 0.4, 0.01, 0.3]))
        net.objective.law.raw.data += 1e-3
    check(*network_and_oracle(net), loss=1e-9, gradient=1e-9)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_float32_is_close_to_the_oracle(config: PowerForgeConfig) -> None:
    net = network(config)
    context, target = windows()
    noise = net.decoder.draw_noise()
    decoder: Any = net.decoder
    decoder.draw_noise = lambda generator=None: noise.to(net.decoder.scenario)
    oracles = evaluate(Straightforward(net), net, context, target, noise.mT)
    rough = replace(context, past=context.past.float())
    loss, parts, gradients = evaluate(net.float(), net, rough, target.float())
    assert loss.dtype == torch.float32
    exact = {name: part.double() for name, part in parts.items()}
    ours = loss.double(), exact, {name: g.double() for name, g in gradients.items()}
    check(ours, oracles, loss=1e-5, gradient=1e-4)


def check_half_precision(net: PowerForgeNetwork, n_past: int, error: float) -> None:
    context, target = windows(net.n_buses, n_past, net.horizon)
    batch, ours = (replace(context, past=context.past.float()), target.float()), []
    for half in (True, False):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss, _ = net(*batch)
        gradient = torch.autograd.grad(loss, list(net.parameters()))
        ours.append((loss.detach(), torch.cat([part.flatten() for part in gradient])))
    (rough, rough_gradient), (exact, exact_gradient) = ours
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=error, atol=0)
    assert torch.cosine_similarity(rough_gradient, exact_gradient, dim=0) > 0.999


WITHOUT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "anchor": {"anchor": False},
    "quantile regularisation": {"quantile_regularisation": False},
    "ordered quantiles": {"objective": "winner-takes-all"},
    "physics": {"physics": False},
    "bridge": {"bridge": False},
    "mixer": {"mixer": False},
}


@pytest.mark.parametrize("changes", WITHOUT.values(), ids=WITHOUT)
def test_half_precision_is_close_to_full_precision(changes: dict[str, Any]) -> None:
    # The paper's sizes, because roundings do not cancel in sums of few numbers; weights as large as
    # in a training, because with those of `network`, ten times larger, the cosine is 0.997.
    torch.manual_seed(1)
    net = PowerForgeNetwork(PowerForgeConfig(dropout=0.0, **changes), 20, 672, 96)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    check_half_precision(net, 672, error=1e-3)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_forecasts_equal_the_oracles(config: PowerForgeConfig) -> None:
    net = network(config)
    context, _ = windows()
    ours, oracles = net.scenarios(context), Straightforward(net).scenarios(context)
    torch.testing.assert_close(ours.values, oracles.values, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.weights, oracles.weights, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_forecasts_equal_the_oracles_at_every_size(size: dict[str, Any]) -> None:
    net = network(**size)
    context, _ = windows(net.n_buses, size.get("n_past", 36), net.horizon)
    ours, oracles = net.scenarios(context), Straightforward(net).scenarios(context)
    torch.testing.assert_close(ours.values, oracles.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_loss_is_the_sum_of_its_parts(config: PowerForgeConfig) -> None:
    loss, parts = network(config)(*windows())
    torch.testing.assert_close(loss, torch.stack(list(parts.values())).sum())
    assert not any(part.requires_grad for part in parts.values())


def test_the_seed_determines_noise_and_dropout() -> None:
    net = network(replace(TINY, dropout=0.5))
    batch = windows()

    def loss(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return net(*batch)[0].detach()

    assert torch.equal(loss(1), loss(1))
    assert not torch.equal(loss(1), loss(2))


def test_blocks_change_neither_noise_nor_dropout() -> None:
    ours = []
    for block in (None, 8):
        net = network(replace(TINY, dropout=0.5), channel_block=block)
        torch.manual_seed(3)
        ours.append(evaluate(net, net, *windows()))
    check(ours[0], ours[1], loss=1e-12, gradient=1e-12)


def test_the_inputs_of_a_step_are_tensors() -> None:
    assert all(isinstance(part, torch.Tensor) for part in network().inputs(*windows()))


def test_an_unknown_backend_is_rejected() -> None:
    with pytest.raises(UnknownName, match=r"tritn.*triton"):
        network(backend="tritn")


def test_the_triton_backend_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    with pytest.raises(TaskError, match="Triton"):
        network(backend="triton")
    assert not network(backend="auto").is_fast


@pytest.mark.parametrize("is_interpreted", [True, False])
@pytest.mark.parametrize("has_triton", [True, False])
def test_without_a_gpu_plain_pytorch_runs(
    monkeypatch: pytest.MonkeyPatch, has_triton: bool, is_interpreted: bool
) -> None:
    monkeypatch.setattr(kernels, "HAS_TRITON", has_triton)
    monkeypatch.setattr(kernels, "IS_INTERPRETED", is_interpreted)
    assert not network().is_fast
    assert not network(backend="torch").is_fast
    if not has_triton:
        with pytest.raises(TaskError, match="Triton"):
            network(backend="triton")
    elif is_interpreted:
        assert network(backend="triton").is_fast
    else:
        with pytest.raises(TaskError, match="GPU"):
            network(backend="triton").is_fast  # noqa: B018


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_triton_runs_by_default() -> None:
    assert network().cuda().is_fast == kernels.HAS_TRITON
    assert not network(backend="torch").cuda().is_fast
