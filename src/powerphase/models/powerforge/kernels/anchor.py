"""The anchor, the residuals and their mean sizes, computed from the context in one pass."""

from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.models.framework.kernels import (
    PER_TURN,
    TURN,
    constexpr,
    jit,
    nearest_integer,
    product_dtype,
    tl,
    with_sign_of,
)
from powerphase.models.powerforge import anchor
from powerphase.models.powerforge.config import PowerForgeConfig

STEPS_AT_ONCE, BUSES_AT_ONCE, WARPS = 8, 16, 4
"""One step of one bus for each thread: it loads the four kinds at once, and stores each next to
those of its neighbours, without any exchange between threads."""


class Anchored(NamedTuple):
    """The context in residual form.

    Attributes:
        residual: the past less its reference, by kind; W is N or more, with zeros beyond N. In
            the precision of matrix products, since it is the input of one.
        day: the reference day, L steps from the origin on.
        size: mean absolute value of each channel's residual, its context gates included.
    """

    residual: Float[Tensor, "B 4 T W"]
    day: Float[Tensor, "4 B L N"]
    size: Float[Tensor, "B 4 N"]


def anchor_context(
    past: Float[Tensor, "B T C"],
    gates: Float[Tensor, "2 2"],
    config: PowerForgeConfig,
    width: int,
    fast: bool,
) -> Anchored:
    """Residuals, reference day and sizes; only the sizes have a gradient, along the gates.

    Args:
        past: the context; the kernel copies it if its memory layout does not fit.
        gates: how much of their bus's P and Q is added to V (first row) and θ.
        config: settings of the anchor.
        width: buses to make room for in the residuals, W.
        fast: run the kernel, which needs Triton and a GPU.
    """
    return Anchored(*(_Anchor.apply if fast else _anchor_plain)(past, gates, config, width))


def _anchor_plain(
    past: Float[Tensor, "B T C"], gates: Float[Tensor, "2 2"], config: PowerForgeConfig, width: int
) -> tuple[Float[Tensor, "B 4 T W"], Float[Tensor, "4 B L N"], Float[Tensor, "B 4 N"]]:
    """The same in plain PyTorch."""
    residual, day = anchor.subtract_anchor(past, config)
    kinds = list(residual.unflatten(2, (-1, KINDS)).unbind(3))  # each B T N
    padded = F.pad(torch.stack(kinds, dim=1), (0, width - kinds[P].shape[2]))
    padded = padded.to(product_dtype(past))
    for row, kind in zip(gates, (V, THETA), strict=True):
        kinds[kind] = kinds[kind] + row[0] * kinds[P] + row[1] * kinds[Q]
    size = torch.stack([kind.abs().mean(1) for kind in kinds], dim=1)
    return padded, day.unflatten(2, (-1, KINDS)).permute(3, 0, 1, 2).contiguous(), size


class _Anchor(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        past: Float[Tensor, "B T C"],
        gates: Float[Tensor, "2 2"],
        config: PowerForgeConfig,
        width: int,
    ) -> tuple[Float[Tensor, "B 4 T W"], Float[Tensor, "4 B L N"], Float[Tensor, "B 4 N"]]:
        residual, day, size, gate_gradient = _launch(past, gates, config, width)
        ctx.save_for_backward(gate_gradient)
        ctx.mark_non_differentiable(residual, day)
        # Otherwise PyTorch would pass zeros for these two, as large as the past, to `backward`.
        ctx.set_materialize_grads(False)
        return residual, day, size

    @staticmethod
    def backward(
        ctx: Any, _residual: None, _day: None, size: Float[Tensor, "B 4 N"]
    ) -> tuple[None, Float[Tensor, "2 2"], None, None]:
        (gate_gradient,) = ctx.saved_tensors
        return None, (size[:, V:, None] * gate_gradient).sum((0, 3)), None, None


