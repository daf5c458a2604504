"""Powers: the trajectories of P and Q, as V and θ see them, and the way back.

Each scenario of V and of θ listens to the P and to the Q of its bus, in shares that add up to one.
What it hears is laid out for one matrix product: P and a row of ones, both times the share of P,
and beneath them the same of Q. (The ones carry what the maps have of constants.) The trajectories
themselves never exist: a few rows for each bus and small tables for the scenarios make them anew
wherever they are needed.

Buses lie side by side in memory. W, their number, may be padded for the sake of matrix products;
what lies beyond the N buses of the grid counts for nothing.
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

BLOCK, PARTS = 32, 4
"""Buses that one program works on, and parts into which the steps are divided among programs."""

TILE = {"BLOCK": BLOCK, "PARTS": PARTS, "num_warps": 1}


class Views(NamedTuple):
    """What the heads see of channels and scenarios: all that scenarios are made of.

    Of each bus, P and Q have a mean and a spread before softplus; V and θ have a gate before tanh,
    two directions, along which the trajectories of P and Q speak to them, and one constant. The
    tables hold what scenarios add to the same.
    """

    power: Float[Tensor, "B 2 HH W"]
    gate: Float[Tensor, "B 2 HHH1 W"]
    power_table: Float[Tensor, "2 2 H M"]
    gate_table: Float[Tensor, "2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    constant_table: Float[Tensor, " M"]
    maps: Float[Tensor, "2 H RR"]
    """From what V and θ hear to their gates."""
    bound: Float[Tensor, " 2"]
    """The largest deviations of V and θ."""
    noise: Float[Tensor, "2 H M"]
    """The shocks of P and Q."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, M, H and W."""
        (windows, _, _, width), (_, steps, scenarios) = self.power.shape, self.gate_table.shape
        return windows, scenarios, steps, width


def trajectory(views: Views, source: int) -> Float[Tensor, "B M H W"]:
    """The deviations of P (0) or Q (1)."""
    steps = views.gate_table.shape[1]
    mean, spread = views.power[:, source].unflatten(1, (2, steps)).unsqueeze(2).unbind(1)
    of_mean, of_spread = views.power_table[source].mT.unsqueeze(3).unbind(0)  # M H 1
    size = F.softplus(spread + of_spread)
    return mean + of_mean + size * views.noise[source].T.unsqueeze(2)


def hear(
    views: Views, dtype: torch.dtype, fast: bool
) -> tuple[Float[Tensor, "2 B M RR W"], Float[Tensor, "2 B M W"]]:
    """What V and θ hear of P and Q, in this precision, and the share of P in it."""
    return (_hear_fast if fast else _hear_plain)(views, dtype)


