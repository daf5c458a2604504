"""Fans: the loss of ordered scenarios, and its slope along each of them, in one pass.

Scenarios are sorted at every point, and scenario m of the order answers for the level τ_m. Each
term is piecewise linear in the scenarios, so the slope is known as soon as the terms are. It is put
back into the order in which the scenarios came; nothing else of all that happens here is kept.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import THETA, P, Q, V
from powerphase.models.framework import kernels as toolkit
from powerphase.models.framework.kernels import constexpr, jit, tl, triton
from powerphase.models.powerforge.anchor import wrap
from powerphase.models.powerforge.kernels.bridge_inputs import Views, power_at, trajectory

M, H = 1, 2
"""Where scenarios and steps are among the axes of scenarios, B M H W."""

BLOCK = 64
"""Buses that one program works on, each in a lane of its own."""


class Terms(NamedTuple):
    """What the sums of the objective are multiplied by, and which scenarios they look at."""

    factors: Float[Tensor, " 5"]
    """Of width, jitter, the wrapped steps of angles, and open voltage gates; and the width's cap,
    in standard deviations."""
    level: Float[Tensor, " M"]
    worth: Float[Tensor, "4 M"]
    """How much the pinball counts, by kind and place in the order."""
    nearest: Int[Tensor, " 3"]
    """The places whose levels are nearest to the low and the high one, and to the median."""
    scale: Float[Tensor, "4 B N"]
    """Standard deviation of the target, by which width and jitter are divided."""
    chosen: Float[Tensor, "B M"] | None = None
    """Where the winner takes all: 1 for the scenario of each window that counts, 0 for others."""


class Sums(NamedTuple):
    """Over windows, buses and steps, for two kinds."""

    error: Float[Tensor, "2 M"]
    """Target less scenario, by its place in the order."""
    above: Float[Tensor, " 2"]
    """How far scenarios lie above the target, by their worth."""
    width: Float[Tensor, " 2"]
    jitter: Float[Tensor, " 2"]
    ramp: Float[Tensor, " 2"]
    """Of angles."""
    opening: Float[Tensor, " 2"]
    """Half the square of tanh, of voltages."""
    bound: Float[Tensor, " 2"]
    """Slope of the loss along the bounds, of voltages and angles."""


def power_fans(
    views: Views,
    day: Float[Tensor, "4 B H N"],
    target: Float[Tensor, "4 B H N"],
    terms: Terms,
    slopes: torch.dtype | None,
    fast: bool,
) -> tuple[Sums, Float[Tensor, "2 B M H W"] | None]:
    """The sums of P and Q; with slopes, also that of the loss along their deviations."""
    fast = fast and _has_kernel(terms)
    return (_power_fans_fast if fast else _power_fans_plain)(views, day, target, terms, slopes)


def gate_fans(
    views: Views,
    added: Float[Tensor, "2 B M H W"],
    day: Float[Tensor, "4 B H N"],
    target: Float[Tensor, "4 B H N"],
    terms: Terms,
    slopes: bool,
    fast: bool,
) -> tuple[Sums, Float[Tensor, "B 2 HHH1 W"] | None]:
    """The sums of V and θ; with slopes, also that of the loss along their gates.

    `added` is what P and Q add to the gates; with slopes, the slope along it takes its place.
    """
    fast = fast and _has_kernel(terms)
    return (_gate_fans_fast if fast else _gate_fans_plain)(views, added, day, target, terms, slopes)


def _has_kernel(terms: Terms) -> bool:
    """The kernel is for ordered scenarios, and has 32 bits for who changed places with whom."""
    return terms.chosen is None and len(terms.level) <= 32


def opening(views: Views, added: Float[Tensor, "2 B M H W"], kind: int) -> Float[Tensor, "B M H W"]:
    """How far the gates of V (0) or θ (1) are open, between −1 and 1."""
    steps = views.gate_table.shape[1]
    own = views.gate[:, kind, :steps].unsqueeze(M)
    return torch.tanh(added[kind] + own + views.gate_table[kind].T.unsqueeze(2))


def _power_fans_plain(
    views: Views, day: Tensor, target: Tensor, terms: Terms, slopes: torch.dtype | None
) -> tuple[Sums, Tensor | None]:
    windows, scenarios, steps, width = views.sizes
    size = (2, windows, scenarios, steps, width)
    along = None if slopes is None else views.power.new_zeros(size, dtype=slopes)
    found = []
    for kind in (P, Q):
        x = trajectory(views, kind)[..., : day.shape[3]] + day[kind].unsqueeze(M)
        sums, slope = _fan(x, target[kind], kind, terms)
        found.append([*sums, torch.zeros_like(sums[1]), torch.zeros_like(sums[1])])
        if along is not None:
            along[kind, ..., : day.shape[3]] = slope
    return _stacked(found), along


def _gate_fans_plain(
    views: Views, added: Tensor, day: Tensor, target: Tensor, terms: Terms, slopes: bool
) -> tuple[Sums, Tensor | None]:
    steps, buses = day.shape[2:]
    of_gate = torch.zeros_like(views.gate) if slopes else None
    found = []
    for number, kind in enumerate((V, THETA)):
        gate, bound = opening(views, added, number)[..., :buses], views.bound[number]
        x = bound * gate + day[kind].unsqueeze(M)
        sums, slope = _fan(wrap(x) if kind == THETA else x, target[kind], kind, terms)
        half_square = gate.square().sum() / 2 if kind == V else torch.zeros_like(sums[1])
        found.append([*sums, half_square, (slope * gate).sum()])
        if of_gate is None:
            continue
        slope = slope * bound
        if kind == V:
            slope += terms.factors[3] * gate
        slope *= 1 - gate.square()
        added[number] = F.pad(slope, (0, added.shape[4] - buses))
        of_gate[:, number, :steps] = added[number].sum(M)
    return _stacked(found), of_gate


def _stacked(found: list[list[Tensor]]) -> Sums:
    return Sums(*(torch.stack(pair) for pair in zip(*found, strict=True)))


def _fan(
    x: Float[Tensor, "B M H N"], target: Float[Tensor, "B H N"], kind: int, terms: Terms
) -> tuple[list[Tensor], Float[Tensor, "B M H N"]]:
    """The sums of one kind, and the slope of their loss along each scenario."""
    if terms.chosen is not None:
        return _winner(x, target, kind, terms, terms.chosen[:, :, None, None])
    fan, order = x.sort(M)
    error = target.unsqueeze(M) - fan
    by_place, worth = error.sum((0, H, 3)), terms.worth[kind]
    above = (F.relu(-error).sum((0, H, 3)) * worth).sum()
    slope = ((error < 0).to(x.dtype) - terms.level[:, None, None]) * worth[:, None, None]
    scale = terms.scale[kind, :, None, None]  # B 1 1 N
    shaped = [_add_width(fan, slope, scale, terms), _add_jitter(fan, slope, scale, terms)]
    ramp = _add_ramp(fan, slope, terms.factors[2]) if kind == THETA else above.new_zeros(())
    return [by_place, above, *shaped, ramp], torch.empty_like(slope).scatter_(M, order, slope)


def _winner(
    x: Tensor, target: Tensor, kind: int, terms: Terms, chosen: Float[Tensor, "B M 1 1"]
) -> tuple[list[Tensor], Tensor]:
    """The same where the winner takes all: scenarios are not ordered, and one of them counts."""
    error, worth = (x - target.unsqueeze(M)) * chosen, terms.worth[kind][:, None, None]
    none = error.new_zeros(())
    distance, slope = (error.abs() * worth).sum(), error.sign() * worth
    ramp = _add_ramp(x, slope, terms.factors[2]) if kind == THETA else none
    return [torch.zeros_like(terms.level), distance, none, none, ramp], slope


def _add_width(fan: Tensor, slope: Tensor, scale: Tensor, terms: Terms) -> Tensor:
    """How far the fan is wider than the cap; the slope gets the term's."""
    low, high, cap = terms.nearest[:1], terms.nearest[1:2], terms.factors[4] * scale
    excess = (fan.index_select(M, high) - fan.index_select(M, low)) / cap - 1
    push = (excess > 0) * (terms.factors[0] / cap)
    slope.index_add_(M, high, push).index_add_(M, low, -push)
    return F.relu(excess).sum()


