"""The inputs of the cross-type bridge, made of the trajectories of P and Q; and their gradients.

Each scenario of V and of θ attends to the P and the Q of its bus, with attention weights that sum
to one. The inputs are laid out for one matrix product: P and a row of ones, both times the weight
of P, above the same for Q. (The ones carry the maps' constants.) The trajectories are never stored:
they are recomputed from a few rows per bus and small tables per scenario wherever they are needed.

Buses are contiguous in memory. Their number, W, may be padded for matrix products; the padding
beyond the N buses of the grid has no effect.
"""

from typing import NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework.kernels import (
    constexpr,
    jit,
    softplus,
    tl,
    triton,
)
from powerphase.models.powerforge.decoder import HeadOutputs

BLOCK, PARTS = 32, 4
"""Buses of one program, and parts into which programs divide the steps."""

TILE = {"BLOCK": BLOCK, "PARTS": PARTS, "num_warps": 1}


def make_bridge_inputs(
    heads: HeadOutputs, dtype: torch.dtype, fast: bool
) -> tuple[Float[Tensor, "2 B M RR W"], Float[Tensor, "2 B M W"]]:
    """The bridge's inputs for V and θ in this precision, and the attention weight of P."""
    return (_inputs_fast if fast else _inputs_plain)(heads, dtype)