def _hear_plain(views: Views, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    windows, scenarios, steps, width = views.sizes
    rows = views.maps.shape[2] // 2
    logit = (views.gate[:, :, -1:] + views.constant_table[:, None]).transpose(0, 1)  # 2 B M W
    sources = [trajectory(views, source) for source in range(2)]
    for kind in range(2):
        for source, x in enumerate(sources):
            logit[kind] += (x * _directions(views, kind, source)).sum(2)
    share = torch.sigmoid(logit)
    heard = views.power.new_zeros(2, windows, scenarios, 2 * rows, width, dtype=dtype)
    for kind in range(2):
        for source, part in enumerate((share[kind], 1 - share[kind])):
            first = source * rows
            heard[kind, :, :, first : first + steps] = sources[source] * part.unsqueeze(2)
            heard[kind, :, :, first + steps] = part
    return heard, share


def _directions(views: Views, kind: int, source: int) -> Float[Tensor, "B M H W"]:
    seen = views.gate[:, kind, _rows(views, source)].unsqueeze(1)
    return seen + views.direction_table[source].T.unsqueeze(2)


def _rows(views: Views, source: int) -> slice:
    """Where the direction of a source is among the rows of a gate."""
    steps = views.gate_table.shape[1]
    return slice((1 + source) * steps, (2 + source) * steps)


@jit
@no_type_check
def power_at(mean, spread, tables, noise, counts, H: constexpr, M: constexpr):
    """One step of a trajectory, and its shock times the slope of its spread.

    Mean and spread are those of the buses; the pointers are at the scenarios' share in this step.
    """
    shock = tl.load(noise, counts, 0.0)
    size, slope = softplus(spread + tl.load(tables + H * M, counts, 0.0))
    return mean + tl.load(tables, counts, 0.0) + size * shock, slope * shock


# A program has M scenarios × BLOCK buses of one window, and some of the steps of P or of Q: `part`
# says which. So there are enough of them for small grids too.


@jit
@no_type_check
def _power_of(
    power, power_table, noise, source, h, m, there, counts, width, H: constexpr, M: constexpr
):
    """`power_at` a step of a source; `power` is at the buses of its first one."""
    now, at = there & (h < H), (source * H + h) * M + m
    mean = tl.load(power + h * width, now, 0.0)
    spread = tl.load(power + (H + h) * width, now, 0.0)
    table = power_table + source * H * M + at
    return power_at(mean, spread, table, noise + at, counts & (h < H), H, M)


@jit
@no_type_check
def _shares_of(share, source, place, other, both):
    """How much V and θ listen to a source."""
    v = tl.load(share + place, both, 0.0)
    theta = tl.load(share + other + place, both, 0.0)
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
    """What some steps of P or Q add to the logits of V and θ."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source = part // PARTS
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    m = tl.arange(0, M2)[:, None]
    there, counts = n < width, m < M
    gate += (b * 2 * (3 * H + 1) + (1 + source) * H) * width + n
    power += (b * 2 + source) * 2 * H * width + n
    v = tl.zeros([M2, BLOCK], power.dtype.element_ty)
    theta = tl.zeros([M2, BLOCK], power.dtype.element_ty)
    for step in range((H + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        x, _ = _power_of(power, power_table, noise, source, h, m, there, counts, width, H, M)
        now, has = there & (h < H), counts & (h < H)
        along = tl.load(direction_table + (source * H + h) * M + m, has, 0.0)
        v += x * (along + tl.load(gate + h * width, now, 0.0))
        theta += x * (along + tl.load(gate + (3 * H + 1 + h) * width, now, 0.0))
    windows = tl.num_programs(1)
    place = ((part * 2 * windows + b) * M + m) * width + n
    tl.store(logits + place, v, there & counts)
    tl.store(logits + place + windows * M * width, theta, there & counts)


@jit
@no_type_check
def _heard_kernel(
    power,
    power_table,
    noise,
    share,
    heard,
    width,
    M: constexpr,
    H: constexpr,
    R: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """Some steps of P or Q times their shares, for V and θ, with the row of ones."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source = part // PARTS
    n = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    m = tl.arange(0, M2)[:, None]
    there, counts = n < width, m < M
    both = there & counts
    power += (b * 2 + source) * 2 * H * width + n
    other = tl.num_programs(1).to(tl.int64) * M * width
    v, theta = _shares_of(share, source, (b * M + m) * width + n, other, both)
    heard += ((b * M + m) * 2 * R + source * R) * width + n
    for step in range((R + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        x, _ = _power_of(power, power_table, noise, source, h, m, there, counts, width, H, M)
        x = tl.where(h < H, x, tl.where(h == H, 1.0, 0.0))
        tl.store(heard + h * width, x * v, both & (h < R))
        tl.store(heard + other * 2 * R + h * width, x * theta, both & (h < R))


def _hear_fast(views: Views, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    windows, scenarios, steps, width = views.sizes
    both_rows = views.maps.shape[2]
    logits = views.power.new_empty(2 * PARTS, 2, windows, scenarios, width)
    heard = views.power.new_empty(2, windows, scenarios, both_rows, width, dtype=dtype)
    grid = (triton.cdiv(width, BLOCK), windows, 2 * PARTS)
    sizes = {"M": scenarios, "H": steps, "M2": triton.next_power_of_2(scenarios), **TILE}
    _logits_kernel[grid](
        *(views.power, views.gate, views.power_table, views.direction_table, views.noise),
        *(logits, width),
        **sizes,
    )
    constant = (views.gate[:, :, -1:] + views.constant_table[:, None]).transpose(0, 1)
    share = torch.sigmoid(logits.sum(0) + constant)
    _heard_kernel[grid](
        *(views.power, views.power_table, views.noise, share, heard, width),
        R=both_rows // 2,
        **sizes,
    )
    return heard, share


class PowerSlopes(NamedTuple):
    """Slopes of the loss along what the trajectories of P and Q, and the shares, are made of."""

    power: Float[Tensor, "B 2 HH W"]
    power_table: Float[Tensor, "2 2 H M"]
    direction_table: Float[Tensor, "2 H M"]
    logit: Float[Tensor, "2 B M W"]


def power_slopes(
    views: Views,
    share: Float[Tensor, "2 B M W"],
    of_heard: Float[Tensor, "2 B M RR W"],
    of_power: Float[Tensor, "2 B M H W"],
    of_gate: Float[Tensor, "B 2 HHH1 W"],
    fast: bool,
) -> PowerSlopes:
    """From the slopes along what is heard, and along P and Q, to those of all they are made of.

    Those along the directions and the constant of V and θ are written into `of_gate`.
    """
    return (_slopes_fast if fast else _slopes_plain)(views, share, of_heard, of_power, of_gate)


def _slopes_plain(
    views: Views, share: Tensor, of_heard: Tensor, of_power: Tensor, of_gate: Tensor
) -> PowerSlopes:
    steps, rows = views.gate_table.shape[1], views.maps.shape[2] // 2
    sources = [F.pad(trajectory(views, source), (0, 0, 0, 1), value=1.0) for source in range(2)]
    heard = of_heard.unflatten(3, (2, rows))[:, :, :, :, : steps + 1].unbind(3)  # each 2 B M H+1 W
    of_share = (heard[0] * sources[0] - heard[1] * sources[1]).sum(3)
    of_logit = of_share * share * (1 - share)
    of_gate[:, :, -1] = of_logit.sum(2).transpose(0, 1)
    power, table = torch.empty_like(views.power), torch.empty_like(views.power_table)
    direction = torch.zeros_like(views.direction_table)
    for source, part in enumerate((share, 1 - share)):
        total = of_power[source] + (heard[source][..., :steps, :] * part.unsqueeze(3)).sum(0)
        for kind in range(2):
            slope = of_logit[kind].unsqueeze(2)
            total += slope * _directions(views, kind, source)
            along = slope * sources[source][:, :, :steps]
            of_gate[:, kind, _rows(views, source)] = along.sum(1)
            direction[source] += along.sum((0, 3)).T
        spread = views.power[:, source, steps:].unsqueeze(1)
        shock = views.noise[source].T.unsqueeze(2)
        of_spread = (
            total * shock * torch.sigmoid(spread + views.power_table[source, 1].T[..., None])
        )
        power[:, source] = torch.cat([total.sum(1), of_spread.sum(1)], dim=1)
        table[source] = torch.stack([total.sum((0, 3)).T, of_spread.sum((0, 3)).T])
    return PowerSlopes(power, table, direction, of_logit)


@jit
@no_type_check
def _unheard_kernel(
    power,
    power_table,
    noise,
    share,
    of_heard,
    of_trajectory,
    of_power,
    of_shares,
    tables,
    width,
    M: constexpr,
    H: constexpr,
    R: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """What some steps of P or Q owe to being heard, and to themselves; and the slopes of shares."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source, block = part // PARTS, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_m = tl.arange(0, M2)
    n, m = block[None, :], of_m[:, None]
    there, counts = n < width, m < M
    both = there & counts
    powers = (b * 2 + source) * 2 * H * width
    power += powers + n
    windows = tl.num_programs(1).to(tl.int64)
    other = windows * M * width
    v, theta = _shares_of(share, source, (b * M + m) * width + n, other, both)
    of_heard += ((b * M + m) * 2 * R + source * R) * width + n
    of_trajectory += ((source * windows + b) * M + m) * H * width + n
    of_v = tl.zeros([M2, BLOCK], v.dtype)
    of_theta = tl.zeros([M2, BLOCK], v.dtype)
    tables += ((b * tl.num_programs(0) + tl.program_id(0)) * 2 + source) * 5 * H * M + of_m
    for step in range(H // PARTS + 1):
        h = step * PARTS + part % PARTS
        row = powers + h * width
        x, by_spread = _power_of(
            power, power_table, noise, source, h, m, there, counts, width, H, M
        )
        x = tl.where(h < H, x, 1.0)
        along_v = tl.load(of_heard + h * width, both & (h <= H), 0.0).to(v.dtype)
        along_theta = tl.load(of_heard + other * 2 * R + h * width, both & (h <= H), 0.0)
        along_theta = along_theta.to(v.dtype)
        of_v += along_v * x
        of_theta += along_theta * x
        total = tl.load(of_trajectory + h * width, both & (h < H), 0.0).to(v.dtype)
        total += along_v * v + along_theta * theta
        by_spread *= total
        inside = (block < width) & (h < H)
        tl.store(of_power + row + block, tl.sum(total, 0), inside)
        tl.store(of_power + row + H * width + block, tl.sum(by_spread, 0), inside)
        tl.store(tables + h * M, tl.sum(total, 1), (of_m < M) & (h < H))
        tl.store(tables + (H + h) * M, tl.sum(by_spread, 1), (of_m < M) & (h < H))
    place = ((part * 2 * windows + b) * M + m) * width + n
    tl.store(of_shares + place, of_v, both)
    tl.store(of_shares + place + other, of_theta, both)


@jit
@no_type_check
def _unlistened_kernel(
    power,
    gate,
    power_table,
    direction_table,
    noise,
    of_logit,
    of_gate,
    of_power,
    tables,
    width,
    M: constexpr,
    H: constexpr,
    M2: constexpr,
    BLOCK: constexpr,
    PARTS: constexpr,
):
    """What some steps of P or Q owe to logits, added to the rest; and the directions' slopes."""
    b, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    source, block = part // PARTS, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    of_m = tl.arange(0, M2)
    n, m = block[None, :], of_m[:, None]
    there, counts = n < width, m < M
    both = there & counts
    gates = (b * 2 * (3 * H + 1) + (1 + source) * H) * width
    powers = (b * 2 + source) * 2 * H * width
    power += powers + n
    of_logit += (b * M + m) * width + n
    of_v = tl.load(of_logit, both, 0.0)
    of_theta = tl.load(of_logit + tl.num_programs(1).to(tl.int64) * M * width, both, 0.0)
    tables += ((b * tl.num_programs(0) + tl.program_id(0)) * 2 + source) * 5 * H * M + of_m
    for step in range((H + PARTS - 1) // PARTS):
        h = step * PARTS + part % PARTS
        row = powers + h * width
        x, by_spread = _power_of(
            power, power_table, noise, source, h, m, there, counts, width, H, M
        )
        now, has = there & (h < H), counts & (h < H)
        along = tl.load(direction_table + (source * H + h) * M + m, has, 0.0)
        seen = gates + h * width
        total = of_v * (along + tl.load(gate + seen + n, now, 0.0))
        total += of_theta * (along + tl.load(gate + seen + (3 * H + 1) * width + n, now, 0.0))
        by_spread *= total
        inside = (block < width) & (h < H)
        tl.store(of_gate + seen + block, tl.sum(of_v * x, 0), inside)
        tl.store(of_gate + seen + (3 * H + 1) * width + block, tl.sum(of_theta * x, 0), inside)
        of_mean = of_power + row + block
        tl.store(of_mean, tl.load(of_mean, inside, 0.0) + tl.sum(total, 0), inside)
        of_spread = of_mean + H * width
        tl.store(of_spread, tl.load(of_spread, inside, 0.0) + tl.sum(by_spread, 0), inside)
        fits = (of_m < M) & (h < H)
        tl.store(tables + (2 * H + h) * M, tl.sum(total, 1), fits)
        tl.store(tables + (3 * H + h) * M, tl.sum(by_spread, 1), fits)
        tl.store(tables + (4 * H + h) * M, tl.sum((of_v + of_theta) * x, 1), fits)


def _slopes_fast(
    views: Views, share: Tensor, of_heard: Tensor, of_power: Tensor, of_gate: Tensor
) -> PowerSlopes:
    windows, scenarios, steps, width = views.sizes
    n_blocks = triton.cdiv(width, BLOCK)
    power = torch.empty_like(views.power)
    shares = power.new_empty(2 * PARTS, 2, windows, scenarios, width)
    # What scenarios have in common is summed over programs afterwards, always in the same order.
    tables = power.new_empty(windows * n_blocks, 2, 5, steps, scenarios)
    grid = (n_blocks, windows, 2 * PARTS)
    sizes = {"M": scenarios, "H": steps, "M2": triton.next_power_of_2(scenarios), **TILE}
    _unheard_kernel[grid](
        *(views.power, views.power_table, views.noise, share, of_heard, of_power, power),
        *(shares, tables, width),
        R=views.maps.shape[2] // 2,
        **sizes,
    )
    of_p, of_q = shares.unflatten(0, (2, PARTS)).sum(1)
    of_logit = (of_p - of_q) * share * (1 - share)
    of_gate[:, :, -1] = of_logit.sum(2).transpose(0, 1)
    _unlistened_kernel[grid](
        *(views.power, views.gate, views.power_table, views.direction_table, views.noise),
        *(of_logit, of_gate, power, tables, width),
        **sizes,
    )
    summed = tables.sum(0)
    return PowerSlopes(power, summed[:, :2] + summed[:, 2:4], summed[:, 4], of_logit)
