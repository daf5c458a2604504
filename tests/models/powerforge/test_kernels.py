"""Every kernel against plain PyTorch, on a GPU or in Triton's interpreter."""

from dataclasses import replace
from math import pi
from typing import Any, NamedTuple, no_type_check

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import THETA
from powerphase.models.framework import kernels as toolkit
from powerphase.models.powerforge import (
    Counts,
    HeadOutputs,
    Objective,
    PowerForgeConfig,
    Truth,
    bridge_outputs,
)
from powerphase.models.powerforge.kernels import (
    LossSums,
    LossTerms,
    anchor_context,
    gate_loss,
    make_bridge_inputs,
    power_gradients,
    power_loss,
)
from tests.models.powerforge import TINY, grid_states, network, random_heads, windows
from tests.models.powerforge.straightforward import Straightforward

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = triton.language

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32] if ON_GPU else [torch.float64]

pytestmark = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """The sizes of a case."""

    windows: int
    buses: int
    width: int
    scenarios: int
    steps: int


SIZES = {
    "ours of all": Size(windows=1, buses=1, width=1, scenarios=2, steps=1),
    "odd numbers": Size(windows=2, buses=5, width=16, scenarios=3, steps=3),
    "no padding": Size(windows=1, buses=3, width=3, scenarios=5, steps=5),
    "the paper's scenarios": Size(windows=1, buses=3, width=16, scenarios=16, steps=2),
    "several programs": Size(windows=1, buses=67, width=80, scenarios=2, steps=2),
}

every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def assert_close(
    kernel: Any, expected: Any, what: str = "it", float32_tolerance: float = 1e-4
) -> None:
    """Assert that the norm of each tensor's error is small, relative to its norm."""
    if not isinstance(expected, Tensor):
        names = getattr(expected, "_fields", range(len(expected)))
        for name, ours, theirs in zip(names, kernel, expected, strict=True):
            assert_close(ours, theirs, f"{what}: {name}", float32_tolerance)
        return
    tolerance = 1e-9 if expected.dtype == torch.float64 else float32_tolerance
    assert kernel.dtype == expected.dtype
    error = (kernel - expected).norm()
    assert error <= tolerance * expected.norm() + 1e-12, f"{what} is off by {error:.1e}"


def on_device(tensors: Any, dtype: torch.dtype) -> Any:
    """The tuple of tensors on the kernels' device, in this precision."""
    parts = (part.to(DEVICE, dtype) if part.is_floating_point() else part for part in tensors)
    return type(tensors)(*(part.to(DEVICE) for part in parts))


def heads_of(size: Size, dtype: torch.dtype) -> HeadOutputs:
    return on_device(
        random_heads(size.windows, size.buses, size.scenarios, size.steps, size.width), dtype
    )


def random(dtype: torch.dtype, *size: int, seed: int = 0) -> Tensor:
    values = torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE, dtype)


def truth_of(size: Size, dtype: torch.dtype) -> Truth:
    """Random values; angles turn more than once."""
    shape = (4, size.windows, size.steps, size.buses)
    day, target = random(dtype, *shape, seed=1), random(dtype, *shape, seed=2)
    day[THETA] *= 4
    target[THETA] = target[THETA].clamp(-pi, pi)
    return Truth(day, target)


def objective_of(size: Size, dtype: torch.dtype) -> tuple[Objective, Counts]:
    """An objective with all terms, and levels that are not symmetric."""
    config = replace(TINY, scenarios=size.scenarios, width_cap=0.4, width_weight=0.3)
    objective = Objective(replace(config, jitter_weight=0.5, angle_weight=0.5)).to(DEVICE, dtype)
    objective.law.raw.data += torch.tensor([0.3, -0.1], device=DEVICE)
    counts = Counts(size.windows, size.buses, size.scenarios, size.steps)
    return objective, counts


def terms_of(size: Size, truth: Truth) -> LossTerms:
    objective, counts = objective_of(size, truth.day.dtype)
    weight = random(truth.day.dtype, 4, seed=5).abs() + 0.5
    return objective._terms(truth.target, objective.law.levels().detach(), weight, counts, None)