def _add_jitter(fan: Tensor, slope: Tensor, scale: Tensor, terms: Terms) -> Tensor:
    """How much the fan flutters around its median from step to step."""
    middle = terms.nearest[2:]
    step = (fan - fan.index_select(M, middle)).diff(dim=H)
    jitter = (step.abs().sum((M, H), keepdim=True) / scale).sum()
    push = step.sign_().mul_(terms.factors[1] / scale)
    _add_steps(slope, push)
    # Whatever moves all others against the median moves the median the other way.
    total = push.sum(M, keepdim=True)
    back = F.pad(total, (0, 0, 0, 1)) - F.pad(total, (0, 0, 1, 0))
    slope.index_add_(M, middle, back)
    return jitter


def _add_ramp(fan: Tensor, slope: Tensor, factor: Tensor) -> Tensor:
    """How much angles move from step to step, the shorter way around."""
    step = wrap(fan.diff(dim=H))
    ramp = step.abs().sum()
    _add_steps(slope, step.sign_().mul_(factor))
    return ramp


def _add_steps(slope: Tensor, push: Tensor) -> None:
    slope[:, :, 1:] += push
    slope[:, :, :-1] -= push


@jit
@no_type_check
def _open_scenarios(
    along, gate, table, limit, offset, now, is_angle, width, M: constexpr, H: constexpr
):
    """The scenarios of V or θ at one step; the pointers are there."""
    own = tl.load(gate, now, 0.0)
    values = ()
    for m in tl.static_range(M):
        x = tl.load(along + m * H * width, now, 0.0).to(own.dtype)
        x, _ = toolkit.tanh(x + own + tl.load(table + m))
        x = limit * x + offset
        values += (tl.where(is_angle, toolkit.wrap(x), x),)
    return values


