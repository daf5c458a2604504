"""Triton if it is installed, the choice of a backend, and functions that all kernels use.

In a kernel, the M scenarios of a point are a tuple of M tensors, with one bus in each lane: a
sorting network orders them without leaving the registers.
"""

import os
from collections.abc import Callable
from math import nextafter, pi
from typing import Any, TypeVar, no_type_check

import torch
from torch import Tensor

from powerphase.errors import TaskError, UnknownName

__all__ = [
    "BACKENDS",
    "HAS_TRITON",
    "IS_INTERPRETED",
    "PER_TURN",
    "REGISTERS",
    "TURN",
    "check_backend",
    "constexpr",
    "jit",
    "nearest_integer",
    "product_dtype",
    "restore_order",
    "rows_at_once",
    "softplus",
    "sort_values",
    "tanh",
    "tl",
    "triton",
    "uses_triton",
    "with_sign_of",
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
        """Return the function unchanged: without Triton it is never called."""
        return function


Function = TypeVar("Function", bound=Callable[..., Any])


def at_compile_time(function: Function) -> Function:
    """Let kernels call it while they are compiled."""
    return triton.constexpr_function(function) if HAS_TRITON else function


IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton interprets kernels in Python, without a GPU, as tests do."""

BACKENDS = ("auto", "triton", "torch")

TURN = constexpr(2 * pi)
PER_TURN = constexpr(nextafter(1 / (2 * pi), 0))
"""Rounded down, so that angles of exactly ±π keep every bit in either precision."""


def check_backend(backend: str) -> str:
    """Return the backend; raise if it is unknown, or if it is Triton's and Triton is missing."""
    if backend not in BACKENDS:
        raise UnknownName.among("backend", backend, BACKENDS)
    if backend == "triton" and not HAS_TRITON:
        raise TaskError("Triton is not installed; install it, or choose the backend torch")
    return backend


def uses_triton(backend: str, device: torch.device) -> bool:
    """Whether this choice means Triton's kernels on this device."""
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    runs = HAS_TRITON and (on_nvidia or IS_INTERPRETED)
    if backend == "triton" and not runs:
        raise TaskError("Triton's kernels need an NVIDIA GPU; choose the backend torch, or auto")
    return backend == "triton" or (backend == "auto" and runs and not IS_INTERPRETED)


def product_dtype(like: Tensor) -> torch.dtype:
    """The precision of matrix products: autocast's if it is on, else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


TILE = 2048
"""Numbers of one kind that a program of the encoder's passes holds at a time."""

REGISTERS = 128
"""At most, for each thread of the backward passes, so that 16 warps fit on a multiprocessor."""


def rows_at_once(columns: int) -> int:
    """How many rows of so many columns a program takes; where it sums them, each has a warp."""
    return max(4, min(16, TILE // columns))


@jit
@no_type_check
def softplus(x):
    """log(1 + eˣ) and its derivative; as 2 artanh, since a logarithm loses digits near zero."""
    e = tl.exp(-tl.abs(x))
    s = e / (2 + e)
    q = s * s
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15 + q * (1 / 17))))
    series = 1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series)))
    return tl.maximum(x, 0.0) + 2 * s * series, tl.where(x > 0, 1.0, e) / (1 + e)


@jit
@no_type_check
def tanh(x):
    """The hyperbolic tangent and its derivative.

    The first has an absolute error of a rounding of 1; the voltage or angle that it is added to has
    no more digits.
    """
    e = tl.exp(-2 * tl.abs(x))
    share = 1 / (1 + e)
    return tl.where(x < 0, e - 1, 1 - e) * share, 4 * e * share * share


@jit
@no_type_check
def wrap(angle):
    """The same angle in [−π, π]; angles already there keep every bit."""
    return angle - TURN * nearest_integer(angle * PER_TURN)


@jit
@no_type_check
def nearest_integer(x):
    """The nearest nearest_integer number: beyond a certain size there are no others."""
    if x.dtype == tl.float64:
        rounded = (x + 6755399441055744.0) - 6755399441055744.0
    else:
        rounded = (x + 12582912.0) - 12582912.0
    return rounded


@jit
@no_type_check
def with_sign_of(x, size):
    """`size` with the sign of x; 0 where x is 0."""
    return tl.where(x > 0, size, tl.where(x < 0, -size, 0.0))


@jit
@no_type_check
def sort_values(values, M: constexpr):
    """M values in ascending order, and their exchanges: Batcher's merge exchange, for any M.

    Each layer of comparisons leaves one word, in which bit k is set if value k, the lower of a
    pair, was exchanged.
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
def restore_order(values, words, M: constexpr):
    """What belongs to sorted values, in the order that they had before `sort_values`."""
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
    """The value that value k is compared with in a layer; k itself if there is none.

    The same network as that of the metrics' kernels, which a kernel of Triton cannot use: while
    compiling, Triton calls only functions that were written for it.
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
    """The same with layers counted from the last."""
    return partner(m, n_layers(m) - 1 - step, k)