def kernel_and_plain(function: Any, *arguments: Any) -> tuple[Any, Any]:
    """The results of kernel and plain form on copies, with these copies."""
    copies = [
        [value.clone() if isinstance(value, Tensor) else value for value in arguments]
        for _ in range(2)
    ]
    kernel = function(*copies[0], fast=True), copies[0]
    return kernel, (function(*copies[1], fast=False), copies[1])


@every_size
def test_bridge_inputs(size: Size, dtype: torch.dtype) -> None:
    heads = heads_of(size, dtype)
    assert_close(
        make_bridge_inputs(heads, dtype, fast=True), make_bridge_inputs(heads, dtype, fast=False)
    )


@every_size
def test_loss_of_powers(size: Size, dtype: torch.dtype) -> None:
    heads, truth = heads_of(size, dtype), truth_of(size, dtype)
    terms = terms_of(size, truth)
    kernel, expected = (power_loss(heads, *truth, terms, dtype, fast) for fast in (True, False))
    assert_close(kernel, expected)
    without_gradient, gradient = power_loss(heads, *truth, terms, None, fast=True)
    assert gradient is None
    assert_close(without_gradient, expected[0])


ALWAYS_COMPUTED = LossSums._fields[:5]
"""Sums that do not need gradients."""


@every_size
def test_loss_of_gates(size: Size, dtype: torch.dtype) -> None:
    heads, truth = heads_of(size, dtype), truth_of(size, dtype)
    terms, bridge = terms_of(size, truth), bridge_outputs(heads, fast=False)
    ((kernel, grad_gate), (_, grad_trajectory, *_)), ((expected, oracle), (_, theirs, *_)) = (
        kernel_and_plain(gate_loss, heads, bridge, *truth, terms, True)
    )
    assert_close(kernel, expected)
    assert_close(grad_trajectory, theirs, "the gradient grad_trajectory what is bridge")
    assert not grad_trajectory[..., size.buses :].any()
    assert_close(
        grad_gate[:, :, : size.steps],
        oracle[:, :, : size.steps],
        "the gradient grad_trajectory gates",
    )
    without_gradient, gradient = gate_loss(heads, bridge, *truth, terms, False, fast=True)
    assert gradient is None
    for name in ALWAYS_COMPUTED:
        assert_close(getattr(without_gradient, name), getattr(expected, name), name)


@every_size
def test_gradients_of_powers(size: Size, dtype: torch.dtype) -> None:
    heads = heads_of(size, dtype)
    inputs, attention = make_bridge_inputs(heads, dtype, fast=True)
    grad_inputs = random(dtype, *inputs.shape, seed=3)
    grad_trajectory = random(dtype, *inputs.shape[:3], size.steps, size.width, seed=4)
    grad_gate = random(dtype, *heads.gate.shape, seed=5)
    (kernel, left), (expected, right) = kernel_and_plain(
        power_gradients, heads, attention, grad_inputs, grad_trajectory, grad_gate
    )
    assert_close(kernel, expected)
    assert_close(left[-1], right[-1], "the gradient grad_trajectory gates")
    assert torch.equal(left[-1][:, :, : size.steps], grad_gate[:, :, : size.steps])


def test_loss_and_gradients_of_head_outputs(dtype: torch.dtype) -> None:
    size, kernel = SIZES["odd numbers"], []
    truth = truth_of(size, dtype)
    for fast in (True, False):
        objective, counts = objective_of(size, dtype)
        heads = HeadOutputs(*(part.requires_grad_() for part in heads_of(size, dtype)))
        loss, parts = objective.block_loss(heads, truth, counts, None, fast)
        leaves = [*heads[:-1], objective.type_weight, objective.law.raw]
        crps = objective.crps(heads, truth, counts, fast)
        kernel.append((loss.detach(), parts, crps, *torch.autograd.grad(loss, leaves)))
    assert_close(kernel[0], kernel[1])


TIED = Size(windows=1, buses=3, width=4, scenarios=4, steps=3)


def equal_scenarios(heads: HeadOutputs) -> HeadOutputs:
    tables = ("power_table", "gate_table", "direction_table", "constant_table", "noise")
    return heads._replace(
        **{name: getattr(heads, name)[..., :1].expand_as(getattr(heads, name)) for name in tables}
    )


def two_equal_scenarios(heads: HeadOutputs) -> HeadOutputs:
    order = torch.tensor([0, 1, 0, 3], device=DEVICE)
    tables = ("power_table", "gate_table", "direction_table", "constant_table", "noise")
    return heads._replace(**{name: getattr(heads, name)[..., order] for name in tables})


