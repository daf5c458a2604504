"""Every kernel against its twin in PyTorch: on a GPU, or else in Triton's interpreter."""

from dataclasses import replace
from math import pi
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import THETA
from powerphase.models.framework import kernels as toolkit
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.kernels.anchor import anchored
from powerphase.models.powerforge.kernels.bridge_inputs import Views, hear, power_slopes
from powerphase.models.powerforge.kernels.pinball import Sums, Terms, gate_fans, power_fans
from powerphase.models.powerforge.objective import Counts, Objective, Truth, heard_by
from tests.models.powerforge import TINY, grid_states, network, random_views, windows
from tests.models.powerforge.straightforward import Straightforward

triton = pytest.importorskip("triton", reason="kernels need Triton")
tl = triton.language

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
PRECISIONS = [torch.float64, torch.float32] if ON_GPU else [torch.float64]

pytestmark = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


class Size(NamedTuple):
    """Of a case."""

    windows: int
    buses: int
    width: int
    scenarios: int
    steps: int


SIZES = {
    "one of all": Size(windows=1, buses=1, width=1, scenarios=2, steps=1),
    "odd numbers": Size(windows=2, buses=5, width=16, scenarios=3, steps=3),
    "as wide as it is": Size(windows=1, buses=3, width=3, scenarios=5, steps=5),
    "the paper's scenarios": Size(windows=1, buses=3, width=16, scenarios=16, steps=2),
    "several programs": Size(windows=1, buses=67, width=80, scenarios=2, steps=2),
}

every_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def assert_close(found: Any, wanted: Any, what: str = "it", rough: float = 1e-4) -> None:
    """Within a share of the norm, of each tensor; of single precision, a rough one."""
    if not isinstance(wanted, Tensor):
        names = getattr(wanted, "_fields", range(len(wanted)))
        for name, one, other in zip(names, found, wanted, strict=True):
            assert_close(one, other, f"{what}: {name}", rough)
        return
    share = 1e-9 if wanted.dtype == torch.float64 else rough
    assert found.dtype == wanted.dtype
    off = (found - wanted).norm()
    assert off <= share * wanted.norm() + 1e-12, f"{what} is off by {off:.1e}"


def there(given: Any, dtype: torch.dtype) -> Any:
    """The same where kernels run, in this precision."""
    parts = (part.to(DEVICE, dtype) if part.is_floating_point() else part for part in given)
    return type(given)(*(part.to(DEVICE) for part in parts))


def views_of(size: Size, dtype: torch.dtype) -> Views:
    return there(
        random_views(size.windows, size.buses, size.scenarios, size.steps, size.width), dtype
    )


def random(dtype: torch.dtype, *size: int, seed: int = 0) -> Tensor:
    made = torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype)


def truth_of(size: Size, dtype: torch.dtype) -> Truth:
    """Angles go around more than once."""
    shape = (4, size.windows, size.steps, size.buses)
    day, target = random(dtype, *shape, seed=1), random(dtype, *shape, seed=2)
    day[THETA] *= 4
    target[THETA] = target[THETA].clamp(-pi, pi)
    return Truth(day, target)


def objective_of(size: Size, dtype: torch.dtype) -> tuple[Objective, Counts]:
    """With every term, and levels of which one is not the median."""
    config = replace(TINY, scenarios=size.scenarios, width_cap=0.4, width_weight=0.3)
    objective = Objective(replace(config, jitter_weight=0.5, angle_weight=0.5)).to(DEVICE, dtype)
    objective.law.raw.data += torch.tensor([0.3, -0.1], device=DEVICE)
    counts = Counts(size.windows, size.buses, size.scenarios, size.steps)
    return objective, counts


def terms_of(size: Size, truth: Truth) -> Terms:
    objective, counts = objective_of(size, truth.day.dtype)
    weight = random(truth.day.dtype, 4, seed=5).abs() + 0.5
    return objective._terms(truth.target, objective.law.levels().detach(), weight, counts, None)


