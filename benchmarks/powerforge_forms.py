"""The forms in which a PowerForge training step can be computed, and the cost of each."""

import ctypes
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite, pi
from statistics import median, quantiles
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.powerforge_floor import Size, mark, milliseconds
from powerphase.axes import KINDS, STEP_S, STEPS_PER_DAY
from powerphase.circuit import Circuit, Limits
from powerphase.cost import peak_memory_gib, reset_peak_memory
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.stepping import Stepper, make_optimiser
from powerphase.models.powerforge import PowerForgeConfig, PowerForgeNetwork
from powerphase.records import NORMAL_BAND_PU
from powerphase.scenarios import READ_STEPS, Batches, Context, Layout, Record
from tests.models.powerforge import straightforward

CONTEXT, HORIZON = 7 * STEPS_PER_DAY, STEPS_PER_DAY
WARM_UP = {"cuda": 5, "cpu": 1}
"""Steps before timing: they compile, capture and fill the allocator."""

LEAST_STEPS = {"cuda": 5, "cpu": 3}
"""Least number of timed steps."""

MEAN_WAVES, GAUSS_LEGENDRE = straightforward.mean_waves, straightforward.gauss_legendre

Step = Callable[[Context, Tensor], dict[str, Tensor]]


class TimeLimits(NamedTuple):
    """The seconds that a form may take, and for which its steps are timed."""

    limit_s: float
    seconds: float


@dataclass(frozen=True)
class Form:
    """One way to compute the same step."""

    title: str
    backend: str
    """Backend of the network that holds the parameters."""
    graph: bool | None = None
    """Whether the fast step is captured as a CUDA graph; None for the straightforward one."""
    compiled: bool = False


FORMS = {
    "straightforward": Form("straightforward", "torch"),
    "torch": Form("plain torch, simplified", "torch", graph=False),
    "eager": Form("fast, without a graph", "auto", graph=False),
    "fast": Form("fast", "auto", graph=True),
    "compile": Form("straightforward, compiled", "torch", compiled=True),
}
"""Compiling is last: if it is interrupted, its work may continue during the next measurement."""


class RandomRecord(Record):
    """Random states that are already on the device; a training's come from a file."""

    def __init__(self, n_buses: int, n_steps: int, device: torch.device) -> None:
        rows = np.arange(n_buses)
        circuit = Circuit.chain(n_buses)
        limits = Limits.equal(circuit, NORMAL_BAND_PU, np.inf)
        kv = np.full(n_buses, 110.0)
        layout = Layout("none", rows, np.full(n_buses, 3), kv, circuit, limits, 1.0, 1.0)
        time = np.datetime64("2015-01-01", "s") + np.arange(n_steps) * np.timedelta64(STEP_S, "s")
        self.states = random_states(n_buses, n_steps, device)
        super().__init__(layout, time, lambda *part: self.states[part].cpu().numpy())

    def load(self, device: torch.device | str = "cpu") -> Tensor:
        """The states, which are on the device already."""
        return self.states.to(device)


def random_states(n_buses: int, n_steps: int, device: torch.device) -> Tensor:
    """Nearly periodic days with the sizes of normalised P, Q, V and θ."""
    generator = torch.Generator(device).manual_seed(0)
    n_channels = KINDS * n_buses
    size = torch.tensor([1.0, 1.0, 0.01, 0.2], device=device).repeat(n_buses)
    level = torch.tensor([0.0, 0.0, 1.0, 0.0], device=device).repeat(n_buses)
    phase = 2 * pi * torch.rand(n_channels, generator=generator, device=device)
    turn = 2 * pi / STEPS_PER_DAY * torch.arange(n_steps, device=device)[:, None]
    states = torch.empty((n_steps, n_channels), device=device)
    for first in range(0, n_steps, READ_STEPS):  # in blocks, to save memory
        part = slice(first, first + READ_STEPS)
        states[part].normal_(generator=generator).mul_(0.3).add_((turn[part] + phase).sin_())
        states[part].mul_(size).add_(level)
    return states