def _launch(
    past: Float[Tensor, "B T C"], gates: Float[Tensor, "2 2"], config: PowerForgeConfig, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Residuals, day, sizes, and the gradients of V's and θ's sizes along their gates (B 2 2 N)."""
    anchor.check_length(past.shape[1], config)
    # Strides in buses: the compiler then knows that a bus can be loaded at once.
    if past.stride(2) != 1 or past.stride(1) % KINDS or past.stride(0) % KINDS:
        past = past.contiguous()
    n_windows, n_past, n_buses = past.shape[0], past.shape[1], past.shape[2] // KINDS
    residual = past.new_empty((n_windows, KINDS, n_past, width), dtype=product_dtype(past))
    day = past.new_empty((KINDS, n_windows, config.segment_steps, n_buses))
    size = past.new_empty((n_windows, KINDS, n_buses))
    gate_gradient = past.new_empty((n_windows, 2, 2, n_buses))
    _anchor_kernel[(-(-width // BUSES_AT_ONCE), n_windows)](
        *(past, gates.to(past.dtype).contiguous(), residual, day, size, gate_gradient),
        *(past.stride(0) // KINDS, past.stride(1) // KINDS, n_buses, width),
        **_constants(n_past, config),
        num_warps=WARPS,
    )
    return residual, day, size, gate_gradient


def _constants(n_past: int, config: PowerForgeConfig) -> dict[str, Any]:
    """The constants for which the kernel is compiled."""
    return {
        "STEPS": n_past,
        "ANCHOR": config.anchor,
        "SEGMENTS": config.segments,
        "DAY": config.segment_steps,
        "QUERY": config.query_steps,
        "QUERY_ROWS": 1 << (config.query_steps - 1).bit_length(),
        "BIAS": config.bias_steps,
        "TEMPERATURE": config.temperature,
        "STABILISER": config.stabiliser,
        "ROWS": STEPS_AT_ONCE,
        "BUSES": BUSES_AT_ONCE,
    }


# In the kernel, a tile is steps × channels. Steps count backwards from the last, `back` = 0: then
# `back` modulo the day gives the phase for any length of the context. `source` describes the input:
# pointers to the first step, which channels exist, the stride in buses, and for each channel its
# last value and whether it is an angle.


@jit
@no_type_check
def _anchor_kernel(
    past,
    gates,
    residual,
    day,
    size,
    gate_gradient,
    window_stride,
    step_stride,
    n_buses,
    width,
    STEPS: constexpr,
    ANCHOR: constexpr,
    SEGMENTS: constexpr,
    DAY: constexpr,
    QUERY: constexpr,
    QUERY_ROWS: constexpr,
    BIAS: constexpr,
    TEMPERATURE: constexpr,
    STABILISER: constexpr,
    ROWS: constexpr,
    BUSES: constexpr,
):
    """One window of a block of buses.

    For each block of phases it computes the average over the days, then the residuals. The second
    pass rereads so few numbers, so soon, that they are still in the cache.
    """
    window = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BUSES
    bus = first + tl.arange(0, BUSES)[None, :]
    source = _source(past + window * window_stride * 4, first, step_stride, n_buses, STEPS, BUSES)
    if ANCHOR:
        weights = _weights(source, STEPS, SEGMENTS, DAY, QUERY, QUERY_ROWS, TEMPERATURE, STABILISER)
        bias = _bias(source, weights, STEPS, SEGMENTS, DAY, BIAS, ROWS)
    day += window * DAY * n_buses + bus
    day_plane = tl.num_programs(1).to(tl.int64) * DAY * n_buses
    residual += window * 4 * STEPS * width + bus
    residual_plane = tl.cast(width, tl.int64) * STEPS
    gate = (tl.load(gates), tl.load(gates + 1), tl.load(gates + 2), tl.load(gates + 3))
    sums = ()
    for _ in tl.static_range(8):
        sums += (tl.zeros([ROWS, BUSES], source[3].dtype),)
    for block in range((DAY + ROWS - 1) // ROWS):
        back = block * ROWS + tl.arange(0, ROWS)
        if ANCHOR:
            days = _days(source, back, back < DAY, STEPS, SEGMENTS, DAY)
            average = _average(days, weights, SEGMENTS) + bias
        else:
            average = _flat_reference(source[3], ROWS)
        phase = (DAY - 1 - back)[:, None]
        _store(day + phase * n_buses, average, day_plane, (phase >= 0) & (bus < n_buses))
        for segment in range((STEPS + DAY - 1) // DAY):
            earlier = back + segment * DAY
            inside = (back < DAY) & (earlier < STEPS)
            residual_tile = _values(source, earlier, inside, STEPS) - average
            residual_tile = _remove_turns(residual_tile, 0.0, source[4])
            residual_tile = tl.where(inside[:, None] & source[1], residual_tile, 0.0)
            row = residual + (STEPS - 1 - earlier).to(tl.int64)[:, None] * width
            _store(row, residual_tile, residual_plane, inside[:, None] & (bus < width))
            sums = _add_sizes(sums, residual_tile, gate)
    for number in tl.static_range(4):
        offset = (window * 4 + number) * n_buses + bus
        tl.store(size + offset, _mean(sums[number], STEPS), bus < n_buses)
        tl.store(gate_gradient + offset, _mean(sums[4 + number], STEPS), bus < n_buses)


@jit
@no_type_check
def _source(past, first, step_stride, n_buses, STEPS: constexpr, BUSES: constexpr):
    channel = first * 4 + tl.arange(0, 4 * BUSES)[None, :]
    valid = channel < n_buses * 4
    step_stride = tl.cast(step_stride, tl.int64)
    last = tl.load(past + (STEPS - 1) * step_stride * 4 + channel, valid, 0.0)
    # Bit operations let the compiler see which channels are no angles, and skip their turns.
    return past + channel, valid, step_stride, last, (channel & 3) == 3


@jit
@no_type_check
def _remove_turns(values, centre, is_angle):
    """Angles within half a turn of the centre; other values are unchanged."""
    turns = nearest_integer((values - centre) * PER_TURN)
    return tl.where(is_angle, values - TURN * turns, values)


@jit
@no_type_check
def _values(source, back, inside, STEPS: constexpr):
    past, valid, step_stride, last, is_angle = source
    step = (STEPS - 1 - back)[:, None] * step_stride * 4
    values = tl.load(past + step, inside[:, None] & valid, 0.0)
    return _remove_turns(values, last, is_angle)


@jit
@no_type_check
def _days(
    source,
    back,
    inside,
    STEPS: constexpr,
    SEGMENTS: constexpr,
    DAY: constexpr,
):
    """The same steps of each day, the newest first."""
    days = ()
    for segment in tl.static_range(SEGMENTS):
        days += (_values(source, back + segment * DAY, inside, STEPS),)
    return days


@jit
@no_type_check
def _flat_reference(channels, ROWS: constexpr):
    """The reference without an anchor: 0, and 1 p.u. for voltages."""
    is_voltage = tl.arange(0, channels.shape[1])[None, :] % 4 == 2
    return tl.zeros([ROWS, 1], channels.dtype) + is_voltage.to(channels.dtype)


@jit
@no_type_check
def _average(days, weights, SEGMENTS: constexpr):
    average = days[0] * weights[0]
    for segment in tl.static_range(1, SEGMENTS):
        average += days[segment] * weights[segment]
    return average


@jit
@no_type_check
def _weights(
    source,
    STEPS: constexpr,
    SEGMENTS: constexpr,
    DAY: constexpr,
    QUERY: constexpr,
    QUERY_ROWS: constexpr,
    TEMPERATURE: constexpr,
    STABILISER: constexpr,
):
    """The weight of each day: the softmax of its correlation with the newest."""
    back = tl.arange(0, QUERY_ROWS)
    days = _days(source, back, back < QUERY, STEPS, SEGMENTS, DAY)
    query = _centre(days[0], back, QUERY)
    variance = _mean(query * query, QUERY) + STABILISER
    correlation = ()
    for segment in tl.static_range(SEGMENTS):
        key = _centre(days[segment], back, QUERY)
        variances = (_mean(key * key, QUERY) + STABILISER) * variance
        correlation += (_mean(key * query, QUERY) / (tl.sqrt(variances) * TEMPERATURE),)
    largest = correlation[0]
    for segment in tl.static_range(1, SEGMENTS):
        largest = tl.maximum(largest, correlation[segment])
    total = tl.zeros_like(largest)
    for segment in tl.static_range(SEGMENTS):
        total += tl.exp(correlation[segment] - largest)
    weights = ()
    for segment in tl.static_range(SEGMENTS):
        weights += (tl.exp(correlation[segment] - largest) / total,)
    return weights


@jit
@no_type_check
def _mean(values, COUNT: constexpr):
    return tl.sum(values, 0, keep_dims=True) / COUNT


@jit
@no_type_check
def _centre(values, back, COUNT: constexpr):
    return tl.where((back < COUNT)[:, None], values - _mean(values, COUNT), 0.0)


@jit
@no_type_check
def _bias(
    source,
    weights,
    STEPS: constexpr,
    SEGMENTS: constexpr,
    DAY: constexpr,
    BIAS: constexpr,
    ROWS: constexpr,
):
    """The bias correction: the mean of the last steps less the average day."""
    total = tl.zeros_like(weights[0])
    for block in range((BIAS + ROWS - 1) // ROWS):
        back = block * ROWS + tl.arange(0, ROWS)
        inside = back < BIAS
        values = _values(source, back, inside, STEPS)
        days = _days(source, back % DAY, inside, STEPS, SEGMENTS, DAY)
        above = values - _average(days, weights, SEGMENTS)
        total += tl.sum(tl.where(inside[:, None], above, 0.0), 0, keep_dims=True)
    return total / BIAS


@jit
@no_type_check
def _by_kind(values):
    """A tile of channels as four tiles of buses."""
    pairs = tl.reshape(values, [values.shape[0], values.shape[1] // 4, 2, 2])
    p_and_v, q_and_theta = tl.split(pairs)
    p, v = tl.split(p_and_v)
    q, theta = tl.split(q_and_theta)
    return p, q, v, theta


@jit
@no_type_check
def _store(rows, values, plane, inside):
    """Store each kind in its plane."""
    kinds = _by_kind(values)
    for kind in tl.static_range(4):
        tl.store(rows + kind * plane, kinds[kind], inside)


@jit
@no_type_check
def _add_sizes(sums, residual_tile, gate):
    """Add these residuals to the sums of sizes by kind and of their gradients by gate."""
    p, q, v, theta = _by_kind(residual_tile)
    v += gate[0] * p + gate[1] * q
    theta += gate[2] * p + gate[3] * q
    return (
        sums[0] + tl.abs(p),
        sums[1] + tl.abs(q),
        sums[2] + tl.abs(v),
        sums[3] + tl.abs(theta),
        sums[4] + with_sign_of(v, p),
        sums[5] + with_sign_of(v, q),
        sums[6] + with_sign_of(theta, p),
        sums[7] + with_sign_of(theta, q),
    )