def both_ways(function: Any, *given: Any) -> tuple[Any, Any]:
    """What kernel and twin make of copies of the same."""
    copies = [[one.clone() if isinstance(one, Tensor) else one for one in given] for _ in range(2)]
    found = function(*copies[0], fast=True), copies[0]
    return found, (function(*copies[1], fast=False), copies[1])


@every_size
def test_what_is_heard(size: Size, dtype: torch.dtype) -> None:
    views = views_of(size, dtype)
    assert_close(hear(views, dtype, fast=True), hear(views, dtype, fast=False))


@every_size
def test_fans_of_powers(size: Size, dtype: torch.dtype) -> None:
    views, truth = views_of(size, dtype), truth_of(size, dtype)
    terms = terms_of(size, truth)
    found, wanted = (power_fans(views, *truth, terms, dtype, fast) for fast in (True, False))
    assert_close(found, wanted)
    silent, slope = power_fans(views, *truth, terms, None, fast=True)
    assert slope is None
    assert_close(silent, wanted[0])


READ_ALWAYS = Sums._fields[:5]
"""What is asked for without slopes too."""


@every_size
def test_fans_of_gates(size: Size, dtype: torch.dtype) -> None:
    views, truth = views_of(size, dtype), truth_of(size, dtype)
    terms, added = terms_of(size, truth), heard_by(views, fast=False)
    ((found, of_gate), (_, along, *_)), ((wanted, oracle), (_, other, *_)) = both_ways(
        gate_fans, views, added, *truth, terms, True
    )
    assert_close(found, wanted)
    assert_close(along, other, "the slope along what is added")
    assert not along[..., size.buses :].any()
    assert_close(of_gate[:, :, : size.steps], oracle[:, :, : size.steps], "the slope along gates")
    silent, slope = gate_fans(views, added, *truth, terms, False, fast=True)
    assert slope is None
    for name in READ_ALWAYS:
        assert_close(getattr(silent, name), getattr(wanted, name), name)


@every_size
def test_slopes_of_powers(size: Size, dtype: torch.dtype) -> None:
    views = views_of(size, dtype)
    heard, share = hear(views, dtype, fast=True)
    of_heard = random(dtype, *heard.shape, seed=3)
    along = random(dtype, *heard.shape[:3], size.steps, size.width, seed=4)
    of_gate = random(dtype, *views.gate.shape, seed=5)
    (found, left), (wanted, right) = both_ways(power_slopes, views, share, of_heard, along, of_gate)
    assert_close(found, wanted)
    assert_close(left[-1], right[-1], "the slope along gates")
    assert torch.equal(left[-1][:, :, : size.steps], of_gate[:, :, : size.steps])


def test_losses_and_slopes_of_views(dtype: torch.dtype) -> None:
    size, found = SIZES["odd numbers"], []
    truth = truth_of(size, dtype)
    for fast in (True, False):
        objective, counts = objective_of(size, dtype)
        views = Views(*(part.requires_grad_() for part in views_of(size, dtype)))
        loss, parts = objective.of_block(views, truth, counts, None, fast)
        leaves = [*views[:-1], objective.type_weight, objective.law.raw]
        crps = objective.crps(views, truth, counts, fast)
        found.append((loss.detach(), parts, crps, *torch.autograd.grad(loss, leaves)))
    assert_close(*found)


TIED = Size(windows=1, buses=3, width=4, scenarios=4, steps=3)


def equal_scenarios(views: Views) -> Views:
    tables = ("power_table", "gate_table", "direction_table", "constant_table", "noise")
    return views._replace(
        **{name: getattr(views, name)[..., :1].expand_as(getattr(views, name)) for name in tables}
    )


def two_equal_scenarios(views: Views) -> Views:
    order = torch.tensor([0, 1, 0, 3], device=DEVICE)
    tables = ("power_table", "gate_table", "direction_table", "constant_table", "noise")
    return views._replace(**{name: getattr(views, name)[..., order] for name in tables})