def _inputs_plain(heads: HeadOutputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    windows, scenarios, steps, width = heads.sizes
    rows = heads.gate_maps.shape[2] // 2
    logit = (heads.gate[:, :, -1:] + heads.constant_table[:, None]).transpose(0, 1)  # 2 B M W
    sources = [heads.trajectory(source) for source in range(2)]
    for kind in range(2):
        for source, x in enumerate(sources):
            logit[kind] += (x * _directions(heads, kind, source)).sum(2)
    attention = torch.sigmoid(logit)
    inputs = heads.power.new_zeros(2, windows, scenarios, 2 * rows, width, dtype=dtype)
    for kind in range(2):
        for source, weight in enumerate((attention[kind], 1 - attention[kind])):
            first = source * rows
            inputs[kind, :, :, first : first + steps] = sources[source] * weight.unsqueeze(2)
            inputs[kind, :, :, first + steps] = weight
    return inputs, attention


def _directions(heads: HeadOutputs, kind: int, source: int) -> Float[Tensor, "B M H W"]:
    of_bus = heads.gate[:, kind, _rows(heads, source)].unsqueeze(1)
    return of_bus + heads.direction_table[source].T.unsqueeze(2)


def _rows(heads: HeadOutputs, source: int) -> slice:
    """The rows of a gate that hold the direction of a source."""
    steps = heads.gate_table.shape[1]
    return slice((1 + source) * steps, (2 + source) * steps)


@jit
@no_type_check
def power_at(mean, spread, tables, noise, valid, H: constexpr, M: constexpr):
    """One step of a trajectory, and its derivative with respect to the raw spread.

    Mean and spread are those of the buses; the pointers are at the scenarios' entries of this step.
    """
    shock = tl.load(noise, valid, 0.0)
    size, derivative = softplus(spread + tl.load(tables + H * M, valid, 0.0))
    return mean + tl.load(tables, valid, 0.0) + size * shock, derivative * shock


# A program has M scenarios × BLOCK buses of one window, and a part of the steps of P or of Q, which
# `part` selects. This gives enough programs for small grids too.


@jit
@no_type_check
def _load_power(
    power, power_table, noise, source, h, m, valid_n, valid_m, width, H: constexpr, M: constexpr
):
    """`power_at` for a step of a source; `power` points to the buses of its first step."""
    n_now, entry = valid_n & (h < H), (source * H + h) * M + m
    mean = tl.load(power + h * width, n_now, 0.0)
    spread = tl.load(power + (H + h) * width, n_now, 0.0)
    table = power_table + source * H * M + entry
    return power_at(mean, spread, table, noise + entry, valid_m & (h < H), H, M)


@jit
@no_type_check
def _attention_to(attention, source, offset, plane, valid):
    """The attention weights of V and θ on a source."""
    v = tl.load(attention + offset, valid, 0.0)
    theta = tl.load(attention + plane + offset, valid, 0.0)
    if source == 1:
        v = 1 - v
        theta = 1 - theta
    return v, theta


@jit
@no_type_check
def _logits_kernel(
    power,
    gate,
    power_table,
    direction_table,
    noise,
    logits,
    width,
    M: constexpr,
    H: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """What a part of the steps of P or Q adds to the logits of V and θ."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source = part // PARTS
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    m = tl.arange(0, M2)[:, None]
    valid_n, valid_m = n < width, m < M
    gate += (b * 2 * (3 * H + 1) + (1 + source) * H) * width + n
    power += (b * 2 + source) * 2 * H * width + n
    v = tl.zeros([M2, BLOCK], power.dtype.element_ty)
    theta = tl.zeros([M2, BLOCK], power.dtype.element_ty)
    for step in range((H + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        x, _ = _load_power(power, power_table, noise, source, h, m, valid_n, valid_m, width, H, M)
        n_now, m_now = valid_n & (h < H), valid_m & (h < H)
        direction = tl.load(direction_table + (source * H + h) * M + m, m_now, 0.0)
        v += x * (direction + tl.load(gate + h * width, n_now, 0.0))
        theta += x * (direction + tl.load(gate + (3 * H + 1 + h) * width, n_now, 0.0))
    windows = tl.num_programs(1)
    offset = ((part * 2 * windows + b) * M + m) * width + n
    tl.store(logits + offset, v, valid_n & valid_m)
    tl.store(logits + offset + windows * M * width, theta, valid_n & valid_m)


@jit
@no_type_check
def _inputs_kernel(
    power,
    power_table,
    noise,
    attention,
    inputs,
    width,
    M: constexpr,
    H: constexpr,
    R: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """A part of the steps of P or Q, with the row of ones, times the attention of V and of θ."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source = part // PARTS
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    m = tl.arange(0, M2)[:, None]
    valid_n, valid_m = n < width, m < M
    valid = valid_n & valid_m
    power += (b * 2 + source) * 2 * H * width + n
    plane = tl.num_programs(1).to(tl.int64) * M * width
    v, theta = _attention_to(attention, source, (b * M + m) * width + n, plane, valid)
    inputs += ((b * M + m) * 2 * R + source * R) * width + n
    for step in range((R + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        x, _ = _load_power(power, power_table, noise, source, h, m, valid_n, valid_m, width, H, M)
        x = tl.where(h < H, x, tl.where(h == H, 1.0, 0.0))
        tl.store(inputs + h * width, x * v, valid & (h < R))
        tl.store(inputs + plane * 2 * R + h * width, x * theta, valid & (h < R))


def _inputs_fast(heads: HeadOutputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    windows, scenarios, steps, width = heads.sizes
    n_rows = heads.gate_maps.shape[2]
    logits = heads.power.new_empty(2 * PARTS, 2, windows, scenarios, width)
    inputs = heads.power.new_empty(2, windows, scenarios, n_rows, width, dtype=dtype)
    grid = (triton.cdiv(width, BLOCK), windows, 2 * PARTS)
    sizes = {"M": scenarios, "H": steps, "M2": triton.next_power_of_2(scenarios), **TILE}
    _logits_kernel[grid](
        *(heads.power, heads.gate, heads.power_table, heads.direction_table, heads.noise),
        *(logits, width),
        **sizes,
    )
    constant = (heads.gate[:, :, -1:] + heads.constant_table[:, None]).transpose(0, 1)
    attention = torch.sigmoid(logits.sum(0) + constant)
    _inputs_kernel[grid](
        *(heads.power, heads.power_table, heads.noise, attention, inputs, width),
        R=n_rows // 2,
        **sizes,
    )
    return inputs, attention


class PowerGradients(NamedTuple):
    """Gradients of the loss along everything that trajectories and attention depend on."""

    power: Float[Tensor, "B 2 HH W"]
    power_table: Float[Tensor, "2 2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    logit: Float[Tensor, "2 B M W"]


def power_gradients(
    heads: HeadOutputs,
    attention: Float[Tensor, "2 B M W"],
    grad_inputs: Float[Tensor, "2 B M RR W"],
    grad_trajectory: Float[Tensor, "2 B M H W"],
    grad_gate: Float[Tensor, "B 2 HHH1 W"],
    fast: bool,
) -> PowerGradients:
    """Propagate the gradients of the bridge's inputs and of the trajectories of P and Q.

    The gradients of V's and θ's directions and constant are written into `grad_gate`.
    """
    return (_gradients_fast if fast else _gradients_plain)(
        heads, attention, grad_inputs, grad_trajectory, grad_gate
    )


def _gradients_plain(
    heads: HeadOutputs,
    attention: Tensor,
    grad_inputs: Tensor,
    grad_trajectory: Tensor,
    grad_gate: Tensor,
) -> PowerGradients:
    steps, rows = heads.gate_table.shape[1], heads.gate_maps.shape[2] // 2
    sources = [F.pad(heads.trajectory(source), (0, 0, 0, 1), value=1.0) for source in range(2)]
    by_source = grad_inputs.unflatten(3, (2, rows))[:, :, :, :, : steps + 1].unbind(3)
    grad_attention = (by_source[0] * sources[0] - by_source[1] * sources[1]).sum(3)
    grad_logit = grad_attention * attention * (1 - attention)
    grad_gate[:, :, -1] = grad_logit.sum(2).transpose(0, 1)
    grad_power, grad_table = torch.empty_like(heads.power), torch.empty_like(heads.power_table)
    grad_direction = torch.zeros_like(heads.direction_table)
    for source, weight in enumerate((attention, 1 - attention)):
        through_bridge = by_source[source][..., :steps, :] * weight.unsqueeze(3)
        total = grad_trajectory[source] + through_bridge.sum(0)
        for kind in range(2):
            grad_of_kind = grad_logit[kind].unsqueeze(2)
            total += grad_of_kind * _directions(heads, kind, source)
            grad_along = grad_of_kind * sources[source][:, :, :steps]
            grad_gate[:, kind, _rows(heads, source)] = grad_along.sum(1)
            grad_direction[source] += grad_along.sum((0, 3)).T
        spread = heads.power[:, source, steps:].unsqueeze(1)
        shock = heads.noise[source].T.unsqueeze(2)
        grad_spread = (
            total * shock * torch.sigmoid(spread + heads.power_table[source, 1].T[..., None])
        )
        grad_power[:, source] = torch.cat([total.sum(1), grad_spread.sum(1)], dim=1)
        grad_table[source] = torch.stack([total.sum((0, 3)).T, grad_spread.sum((0, 3)).T])
    return PowerGradients(grad_power, grad_table, grad_direction, grad_logit)


@jit
@no_type_check
def _inputs_backward_kernel(
    power,
    power_table,
    noise,
    attention,
    grad_inputs,
    grad_trajectory,
    grad_power,
    grad_attention,
    tables,
    width,
    M: constexpr,
    H: constexpr,
    R: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """Gradients of P or Q through the bridge's inputs and directly; and those of the attention."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source, block = part // PARTS, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scenario = tl.arange(0, M2)
    n, m = block[None, :], scenario[:, None]
    valid_n, valid_m = n < width, m < M
    valid = valid_n & valid_m
    power_start = (b * 2 + source) * 2 * H * width
    power += power_start + n
    windows = tl.num_programs(1).to(tl.int64)
    plane = windows * M * width
    v, theta = _attention_to(attention, source, (b * M + m) * width + n, plane, valid)
    grad_inputs += ((b * M + m) * 2 * R + source * R) * width + n
    grad_trajectory += ((source * windows + b) * M + m) * H * width + n
    grad_v = tl.zeros([M2, BLOCK], v.dtype)
    grad_theta = tl.zeros([M2, BLOCK], v.dtype)
    tables += ((b * tl.num_programs(0) + tl.program_id(0)) * 2 + source) * 5 * H * M + scenario
    for step in range(H // PARTS + 1):
        h = step * PARTS + part % PARTS
        row = power_start + h * width
        x, spread_factor = _load_power(
            power, power_table, noise, source, h, m, valid_n, valid_m, width, H, M
        )
        x = tl.where(h < H, x, 1.0)
        from_v = tl.load(grad_inputs + h * width, valid & (h <= H), 0.0).to(v.dtype)
        from_theta = tl.load(grad_inputs + plane * 2 * R + h * width, valid & (h <= H), 0.0)
        from_theta = from_theta.to(v.dtype)
        grad_v += from_v * x
        grad_theta += from_theta * x
        total = tl.load(grad_trajectory + h * width, valid & (h < H), 0.0).to(v.dtype)
        total += from_v * v + from_theta * theta
        spread_factor *= total
        store_n = (block < width) & (h < H)
        tl.store(grad_power + row + block, tl.sum(total, 0), store_n)
        tl.store(grad_power + row + H * width + block, tl.sum(spread_factor, 0), store_n)
        tl.store(tables + h * M, tl.sum(total, 1), (scenario < M) & (h < H))
        tl.store(tables + (H + h) * M, tl.sum(spread_factor, 1), (scenario < M) & (h < H))
    offset = ((part * 2 * windows + b) * M + m) * width + n
    tl.store(grad_attention + offset, grad_v, valid)
    tl.store(grad_attention + offset + plane, grad_theta, valid)


@jit
@no_type_check
def _logits_backward_kernel(
    power,
    gate,
    power_table,
    direction_table,
    noise,
    grad_logit,
    grad_gate,
    grad_power,
    tables,
    width,
    M: constexpr,
    H: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """Gradients of P or Q through the logits, added to the rest; and those of the directions."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source, block = part // PARTS, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scenario = tl.arange(0, M2)
    n, m = block[None, :], scenario[:, None]
    valid_n, valid_m = n < width, m < M
    valid = valid_n & valid_m
    gate_start = (b * 2 * (3 * H + 1) + (1 + source) * H) * width
    power_start = (b * 2 + source) * 2 * H * width
    power += power_start + n
    grad_logit += (b * M + m) * width + n
    grad_v = tl.load(grad_logit, valid, 0.0)
    grad_theta = tl.load(grad_logit + tl.num_programs(1).to(tl.int64) * M * width, valid, 0.0)
    tables += ((b * tl.num_programs(0) + tl.program_id(0)) * 2 + source) * 5 * H * M + scenario
    for step in range((H + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        row = power_start + h * width
        x, spread_factor = _load_power(
            power, power_table, noise, source, h, m, valid_n, valid_m, width, H, M
        )
        n_now, m_now = valid_n & (h < H), valid_m & (h < H)
        direction = tl.load(direction_table + (source * H + h) * M + m, m_now, 0.0)
        gate_row = gate_start + h * width
        total = grad_v * (direction + tl.load(gate + gate_row + n, n_now, 0.0))
        total += grad_theta * (
            direction + tl.load(gate + gate_row + (3 * H + 1) * width + n, n_now, 0.0)
        )
        spread_factor *= total
        store_n = (block < width) & (h < H)
        tl.store(grad_gate + gate_row + block, tl.sum(grad_v * x, 0), store_n)
        tl.store(
            grad_gate + gate_row + (3 * H + 1) * width + block, tl.sum(grad_theta * x, 0), store_n
        )
        grad_mean = grad_power + row + block
        tl.store(grad_mean, tl.load(grad_mean, store_n, 0.0) + tl.sum(total, 0), store_n)
        grad_spread = grad_mean + H * width
        tl.store(
            grad_spread, tl.load(grad_spread, store_n, 0.0) + tl.sum(spread_factor, 0), store_n
        )
        store_m = (scenario < M) & (h < H)
        tl.store(tables + (2 * H + h) * M, tl.sum(total, 1), store_m)
        tl.store(tables + (3 * H + h) * M, tl.sum(spread_factor, 1), store_m)
        tl.store(tables + (4 * H + h) * M, tl.sum((grad_v + grad_theta) * x, 1), store_m)


def _gradients_fast(
    heads: HeadOutputs,
    attention: Tensor,
    grad_inputs: Tensor,
    grad_trajectory: Tensor,
    grad_gate: Tensor,
) -> PowerGradients:
    windows, scenarios, steps, width = heads.sizes
    n_blocks = triton.cdiv(width, BLOCK)
    grad_power = torch.empty_like(heads.power)
    grad_attention = grad_power.new_empty(2 * PARTS, 2, windows, scenarios, width)
    # Gradients of the tables are summed over programs afterwards, always in the same order.
    partial_tables = grad_power.new_empty(windows * n_blocks, 2, 5, steps, scenarios)
    grid = (n_blocks, windows, 2 * PARTS)
    sizes = {"M": scenarios, "H": steps, "M2": triton.next_power_of_2(scenarios), **TILE}
    _inputs_backward_kernel[grid](
        *(
            heads.power,
            heads.power_table,
            heads.noise,
            attention,
            grad_inputs,
            grad_trajectory,
            grad_power,
        ),
        *(grad_attention, partial_tables, width),
        R=heads.gate_maps.shape[2] // 2,
        **sizes,
    )
    grad_p, grad_q = grad_attention.unflatten(0, (2, PARTS)).sum(1)
    grad_logit = (grad_p - grad_q) * attention * (1 - attention)
    grad_gate[:, :, -1] = grad_logit.sum(2).transpose(0, 1)
    _logits_backward_kernel[grid](
        *(heads.power, heads.gate, heads.power_table, heads.direction_table, heads.noise),
        *(grad_logit, grad_gate, grad_power, partial_tables, width),
        **sizes,
    )
    tables = partial_tables.sum(0)
    return PowerGradients(grad_power, tables[:, :2] + tables[:, 2:4], tables[:, 4], grad_logit)