@jit
@no_type_check
def _power_scenarios(power, table, noise, offset, now, width, M: constexpr, H: constexpr):
    """The scenarios of P or Q at one step; the pointers are there."""
    mean, spread = tl.load(power, now, 0.0), tl.load(power + H * width, now, 0.0)
    values = ()
    for m in tl.static_range(M):
        x, _ = power_at(mean, spread, table + m, noise + m, True, H, M)
        values += (x + offset,)
    return values


@jit
@no_type_check
def _weighed(values, coefficients, M: constexpr):
    """The sum of values times coefficients."""
    total = tl.load(coefficients) * values[0]
    for k in tl.static_range(1, M):
        total += tl.load(coefficients + k) * values[k]
    return total


@jit
@no_type_check
def _close_gates(
    along, slopes, gate, table, limit, voltage, was, there, sums, width, M: constexpr, H: constexpr
):
    """From slopes along V or θ to those along their gates, where the pointers are.

    Besides, their sum over scenarios, and `sums` of squared openings and of slopes along bounds.
    """
    own = tl.load(gate, was, 0.0)
    all_open = tl.zeros_like(own)
    opened, along_bound = sums
    for m in tl.static_range(M):
        at = along + m * H * width
        x, steep = toolkit.tanh(tl.load(at, was, 0.0).to(own.dtype) + own + tl.load(table + m))
        slope = tl.where(was, slopes[m], 0.0)
        along_bound += slope * x
        opened += tl.where(was, x * x, 0.0)
        slope = tl.where(was, (slope * limit + voltage * x) * steep, 0.0)
        all_open += slope
        tl.store(at, slope, there)
    return all_open, (opened, along_bound)


