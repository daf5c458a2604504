"""The loss of ordered scenarios and its gradient, in one pass over the scenarios.

`pinball_torch` has the same in plain PyTorch, and says what is computed. The kernel keeps the
scenarios of one step in registers and stores nothing but the sums and the gradient.
"""

from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework import kernels as toolkit
from powerphase.models.framework.kernels import constexpr, jit, tl, triton
from powerphase.models.powerforge.decoder import HeadOutputs
from powerphase.models.powerforge.kernels.bridge_inputs import power_at
from powerphase.models.powerforge.kernels.pinball_torch import (
    LossSums,
    LossTerms,
    gate_loss_torch,
    power_loss_torch,
)

BLOCK = 64
"""Buses of one program, one in each lane."""


def power_loss(
    heads: HeadOutputs,
    day: Float[Tensor, "4 B H N"],
    target: Float[Tensor, "4 B H N"],
    terms: LossTerms,
    dtype: torch.dtype | None,
    fast: bool,
) -> tuple[LossSums, Float[Tensor, "2 B M H W"] | None]:
    """The loss sums of P and Q; with a dtype, also the gradient along their residuals."""
    fast = fast and _has_kernel(terms)
    return (_power_loss_triton if fast else power_loss_torch)(heads, day, target, terms, dtype)


def gate_loss(
    heads: HeadOutputs,
    bridge: Float[Tensor, "2 B M H W"],
    day: Float[Tensor, "4 B H N"],
    target: Float[Tensor, "4 B H N"],
    terms: LossTerms,
    needs_gradient: bool,
    fast: bool,
) -> tuple[LossSums, Float[Tensor, "B 2 HHH1 W"] | None]:
    """The loss sums of V and θ; if needed, also the gradient along their gates.

    The gradient along `bridge`, the bridge's output, overwrites it.
    """
    fast = fast and _has_kernel(terms)
    return (_gate_loss_triton if fast else gate_loss_torch)(
        heads, bridge, day, target, terms, needs_gradient
    )


def _has_kernel(terms: LossTerms) -> bool:
    """Whether the kernel applies: it orders scenarios, with a word of 32 bits for their swaps."""
    return terms.winner is None and len(terms.level) <= 32


@jit
@no_type_check
def _gate_scenarios(
    bridge, gate, table, limit, offset, valid, is_angle, width, M: constexpr, H: constexpr
):
    """The scenarios of V or θ at one step, to which the pointers point."""
    of_bus = tl.load(gate, valid, 0.0)
    values = ()
    for m in tl.static_range(M):
        x = tl.load(bridge + m * H * width, valid, 0.0).to(of_bus.dtype)
        x, _ = toolkit.tanh(x + of_bus + tl.load(table + m))
        x = limit * x + offset
        values += (tl.where(is_angle, toolkit.wrap(x), x),)
    return values


@jit
@no_type_check
def _power_scenarios(power, table, noise, offset, valid, width, M: constexpr, H: constexpr):
    """The scenarios of P or Q at one step, to which the pointers point."""
    mean, spread = tl.load(power, valid, 0.0), tl.load(power + H * width, valid, 0.0)
    values = ()
    for m in tl.static_range(M):
        x, _ = power_at(mean, spread, table + m, noise + m, True, H, M)
        values += (x + offset,)
    return values


@jit
@no_type_check
def _weighted_sum(values, coefficients, M: constexpr):
    """The sum of values times coefficients."""
    total = tl.load(coefficients) * values[0]
    for k in tl.static_range(1, M):
        total += tl.load(coefficients + k) * values[k]
    return total


@jit
@no_type_check
def _gate_gradients(
    bridge,
    gradients,
    gate,
    table,
    limit,
    voltage,
    valid,
    writes,
    sums,
    width,
    M: constexpr,
    H: constexpr,
):
    """Turn gradients along V or θ at one step into gradients along their gates.

    Returns their sum over scenarios, and the updated `sums` of squared gates and of gradients along
    the bounds.
    """
    of_bus = tl.load(gate, valid, 0.0)
    gate_total = tl.zeros_like(of_bus)
    squares, bound_total = sums
    for m in tl.static_range(M):
        entry = bridge + m * H * width
        x = tl.load(entry, valid, 0.0).to(of_bus.dtype)
        x, derivative = toolkit.tanh(x + of_bus + tl.load(table + m))
        gradient = tl.where(valid, gradients[m], 0.0)
        bound_total += gradient * x
        squares += tl.where(valid, x * x, 0.0)
        gradient = tl.where(valid, (gradient * limit + voltage * x) * derivative, 0.0)
        gate_total += gradient
        tl.store(entry, gradient, writes)
    return gate_total, (squares, bound_total)