def on_target(heads: HeadOutputs) -> HeadOutputs:
    """All scenarios equal the reference day."""
    zeros = [torch.zeros_like(part) for part in heads[:-2]]
    return HeadOutputs._make([*zeros, heads.bound, heads.noise * 0])


@pytest.mark.parametrize("change", [equal_scenarios, two_equal_scenarios, on_target])
def test_ties(change: Any, dtype: torch.dtype) -> None:
    """The order of equal scenarios is arbitrary, so only the sum of their gradients is compared."""
    truth = truth_of(TIED, dtype)
    truth = Truth(truth.day, truth.day) if change is on_target else truth
    terms = terms_of(TIED, truth)
    heads = HeadOutputs(*(part.contiguous() for part in change(heads_of(TIED, dtype))))
    bridge = bridge_outputs(heads, fast=False)
    (kernel, grad_trajectory), (expected, oracle) = (
        power_loss(heads, *truth, terms, dtype, fast) for fast in (True, False)
    )
    assert_close(kernel, expected)
    assert_close(_sum_equal(grad_trajectory, change), _sum_equal(oracle, change))
    ((kernel, _), (_, grad_trajectory, *_)), ((expected, _), (_, oracle, *_)) = kernel_and_plain(
        gate_loss, heads, bridge, *truth, terms, True
    )
    assert_close(kernel, expected)
    assert_close(_sum_equal(grad_trajectory, change), _sum_equal(oracle, change))


def _sum_equal(gradient: Any, change: Any) -> Tensor:
    """Gradients with those of equal scenarios summed."""
    if change is two_equal_scenarios:
        return torch.stack(
            [gradient[:, :, 0] + gradient[:, :, 2], gradient[:, :, 1], gradient[:, :, 3]]
        )
    return gradient.sum(2)


CONTEXTS = {
    "default": ({}, 36),
    "not a whole number of days": ({}, 41),
    "without the anchor": ({"anchor": False}, 41),
    "ours day, theirs steps": ({"segments": 1, "query_steps": 5, "bias_steps": 1}, 15),
    "a bias over more than a day": ({"bias_steps": 14}, 36),
    "a day of odd length": ({"segments": 2, "segment_steps": 11}, 23),
}


@pytest.mark.parametrize(("changes", "n_past"), CONTEXTS.values(), ids=CONTEXTS)
def test_anchor(changes: dict[str, Any], n_past: int, dtype: torch.dtype) -> None:
    check_anchor(grid_states(n_past, 5).to(DEVICE, dtype), replace(TINY, **changes), 16)


def test_anchor_with_several_programs(dtype: torch.dtype) -> None:
    check_anchor(grid_states(36, 19).to(DEVICE, dtype), TINY, 19)


def check_anchor(past: Tensor, config: PowerForgeConfig, width: int) -> None:
    gates = random(past.dtype, 2, 2, seed=1).requires_grad_()
    kernel = []
    for fast in (True, False):
        anchored = anchor_context(past, gates, config, width, fast)
        gradient = torch.autograd.grad(
            (anchored.size * random(past.dtype, *anchored.size.shape)).sum(), gates
        )
        kernel.append((*(part.detach() for part in anchored), *gradient))
    assert_close(kernel[0], kernel[1])


def test_anchor_of_strided_contexts(dtype: torch.dtype) -> None:
    record = grid_states(60, 5, n_windows=1)[0].to(DEVICE, dtype)
    check_anchor(record.unfold(0, 36, 7).mT, TINY, 8)  # windows that overlap
    check_anchor(record.T.contiguous().T[None, :40], TINY, 8)
    check_anchor(record[None, :40, 3:-1], TINY, 4)  # unaligned buses


def test_angles_of_pi_keep_every_bit(dtype: torch.dtype) -> None:
    past, half = torch.zeros(1, 36, 8, dtype=torch.float32), float(np.float32(pi))
    past[..., THETA], past[..., 4 + THETA] = half, -half
    anchored = anchor_context(
        past.to(DEVICE, dtype), torch.zeros(2, 2).to(DEVICE, dtype), TINY, 2, True
    )
    assert not anchored.residual.any()
    assert torch.equal(anchored.day[THETA].cpu(), past[:, :12, THETA::4].to(dtype))