def make_step(form: Form, size: Size, training: TrainingConfig, device: torch.device) -> Step:
    """The step of a new network with the paper's constants, the same in every form."""
    torch.manual_seed(0)
    config = replace(PowerForgeConfig(), training=training)
    dimensions = (size.n_buses, size.context, size.horizon)
    network = PowerForgeNetwork(config, *dimensions, backend=form.backend).to(device).train()
    optimiser = make_optimiser(network, training, device)
    if form.graph is not None:
        return Stepper(network, optimiser, training, device, capture=form.graph)
    model: nn.Module = straightforward.Straightforward(network)
    return plain_step(compiled(model) if form.compiled else model, network, optimiser, training)


def compiled(model: nn.Module) -> nn.Module:
    """The model compiled by torch.compile's defaults, for these sizes alone.

    The compiler supports neither dates nor NumPy's polynomials. The former, four numbers for each
    window, are left to Python; the latter are constants.
    """
    straightforward.mean_waves = torch.compiler.disable(MEAN_WAVES)
    straightforward.gauss_legendre = torch.compiler.assume_constant_result(_nodes)
    result: Any = torch.compile(model, dynamic=False)
    return result


def _nodes(n: int, device: torch.device) -> Any:
    return GAUSS_LEGENDRE(n, device)


def plain_step(
    model: nn.Module,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    training: TrainingConfig,
) -> Step:
    """Forward, backward, clipping and optimiser, one after the other."""

    def step(context: Context, target: Tensor) -> dict[str, Tensor]:
        loss, _ = model(context, target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), training.clip_norm)
        optimiser.step()
        return {"loss": loss.detach()}

    return step


def measure(
    form: Form,
    size: Size,
    batches: Batches,
    training: TrainingConfig,
    device: torch.device,
    limits: TimeLimits,
) -> dict[str, Any]:
    """The cost of a step in this form, or the error that prevents it."""
    free_memory()
    reset_peak_memory()
    result: dict[str, Any] = {"held_gib": peak_memory_gib(device)}
    try:
        with time_limit(limits.limit_s):
            step = make_step(form, size, training, device)
            result |= _time_steps(step, batches, device, limits.seconds)
        result |= {"peak_gib": peak_memory_gib(device), "reserved_gib": _reserved_gib(device)}
    except Exception as error:  # report any error, and measure the other forms
        lines = str(error).strip().splitlines() or ["no reason given"]
        result["missing"] = f"{type(error).__name__}: {lines[0]}"
    return result


def _time_steps(
    step: Step, batches: Batches, device: torch.device, seconds: float
) -> dict[str, Any]:
    """The first loss, the seconds of the warm-up, and the milliseconds of the steps after it."""
    numbers, start = count(), perf_counter()
    loss = float(step(*batches[next(numbers)])["loss"])
    if not isfinite(loss):
        raise ArithmeticError(f"the loss of the first step is {loss}")
    for _ in range(WARM_UP[device.type] - 1):
        step(*batches[next(numbers)])
    wait_for(device)
    warm_up_s = perf_counter() - start
    times = back_to_back(lambda: step(*batches[next(numbers)]), device, seconds)
    low, _, high = quantiles(times, n=4)
    return {
        "ms": median(times),
        "ms_quartiles": [low, high],
        "steps": len(times),
        "warm_up_s": warm_up_s,
        "first_loss": loss,
    }


def back_to_back(call: Callable[[], Any], device: torch.device, seconds: float) -> list[float]:
    """Milliseconds from the end of one call to the end of the next, as in a training.

    The host may be at most two calls ahead of the device, so that the time limit holds.
    """
    marks, start = [mark(device)], perf_counter()
    while len(marks) <= LEAST_STEPS[device.type] or perf_counter() - start < seconds:
        call()
        marks.append(mark(device))
        if device.type == "cuda" and len(marks) > 2:
            marks[-3].synchronize()
    wait_for(device)
    return milliseconds(marks)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all commands."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory() -> None:
    """Free the memory of earlier forms, compiled code included."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)


def _reserved_gib(device: torch.device) -> float | None:
    """The most that the allocator reserved on the GPU, gaps and captured graphs included."""
    return torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer, as soon as Python regains control."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