@jit
@no_type_check
def _loss_kernel(
    power,
    power_table,
    noise,
    gate,
    gate_table,
    bound,
    data,
    grad_gate,
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
    GRADIENTS: constexpr,
    BLOCK: constexpr,
):
    """Some buses of one window and kind: `data` takes the gradients along the scenarios.

    For V and θ, `data` holds the bridge's output before.
    """
    kind, b, windows = tl.program_id(2), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_width, in_grid = n < width, n < buses
    zero = tl.zeros([BLOCK], scale.dtype.element_ty)
    is_voltage, is_angle = GATES & (kind == 0), GATES & (kind == 1)
    plane = (2 * GATES + kind) * windows + b  # among all kinds and windows
    day += plane * H * buses + n
    target += plane * H * buses + n
    coefficients += (2 * GATES + kind) * 4 * M
    unit = 1 / tl.load(scale + plane * buses + n, in_grid, 1.0)
    cap = unit / tl.load(factors + 4)
    width_factor, jitter_factor = tl.load(factors) * cap, tl.load(factors + 1) * unit
    angle_factor = tl.where(is_angle, tl.load(factors + 2), 0.0)
    voltage_factor = tl.where(is_voltage, tl.load(factors + 3), 0.0)
    kind_window = kind * windows + b
    data += kind_window * M * H * width + n
    power += (b * 2 + kind) * 2 * H * width + n
    gate += (b * 2 + kind) * (3 * H + 1) * width + n
    grad_gate += (b * 2 + kind) * (3 * H + 1) * width + n
    limit = tl.load(bound + kind)
    overshoot = zero
    excess_width = zero
    jitter = zero
    angle_steps = zero
    gate_sums = (zero, zero)
    last_median = zero
    last_values = ()
    last_gradient = ()
    errors = ()
    last_swaps = ()
    for _rank in tl.static_range(M):
        last_values += (zero,)
        last_gradient += (zero,)
        errors += (zero,)
    for _layer in tl.static_range(toolkit.n_layers(M)):
        last_swaps += (tl.zeros([BLOCK], tl.int32),)
    # A step's gradient needs the next step too, so the loop takes one more step.
    for h in range(H + 1):
        valid = in_grid & (h < H)
        is_row = tl.where(h < H, 1.0, 0.0).to(zero.dtype)
        is_step = tl.where(h > 0, is_row, 0.0)
        reference = tl.load(day + h * buses, valid, 0.0)
        z = tl.load(target + h * buses, valid, 0.0)
        row = tl.minimum(h, H - 1)
        entry = (kind * H + row) * M
        if GATES:
            values = _gate_scenarios(
                data + row * width, gate + row * width, gate_table + entry, limit, reference, valid,
                is_angle, width, M, H,
            )  # fmt: skip
        else:
            values = _power_scenarios(
                power + row * width, power_table + kind * H * M + entry, noise + entry, reference,
                valid, width, M, H,
            )  # fmt: skip
        values, swaps = toolkit.sort_values(values, M)
        excess = _weighted_sum(values, coefficients + 2 * M, M) * cap - 1
        excess_width += is_row * tl.maximum(excess, 0.0)
        width_gradient = tl.where(excess > 0, width_factor, 0.0)
        median = _weighted_sum(values, coefficients + 3 * M, M)
        gradient = ()
        without_median = ()
        next_errors = ()
        median_total = zero
        for k in tl.static_range(M):
            error = z - values[k]
            weight = tl.load(coefficients + k)
            next_errors += (errors[k] + is_row * error,)
            overshoot += (is_row * weight) * tl.maximum(-error, 0.0)
            pinball_gradient = tl.load(coefficients + M + k) + tl.where(error < 0, weight, 0.0)
            step = values[k] - last_values[k]
            off_median = step - (median - last_median)
            jitter += is_step * tl.abs(off_median)
            step_gradient = toolkit.with_sign_of(off_median, is_step * jitter_factor)
            median_total += step_gradient
            if GATES:
                step = toolkit.wrap(step)
                angle_steps += is_step * tl.abs(step)
                step_gradient += toolkit.with_sign_of(step, is_step * angle_factor)
            in_width_term = tl.load(coefficients + 2 * M + k)
            gradient += (pinball_gradient + in_width_term * width_gradient + step_gradient,)
            without_median += (last_gradient[k] - step_gradient,)
        errors = next_errors
        last_values = values
        last_median = median
        if GRADIENTS:
            # A force on all others against the median acts on the median in reverse.
            next_gradient = ()
            complete = ()
            for k in tl.static_range(M):
                on_median = tl.load(coefficients + 3 * M + k) * median_total
                complete += (without_median[k] + on_median,)
                next_gradient += (gradient[k] - on_median,)
            last_gradient = next_gradient
            by_scenario = toolkit.restore_order(complete, last_swaps, M)
            last_swaps = swaps
            last_row = tl.maximum(h - 1, 0)
            last_valid, writes = in_grid & (h > 0), in_width & (h > 0)
            if GATES:
                table = gate_table + (kind * H + last_row) * M
                gate_total, gate_sums = _gate_gradients(
                    data + last_row * width, by_scenario, gate + last_row * width, table, limit,
                    voltage_factor, last_valid, writes, gate_sums, width, M, H,
                )  # fmt: skip
                tl.store(grad_gate + last_row * width, gate_total, writes)
            else:
                for m in tl.static_range(M):
                    values_of_m = tl.where(last_valid, by_scenario[m], 0.0)
                    tl.store(data + (m * H + last_row) * width, values_of_m, writes)
    sums += (kind_window * tl.num_programs(0) + tl.program_id(0)) * (M + 6)
    for k in tl.static_range(M):
        tl.store(sums + k, tl.sum(tl.where(in_grid, errors[k], 0.0), 0))
    tl.store(sums + M, tl.sum(tl.where(in_grid, overshoot, 0.0), 0))
    tl.store(sums + M + 1, tl.sum(tl.where(in_grid, excess_width, 0.0), 0))
    tl.store(sums + M + 2, tl.sum(tl.where(in_grid, jitter * unit, 0.0), 0))
    tl.store(sums + M + 3, tl.sum(tl.where(in_grid & is_angle, angle_steps, 0.0), 0))
    tl.store(sums + M + 4, tl.sum(tl.where(in_grid & is_voltage, gate_sums[0], 0.0), 0) / 2)
    tl.store(sums + M + 5, tl.sum(tl.where(in_grid, gate_sums[1], 0.0), 0))