def on_target(views: Views) -> Views:
    """All scenarios are the reference day itself."""
    return Views(*(torch.zeros_like(part) for part in views[:-2]), views.bound, views.noise * 0)


@pytest.mark.parametrize("change", [equal_scenarios, two_equal_scenarios, on_target])
def test_ties(change: Any, dtype: torch.dtype) -> None:
    """Which of equal scenarios answers for which level is nobody's business: their sum counts."""
    truth = truth_of(TIED, dtype)
    truth = Truth(truth.day, truth.day) if change is on_target else truth
    terms = terms_of(TIED, truth)
    views = Views(*(part.contiguous() for part in change(views_of(TIED, dtype))))
    added = heard_by(views, fast=False)
    (found, along), (wanted, oracle) = (
        power_fans(views, *truth, terms, dtype, fast) for fast in (True, False)
    )
    assert_close(found, wanted)
    assert_close(_together(along, change), _together(oracle, change))
    ((found, _), (_, along, *_)), ((wanted, _), (_, oracle, *_)) = both_ways(
        gate_fans, views, added, *truth, terms, True
    )
    assert_close(found, wanted)
    assert_close(_together(along, change), _together(oracle, change))


def _together(slope: Tensor, change: Any) -> Tensor:
    """With the slopes of equal scenarios added up."""
    if change is two_equal_scenarios:
        return torch.stack([slope[:, :, 0] + slope[:, :, 2], slope[:, :, 1], slope[:, :, 3]])
    return slope.sum(2)


WEEKS = {
    "as it is": ({}, 36),
    "not a whole number of days": ({}, 41),
    "without the anchor": ({"anchor": False}, 41),
    "one day, other steps": ({"segments": 1, "query_steps": 5, "bias_steps": 1}, 15),
    "a bias of more than a day": ({"bias_steps": 14}, 36),
    "a day of odd length": ({"segments": 2, "segment_steps": 11}, 23),
}


@pytest.mark.parametrize(("changes", "n_past"), WEEKS.values(), ids=WEEKS)
def test_weeks(changes: dict[str, Any], n_past: int, dtype: torch.dtype) -> None:
    check_weeks(grid_states(n_past, 5).to(DEVICE, dtype), replace(TINY, **changes), 16)


def test_weeks_of_several_programs(dtype: torch.dtype) -> None:
    check_weeks(grid_states(36, 19).to(DEVICE, dtype), TINY, 19)


def check_weeks(past: Tensor, config: PowerForgeConfig, width: int) -> None:
    gates = random(past.dtype, 2, 2, seed=1).requires_grad_()
    found = []
    for fast in (True, False):
        week = anchored(past, gates, config, width, fast)
        slope = torch.autograd.grad((week.size * random(past.dtype, *week.size.shape)).sum(), gates)
        found.append((*(part.detach() for part in week), *slope))
    assert_close(*found)


def test_weeks_that_are_not_in_one_piece(dtype: torch.dtype) -> None:
    record = grid_states(60, 5, n_windows=1)[0].to(DEVICE, dtype)
    check_weeks(record.unfold(0, 36, 7).mT, TINY, 8)  # windows that overlap
    check_weeks(record.T.contiguous().T[None, :40], TINY, 8)
    check_weeks(record[None, :40, 3:-1], TINY, 4)  # a bus that begins anywhere


def test_angles_of_half_a_turn_keep_every_bit(dtype: torch.dtype) -> None:
    past, half = torch.zeros(1, 36, 8, dtype=torch.float32), float(np.float32(pi))
    past[..., THETA], past[..., 4 + THETA] = half, -half
    week = anchored(past.to(DEVICE, dtype), torch.zeros(2, 2).to(DEVICE, dtype), TINY, 2, True)
    assert not week.residual.any()
    assert torch.equal(week.day[THETA].cpu(), past[:, :12, THETA::4].to(dtype))