@jit
@no_type_check
def _fans_kernel(
    power,
    power_table,
    noise,
    gate,
    gate_table,
    bound,
    along,
    of_gate,
    day,
    target,
    scale,
    coefficients,
    factors,
    sums,
    width,
    buses,
    M: constexpr,
    H: constexpr,
    GATES: constexpr,
    SLOPES: constexpr,
    BLOCK: constexpr,
):
    """`along` takes the slopes; of V and θ, it has what P and Q add to their gates."""
    kind, b, windows = tl.program_id(2), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, valid = n < width, n < buses
    none = tl.zeros([BLOCK], scale.dtype.element_ty)
    is_voltage, is_angle = GATES & (kind == 0), GATES & (kind == 1)
    place = (2 * GATES + kind) * windows + b  # among all kinds and windows
    day += place * H * buses + n
    target += place * H * buses + n
    coefficients += (2 * GATES + kind) * 4 * M
    unit = 1 / tl.load(scale + place * buses + n, valid, 1.0)
    cap = unit / tl.load(factors + 4)
    wide, flutter = tl.load(factors) * cap, tl.load(factors + 1) * unit
    ramp = tl.where(is_angle, tl.load(factors + 2), 0.0)
    voltage = tl.where(is_voltage, tl.load(factors + 3), 0.0)
    here = kind * windows + b
    along += here * M * H * width + n
    power += (b * 2 + kind) * 2 * H * width + n
    gate += (b * 2 + kind) * (3 * H + 1) * width + n
    of_gate += (b * 2 + kind) * (3 * H + 1) * width + n
    limit = tl.load(bound + kind)
    above = none
    wider = none
    jitter = none
    ramps = none
    of_gates = (none, none)
    median_before = none
    before = ()
    slope_before = ()
    errors = ()
    words_before = ()
    for _place in tl.static_range(M):
        before += (none,)
        slope_before += (none,)
        errors += (none,)
    for _layer in tl.static_range(toolkit.n_layers(M)):
        words_before += (tl.zeros([BLOCK], tl.int32),)
    # A step's slope is complete when the next step is known, so one step more is taken.
    for h in range(H + 1):
        now = valid & (h < H)
        counts = tl.where(h < H, 1.0, 0.0).to(none.dtype)
        moves = tl.where(h > 0, counts, 0.0)
        offset = tl.load(day + h * buses, now, 0.0)
        z = tl.load(target + h * buses, now, 0.0)
        last = tl.minimum(h, H - 1)
        at = (kind * H + last) * M
        if GATES:
            values = _open_scenarios(
                along + last * width, gate + last * width, gate_table + at, limit, offset, now,
                is_angle, width, M, H,
            )  # fmt: skip
        else:
            values = _power_scenarios(
                power + last * width, power_table + kind * H * M + at, noise + at, offset, now,
                width, M, H,
            )  # fmt: skip
        values, words = toolkit.sort_values(values, M)
        excess = _weighed(values, coefficients + 2 * M, M) * cap - 1
        wider += counts * tl.maximum(excess, 0.0)
        push = tl.where(excess > 0, wide, 0.0)
        median = _weighed(values, coefficients + 3 * M, M)
        slope = ()
        complete = ()
        next_errors = ()
        total = none
        for k in tl.static_range(M):
            error = z - values[k]
            worth = tl.load(coefficients + k)
            next_errors += (errors[k] + counts * error,)
            above += (counts * worth) * tl.maximum(-error, 0.0)
            own = tl.load(coefficients + M + k) + tl.where(error < 0, worth, 0.0)
            step = values[k] - before[k]
            strays = step - (median - median_before)
            jitter += moves * tl.abs(strays)
            pushed = toolkit.with_sign_of(strays, moves * flutter)
            total += pushed
            if GATES:
                step = toolkit.wrap(step)
                ramps += moves * tl.abs(step)
                pushed += toolkit.with_sign_of(step, moves * ramp)
            slope += (own + tl.load(coefficients + 2 * M + k) * push + pushed,)
            complete += (slope_before[k] - pushed,)
        errors = next_errors
        before = values
        median_before = median
        if SLOPES:
            # Whatever moves all others against the median moves the median the other way.
            next_slope = ()
            last_slope = ()
            for k in tl.static_range(M):
                back = tl.load(coefficients + 3 * M + k) * total
                last_slope += (complete[k] + back,)
                next_slope += (slope[k] - back,)
            slope_before = next_slope
            done = toolkit.restore_order(last_slope, words_before, M)
            words_before = words
            past, was, writes = tl.maximum(h - 1, 0), valid & (h > 0), there & (h > 0)
            if GATES:
                table = gate_table + (kind * H + past) * M
                all_open, of_gates = _close_gates(
                    along + past * width, done, gate + past * width, table, limit, voltage, was,
                    writes, of_gates, width, M, H,
                )  # fmt: skip
                tl.store(of_gate + past * width, all_open, writes)
            else:
                for m in tl.static_range(M):
                    tl.store(along + (m * H + past) * width, tl.where(was, done[m], 0.0), writes)
    sums += (here * tl.num_programs(0) + tl.program_id(0)) * (M + 6)
    for k in tl.static_range(M):
        tl.store(sums + k, tl.sum(tl.where(valid, errors[k], 0.0), 0))
    tl.store(sums + M, tl.sum(tl.where(valid, above, 0.0), 0))
    tl.store(sums + M + 1, tl.sum(tl.where(valid, wider, 0.0), 0))
    tl.store(sums + M + 2, tl.sum(tl.where(valid, jitter * unit, 0.0), 0))
    tl.store(sums + M + 3, tl.sum(tl.where(valid & is_angle, ramps, 0.0), 0))
    tl.store(sums + M + 4, tl.sum(tl.where(valid & is_voltage, of_gates[0], 0.0), 0) / 2)
    tl.store(sums + M + 5, tl.sum(tl.where(valid, of_gates[1], 0.0), 0))


