"""Lower bounds of a PowerForge training step: bytes and FLOPs, and a device's ceilings.

Nothing runs faster than its bytes at the rate of a large copy, or its matrix products at the rate
of a large one. Both rates are measured.
"""

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.models.powerforge import PowerForgeConfig

FLOAT_BYTES = 4
WITH_GRADIENTS = 3
"""A product Y = XW costs three times as much: forward, for X's gradient, and for W's."""

POWERS, RESPONSES = (P, Q), (V, THETA)
"""The bridge's source kinds, and the kinds that attend to them."""

LARGE = {"cuda": (2**31, 8192), "cpu": (2**28, 1024)}
"""The sizes for measuring ceilings: bytes to copy, rows of a square matrix."""


class Size(NamedTuple):
    """The sizes of a step."""

    batch: int
    n_buses: int
    context: int
    horizon: int

    @property
    def buses(self) -> int:
        """Buses of all windows."""
        return self.batch * self.n_buses

    @property
    def channels(self) -> int:
        """Channels of all windows."""
        return KINDS * self.buses


class Ceilings(NamedTuple):
    """The measured maximum rates of a device."""

    bytes_per_s: float
    flops_per_s: float

    def floor_ms(self, n_bytes: int, n_flops: int) -> tuple[float, float]:
        """The least time of these bytes, and of these FLOPs; the larger is the floor."""
        return 1e3 * n_bytes / self.bytes_per_s, 1e3 * n_flops / self.flops_per_s


def least_bytes(config: PowerForgeConfig, size: Size, n_parameters: int) -> dict[str, int]:
    """Bytes that a step must move through memory, in float32.

    All channels interact twice, in the mixer's tokens and in the tokens' gradient, so no channel
    can be finished in one pass. Between the three passes that remain, memory holds what is
    smallest, and everything else is recomputed:

    - past: read for the state, and again for the gradient of the first layer. It is larger than any
      cache, and the second read cannot start before the whole loss is known.
    - target: read once, where the loss and its gradient are computed together.
    - reference day: written where the past is read, and read where the loss is computed. Computing
      it again would be a third read of the past, seven times as long.
    - state: one vector for each channel, written before the tokens are known and read after.
    - gradient: of that vector, written before the tokens' gradient is known and read after.
    - parameters: read in the forward pass; their gradient, written; and Adam, which reads weight,
      gradient and two moments, and writes three of them. The norm for clipping can be summed while
      gradients are written.

    Scenarios and their gradients are not counted: a channel's 16 × 96 numbers fit into registers.
    Nor is a copy of the windows: they can be read from the record.
    """
    channel_bytes = FLOAT_BYTES * size.channels
    return {
        "past": 2 * channel_bytes * size.context,
        "target": channel_bytes * size.horizon,
        "reference day": 2 * channel_bytes * min(size.horizon, config.segment_steps),
        "state": 2 * channel_bytes * config.hidden,
        "gradient": 2 * channel_bytes * config.hidden,
        "parameters": (1 + 1 + 7) * FLOAT_BYTES * n_parameters,
    }


def least_flops(config: PowerForgeConfig, size: Size) -> dict[str, int]:
    """FLOPs (two per multiply-add) of a step's matrix products, simplified, gradients included.

    - week: the 672 → 128 map of each channel. Data need no gradient, so it counts twice, not three
      times.
    - encoder: 128 → 128, the two layers of the scale network, and the embedding of buses.
    - mixer: six products of channels with tokens, for logits and values of two reads and one write;
      and four of each window's tokens with matrices.
    - heads: 128 → 96 of each bus, mean and spread of P and Q, gates of V and θ; scenarios are added
      after them.
    - directions: 128 → 96 of V and θ towards P and Q, which are the bridge's queries.
    - logits: of V and θ towards P and Q in each scenario, each a dot product of 96.
    - bridge: 96 × 96 of P and of Q, for V and for θ, in each scenario: half of everything.

    Not counted are products that do not grow with the grid (the merged weights: 0.1 % at 500
    buses), products that are repeated to save memory, and everything else, such as sorting.
    """
    hidden, horizon, n_buses = config.hidden, size.horizon, size.n_buses
    pairs = len(POWERS) * len(RESPONSES)
    scenarios = size.buses * config.scenarios
    scale_network = config.scale_hidden * (1 + hidden)
    embedding = n_buses * config.node_embedding * hidden
    products = {
        "encoder": size.channels * (hidden**2 + scale_network) + embedding,
        "mixer": (6 * size.channels + 4 * size.batch * hidden) * hidden * config.tokens,
        "heads": (2 * len(POWERS) + len(RESPONSES)) * size.buses * hidden * horizon,
        "directions": pairs * size.buses * hidden * horizon,
        "logits": pairs * scenarios * horizon,
        "bridge": pairs * scenarios * horizon**2,
    }
    week = 2 * (2 * size.channels * size.context * hidden)
    return {"week": week} | {name: WITH_GRADIENTS * 2 * n for name, n in products.items()}


def ceilings(device: torch.device, precision: str) -> Ceilings:
    """The rates of a large copy, bytes read and written, and of a large matrix product.

    `torch.set_float32_matmul_precision` sets the precision of products, as in a training.
    """
    n_bytes, rows = LARGE[device.type]
    source, target = (torch.randn(n_bytes // FLOAT_BYTES, device=device) for _ in range(2))
    copy_s = _seconds(lambda: target.copy_(source), device)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    product_s = _seconds(lambda: left @ right, device)
    return Ceilings(2 * n_bytes / copy_s, 2 * rows**3 / product_s)


def mark(device: torch.device) -> Any:
    """A point in time, on the device's clock if it has one."""
    if device.type == "cpu":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def milliseconds(marks: list[Any]) -> list[float]:
    """From each mark to the next; a GPU must have passed all of them."""
    pairs = pairwise(marks)
    if marks and isinstance(marks[0], float):
        return [1e3 * (after - before) for before, after in pairs]
    return [before.elapsed_time(after) for before, after in pairs]


def _seconds(call: Callable[[], Any], device: torch.device, times: int = 20) -> float:
    """The median of several calls, after warming up."""
    marks = []
    for _ in range(times + 5):
        call()
        marks.append(mark(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return median(milliseconds(marks)[4:]) / 1e3