SMALL = replace(
    TINY, scenarios=3, segments=2, segment_steps=4, query_steps=3, bias_steps=2, kernels=(3,)
)
NETWORKS = {
    "the defaults": SMALL,
    "the winner takes all": replace(SMALL, objective="winner-takes-all"),
}


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_a_whole_step(config: PowerForgeConfig, dtype: torch.dtype) -> None:
    net = network(config, n_buses=3, n_past=9, horizon=2, backend="triton").to(DEVICE, dtype)
    context, target = windows(3, 9, 2, n_windows=1)
    noise = random(dtype, 2, 2, 3)
    context, target = replace(context, past=context.past.to(noise)), target.to(noise)
    net.decoder.draw_noise = lambda generator=None: noise
    found = []
    for model, more in ((net, ()), (Straightforward(net), (noise.mT,))):
        net.zero_grad()
        loss, parts = model(context, target, *more)
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in net.parameters()]
        named = [parts[name].detach() for name in sorted(parts)]
        values = model.scenarios(context).values
        found.append((loss.detach(), *named, *gradients, values))
    assert_close(*found, rough=2e-3)  # gates are nearly shut, and their slopes small differences
    fast = net.crps(context, target)
    net.backend = "torch"
    assert_close(fast, net.crps(context, target))


@triton.jit
def _sort_kernel(given, ordered, back, M: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    values = ()
    for m in tl.static_range(M):
        values += (tl.load(given + m * LANES + lane),)
    values, words = toolkit.sort_values(values, M)
    for m in tl.static_range(M):
        tl.store(ordered + m * LANES + lane, values[m])
    values = toolkit.restore_order(values, words, M)
    for m in tl.static_range(M):
        tl.store(back + m * LANES + lane, values[m])


@pytest.mark.parametrize("m", [2, 3, 5, 16, 21])
def test_values_are_sorted_and_put_back(m: int, dtype: torch.dtype) -> None:
    given = random(dtype, m, 64)
    given[:, :16] = (2 * given[:, :16]).round()  # ties
    ordered, back = torch.empty_like(given), torch.empty_like(given)
    _sort_kernel[(1,)](given, ordered, back, M=m, LANES=64)
    assert torch.equal(ordered, given.sort(0).values)
    assert torch.equal(back, given)


@triton.jit
def _curves_kernel(given, found, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    x = tl.load(given + lane)
    curve, slope = toolkit.softplus(x)
    tl.store(found + lane, curve)
    tl.store(found + LANES + lane, slope)
    curve, slope = toolkit.tanh(x)
    tl.store(found + 2 * LANES + lane, slope)
    tl.store(found + 3 * LANES + lane, curve)
    tl.store(found + 4 * LANES + lane, toolkit.wrap(x))
    tl.store(found + 5 * LANES + lane, toolkit.with_sign_of(x, 3.0))


def test_curves_are_pytorch_s_near_and_far(dtype: torch.dtype) -> None:
    sizes = torch.logspace(-6, 1.3, 31, dtype=torch.float64)
    x = torch.cat([-sizes, torch.zeros(2).double(), sizes]).to(DEVICE, dtype)
    found = torch.empty(6, 64, device=DEVICE, dtype=dtype)
    _curves_kernel[(1,)](x, found, LANES=64)
    share, grain = 1e-9 if dtype == torch.float64 else 1e-5, 32 * torch.finfo(dtype).eps
    exact = x.double()
    wanted = [torch.nn.functional.softplus(exact), exact.sigmoid(), exact.cosh() ** -2]
    wanted += [exact.tanh(), torch.atan2(exact.sin(), exact.cos())]
    # Voltages and angles are sums, so that no more than the last digits of 1 matter.
    for one, other, off in zip(found.double(), wanted, (0, 0, 0, grain, grain), strict=False):
        torch.testing.assert_close(one, other, rtol=share, atol=off)
    assert torch.equal(found[5], 3 * x.sign())