SMALL = replace(
    TINY, scenarios=3, segments=2, segment_steps=4, query_steps=3, bias_steps=2, kernels=(3,)
)
NETWORKS = {
    "the defaults": SMALL,
    "winner takes all": replace(SMALL, objective="winner-takes-all"),
    "a clamped gate": replace(SMALL, voltage_gate="clamp"),
    "moving channels": replace(SMALL, still_channels="skip", deviation_floor=1e-4),
}


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_a_whole_training_step(config: PowerForgeConfig, dtype: torch.dtype) -> None:
    net = network(config, n_buses=3, n_past=9, horizon=2, backend="triton").to(DEVICE, dtype)
    context, target = windows(3, 9, 2, n_windows=1)
    noise = random(dtype, 2, 2, 3)
    context, target = replace(context, past=context.past.to(noise)), target.to(noise)
    decoder: Any = net.decoder
    decoder.draw_noise = lambda generator=None: noise
    kernel = []
    for model, more in ((net, ()), (Straightforward(net), (noise.mT,))):
        net.zero_grad()
        loss, parts = model(context, target, *more)
        loss.backward()
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        named = [parts[name].detach() for name in sorted(parts)]
        values = model.scenarios(context).values
        kernel.append((loss.detach(), *named, *gradients, values))
    # Gradients of nearly closed gates are small differences.
    assert_close(kernel[0], kernel[1], float32_tolerance=2e-3)
    fast = net.crps(context, target)
    net.backend = "torch"
    assert_close(fast, net.crps(context, target))


@triton.jit
@no_type_check
def _sort_kernel(values_in, ordered, restored, M: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    values = ()
    for m in tl.static_range(M):
        values += (tl.load(values_in + m * LANES + lane),)
    values, swaps = toolkit.sort_values(values, M)
    for m in tl.static_range(M):
        tl.store(ordered + m * LANES + lane, values[m])
    values = toolkit.restore_order(values, swaps, M)
    for m in tl.static_range(M):
        tl.store(restored + m * LANES + lane, values[m])


@pytest.mark.parametrize("m", [2, 3, 5, 16, 21])
def test_values_are_sorted_and_put_back(m: int, dtype: torch.dtype) -> None:
    values_in = random(dtype, m, 64)
    values_in[:, :16] = (2 * values_in[:, :16]).round()  # ties
    ordered, restored = torch.empty_like(values_in), torch.empty_like(values_in)
    _sort_kernel[(1,)](values_in, ordered, restored, M=m, LANES=64)
    assert torch.equal(ordered, values_in.sort(0).values)
    assert torch.equal(restored, values_in)


@triton.jit
@no_type_check
def _curves_kernel(x_in, curves, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    x = tl.load(x_in + lane)
    curve, gradient = toolkit.softplus(x)
    tl.store(curves + lane, curve)
    tl.store(curves + LANES + lane, gradient)
    curve, gradient = toolkit.tanh(x)
    tl.store(curves + 2 * LANES + lane, gradient)
    tl.store(curves + 3 * LANES + lane, curve)
    tl.store(curves + 4 * LANES + lane, toolkit.wrap(x))
    tl.store(curves + 5 * LANES + lane, toolkit.with_sign_of(x, 3.0))


def test_curves_equal_pytorchs(dtype: torch.dtype) -> None:
    sizes = torch.logspace(-6, 1.3, 31, dtype=torch.float64)
    x = torch.cat([-sizes, torch.zeros(2).double(), sizes]).to(DEVICE, dtype)
    curves = torch.empty(6, 64, device=DEVICE, dtype=dtype)
    _curves_kernel[(1,)](x, curves, LANES=64)
    tolerance, grain = 1e-9 if dtype == torch.float64 else 1e-5, 32 * torch.finfo(dtype).eps
    exact = x.double()
    expected = [torch.nn.functional.softplus(exact), exact.sigmoid(), exact.cosh() ** -2]
    expected += [exact.tanh(), torch.atan2(exact.sin(), exact.cos())]
    # Voltages and angles are sums, so only the last digits of 1 matter.
    for ours, theirs, error in zip(
        curves.double(), expected, (0, 0, 0, grain, grain), strict=False
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=error)
    assert torch.equal(curves[5], 3 * x.sign())
