"""Triton where there is one, and what all kernels use.

In a kernel, the M scenarios of a point are a tuple of M tensors, with one bus in each lane: sorting
them takes a network of comparisons that never leaves the registers.
"""

import os
from collections.abc import Callable
from math import nextafter, pi
from typing import Any, TypeVar, no_type_check

import torch
from torch import Tensor

__all__ = [
    "HAS_TRITON",
    "IS_INTERPRETED",
    "PER_TURN",
    "REGISTERS",
    "TURN",
    "ascending",
    "constexpr",
    "jit",
    "product_dtype",
    "put_back",
    "rows_at_once",
    "signed",
    "softplus",
    "tanh",
    "tl",
    "triton",
    "whole",
    "wrap",
]

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
    constexpr, jit = tl.constexpr, triton.jit
except ModuleNotFoundError:
    HAS_TRITON = False
    triton = tl = None
    constexpr = float

    def jit(function: Any) -> Any:
        """Leave it alone: without Triton nobody calls it."""
        return function


Function = TypeVar("Function", bound=Callable[..., Any])


def at_compile_time(function: Function) -> Function:
    """Let kernels call it while they are compiled."""
    return triton.constexpr_function(function) if HAS_TRITON else function


IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run without a GPU, step by step in Python: to test them."""

TURN = constexpr(2 * pi)
PER_TURN = constexpr(nextafter(1 / (2 * pi), 0))
"""Rounded down, so that angles of exactly ±π keep every bit in either precision."""


def product_dtype(like: Tensor) -> torch.dtype:
    """The precision in which matrix products are asked for; that of the tensor, if none is."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


TILE = 2048
"""Numbers of one kind that a program of the encoder's passes has at a time."""

REGISTERS = 128
"""At most, for each thread of their backward passes: so that 16 warps run on a multiprocessor."""


def rows_at_once(columns: int) -> int:
    """How many rows of so many numbers a program takes; where it sums them, a warp has each."""
    return max(4, min(16, TILE // columns))


@jit
@no_type_check
def softplus(x):
    """log(1 + eˣ) and its slope; as 2 artanh, since a logarithm would lose small values' digits."""
    e = tl.exp(-tl.abs(x))
    s = e / (2 + e)
    q = s * s
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15 + q * (1 / 17))))
    series = 1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series)))
    return tl.maximum(x, 0.0) + 2 * s * series, tl.where(x > 0, 1.0, e) / (1 + e)


@jit
@no_type_check
def tanh(x):
    """The hyperbolic tangent, and its slope.

    The first is as exact as 1 is; what it is added to, a voltage or an angle, is no more.
    """
    e = tl.exp(-2 * tl.abs(x))
    share = 1 / (1 + e)
    return tl.where(x < 0, e - 1, 1 - e) * share, 4 * e * share * share


@jit
@no_type_check
def wrap(angle):
    """The same angle in [−π, π]; angles already there keep every bit."""
    return angle - TURN * whole(angle * PER_TURN)


@jit
@no_type_check
def whole(x):
    """The nearest whole number: beyond a certain size there are no others."""
    if x.dtype == tl.float64:
        found = (x + 6755399441055744.0) - 6755399441055744.0
    else:
        found = (x + 12582912.0) - 12582912.0
    return found


@jit
@no_type_check
def signed(x, size):
    """The size, with the sign of x; 0 where x is."""
    return tl.where(x > 0, size, tl.where(x < 0, -size, 0.0))


@jit
@no_type_check
def ascending(values, M: constexpr):
    """M values in order, and which of them changed places: Batcher's merge exchange, for any M.

    Each layer of comparisons leaves one word, in which value k, the lower of two that changed
    places, has set bit k.
    """
    words = ()
    for layer in tl.static_range(n_layers(M)):
        word = tl.zeros(values[0].shape, tl.int32)
        exchanged = ()
        for k in tl.static_range(M):
            if partner(M, layer, k) > k:
                swap = values[k] > values[partner(M, layer, k)]
                word |= tl.where(swap, 1 << k, 0)
                exchanged += (tl.where(swap, values[partner(M, layer, k)], values[k]),)
            elif partner(M, layer, k) < k:
                swap = values[partner(M, layer, k)] > values[k]
                exchanged += (tl.where(swap, values[partner(M, layer, k)], values[k]),)
            else:
                exchanged += (values[k],)
        values = exchanged
        words += (word,)
    return values, words


@jit
@no_type_check
def put_back(values, words, M: constexpr):
    """What belongs to ordered values, in the order in which these came."""
    for step in tl.static_range(n_layers(M)):
        exchanged = ()
        for k in tl.static_range(M):
            if backward_partner(M, step, k) > k:
                swap = (words[n_layers(M) - 1 - step] & (1 << k)) != 0
                exchanged += (tl.where(swap, values[backward_partner(M, step, k)], values[k]),)
            elif backward_partner(M, step, k) < k:
                swap = (words[n_layers(M) - 1 - step] & (1 << backward_partner(M, step, k))) != 0
                exchanged += (tl.where(swap, values[backward_partner(M, step, k)], values[k]),)
            else:
                exchanged += (values[k],)
        values = exchanged
    return values


@at_compile_time
def n_layers(m: int) -> int:
    """How many layers of comparisons sort m values."""
    doublings = max(1, (m - 1).bit_length())
    return doublings * (doublings + 1) // 2


@at_compile_time
def partner(m: int, layer: int, k: int) -> int:
    """With whom value k is compared in a layer; k itself, if with none.

    The same network as `metrics.kernels.network`, of which a kernel cannot make use: Triton calls
    nothing while compiling that was not written for it.
    """
    doublings, stage = max(1, (m - 1).bit_length()), 0
    while layer > stage:
        stage, layer = stage + 1, layer - stage - 1
    p = 1 << (doublings - 1 - stage)
    r = p if layer else 0
    distance = (1 << (doublings - layer)) - p if layer else p
    if (k & p) == r and k + distance < m:
        return k + distance
    if k >= distance and ((k - distance) & p) == r:
        return k - distance
    return k


@at_compile_time
def backward_partner(m: int, step: int, k: int) -> int:
    """The same, layers counted from the last one."""
    return partner(m, n_layers(m) - 1 - step, k)