def _power_loss_triton(
    heads: HeadOutputs, day: Tensor, target: Tensor, terms: LossTerms, dtype: torch.dtype | None
) -> tuple[LossSums, Tensor | None]:
    windows, scenarios, steps, width = heads.sizes
    size = (2, windows, scenarios, steps, width)
    gradient = None if dtype is None else heads.power.new_empty(size, dtype=dtype)
    # Without a gradient the kernel writes nothing, so any tensor serves as its destination.
    data = heads.gate if gradient is None else gradient
    sums = _run(heads, data, heads.gate, day, target, terms, False, gradient is not None)
    return sums, gradient


def _gate_loss_triton(
    heads: HeadOutputs,
    bridge: Tensor,
    day: Tensor,
    target: Tensor,
    terms: LossTerms,
    needs_gradient: bool,
) -> tuple[LossSums, Tensor | None]:
    grad_gate = torch.empty_like(heads.gate) if needs_gradient else None
    destination = heads.gate if grad_gate is None else grad_gate
    return _run(heads, bridge, destination, day, target, terms, True, needs_gradient), grad_gate


def _run(
    heads: HeadOutputs,
    data: Tensor,
    grad_gate: Tensor,
    day: Tensor,
    target: Tensor,
    terms: LossTerms,
    gates: bool,
    needs_gradient: bool,
) -> LossSums:
    (windows, scenarios, steps, width), buses = heads.sizes, day.shape[3]
    n_blocks = triton.cdiv(width, BLOCK)
    sums = day.new_empty(2, windows * n_blocks, scenarios + 6)
    _loss_kernel[(n_blocks, windows, 2)](
        *(heads.power, heads.power_table, heads.noise, heads.gate, heads.gate_table, heads.bound),
        *(data, grad_gate, day, target, terms.scale, _coefficients(terms), terms.factors, sums),
        *(width, buses),
        M=scenarios,
        H=steps,
        GATES=gates,
        GRADIENTS=needs_gradient,
        BLOCK=BLOCK,
        num_warps=BLOCK // 32,
    )
    error, *columns = sums.sum(1).split([scenarios, *[1] * 6], dim=1)
    return LossSums(error, *(column.squeeze(1) for column in columns))


def _coefficients(terms: LossTerms) -> Float[Tensor, "4 4 M"]:
    """By kind and rank: weight, −level · weight, +1 (high) or −1 (low), and 1 at the median."""
    weight, level = terms.weight, terms.level
    rank = torch.arange(len(level), device=level.device)
    low, high, median = (rank == terms.nearest[:, None]).to(level.dtype)
    rows = (weight, -level * weight, (high - low).expand(4, -1), median.expand(4, -1))
    return torch.stack(rows, dim=1)