def _power_fans_fast(
    views: Views, day: Tensor, target: Tensor, terms: Terms, slopes: torch.dtype | None
) -> tuple[Sums, Tensor | None]:
    windows, scenarios, steps, width = views.sizes
    size = (2, windows, scenarios, steps, width)
    along = None if slopes is None else views.power.new_empty(size, dtype=slopes)
    place = views.gate if along is None else along  # where nothing is written, anything will do
    return _run(views, place, views.gate, day, target, terms, False, along is not None), along


def _gate_fans_fast(
    views: Views, added: Tensor, day: Tensor, target: Tensor, terms: Terms, slopes: bool
) -> tuple[Sums, Tensor | None]:
    of_gate = torch.empty_like(views.gate) if slopes else None
    place = views.gate if of_gate is None else of_gate
    return _run(views, added, place, day, target, terms, True, slopes), of_gate


def _run(
    views: Views,
    along: Tensor,
    of_gate: Tensor,
    day: Tensor,
    target: Tensor,
    terms: Terms,
    gates: bool,
    slopes: bool,
) -> Sums:
    (windows, scenarios, steps, width), buses = views.sizes, day.shape[3]
    n_blocks = triton.cdiv(width, BLOCK)
    sums = day.new_empty(2, windows * n_blocks, scenarios + 6)
    _fans_kernel[(n_blocks, windows, 2)](
        *(views.power, views.power_table, views.noise, views.gate, views.gate_table, views.bound),
        *(along, of_gate, day, target, terms.scale, _coefficients(terms), terms.factors, sums),
        *(width, buses),
        M=scenarios,
        H=steps,
        GATES=gates,
        SLOPES=slopes,
        BLOCK=BLOCK,
        num_warps=BLOCK // 32,
    )
    error, *others = sums.sum(1).split([scenarios, *[1] * 6], dim=1)
    return Sums(error, *(other.squeeze(1) for other in others))


def _coefficients(terms: Terms) -> Float[Tensor, "4 4 M"]:
    """By kind and place: its worth, times its level, and whether it is high, low or the median."""
    worth, level = terms.worth, terms.level
    places = torch.arange(len(level), device=level.device)
    low, high, middle = (places == terms.nearest[:, None]).to(level.dtype)
    rows = (worth, -level * worth, (high - low).expand(4, -1), middle.expand(4, -1))
    return torch.stack(rows, dim=1)
