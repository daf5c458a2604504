"""The forms in which a training step of PowerForge can be taken, and what one of them costs."""

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
from powerphase.cost import peak_memory_gib, reset_peak_memory
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.stepping import Stepper, make_optimiser
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import READ_STEPS, Batches, Context, Layout, Record
from tests.models.powerforge import straightforward

CONTEXT, HORIZON = 7 * STEPS_PER_DAY, STEPS_PER_DAY
WARM_UP = {"cuda": 5, "cpu": 1}
"""Steps that do not count: they compile, capture and fill the allocator."""

FEWEST = {"cuda": 5, "cpu": 3}
"""Steps that are timed, however long they take."""

MEAN_WAVES, GAUSS_LEGENDRE = straightforward.mean_waves, straightforward.gauss_legendre

Step = Callable[[Context, Tensor], dict[str, Tensor]]


class Patience(NamedTuple):
    """How long a form may take, and how long its steps are timed."""

    limit_s: float
    seconds: float


@dataclass(frozen=True)
class Form:
    """One way to take the same step."""

    title: str
    backend: str
    """Of the network that holds the parameters."""
    graph: bool | None = None
    """Whether the fast step is captured as a CUDA graph; None for the straightforward one."""
    compiled: bool = False


FORMS = {
    "straightforward": Form("straightforward", "torch"),
    "torch": Form("folded, plain torch", "torch", graph=False),
    "eager": Form("fast, without a graph", "auto", graph=False),
    "fast": Form("fast", "auto", graph=True),
    "compile": Form("straightforward, compiled", "torch", compiled=True),
}
"""Compiling is last: where it is stopped, what it has begun may go on beside what comes next."""


class RandomRecord(Record):
    """States on a device, where they are needed; a training's come from a file."""

    def __init__(self, n_buses: int, n_steps: int, device: torch.device) -> None:
        rows = np.arange(n_buses)
        branch = np.zeros((0, 2), dtype=np.int64)
        kv = np.full(n_buses, 110.0)
        layout = Layout("none", rows, np.full(n_buses, 3), kv, branch, 1.0, 1.0)
        time = np.datetime64("2015-01-01", "s") + np.arange(n_steps) * np.timedelta64(STEP_S, "s")
        self.states = random_states(n_buses, n_steps, device)
        super().__init__(layout, time, lambda *part: self.states[part].cpu().numpy())

    def load(self, device: torch.device | str = "cpu") -> Tensor:
        """The states themselves, which are there already."""
        return self.states.to(device)


def random_states(n_buses: int, n_steps: int, device: torch.device) -> Tensor:
    """Days that repeat, not quite: sizes like those of normalised P, Q, V and θ."""
    generator = torch.Generator(device).manual_seed(0)
    n_channels = KINDS * n_buses
    size = torch.tensor([1.0, 1.0, 0.01, 0.2], device=device).repeat(n_buses)
    level = torch.tensor([0.0, 0.0, 1.0, 0.0], device=device).repeat(n_buses)
    phase = 2 * pi * torch.rand(n_channels, generator=generator, device=device)
    turn = 2 * pi / STEPS_PER_DAY * torch.arange(n_steps, device=device)[:, None]
    states = torch.empty((n_steps, n_channels), device=device)
    for first in range(0, n_steps, READ_STEPS):  # blocks: what is made beside them takes memory
        here = slice(first, first + READ_STEPS)
        states[here].normal_(generator=generator).mul_(0.3).add_((turn[here] + phase).sin_())
        states[here].mul_(size).add_(level)
    return states


def make_step(form: Form, size: Size, training: TrainingConfig, device: torch.device) -> Step:
    """A fresh network of the paper's constants, the same in every form, and its step."""
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
    """The model as torch.compile has it by default, for these sizes alone.

    A compiler of tensors can read neither dates nor NumPy's polynomials. The former, four numbers
    for each window, are left to Python; the latter are constants.
    """
    straightforward.mean_waves = torch.compiler.disable(MEAN_WAVES)
    straightforward.gauss_legendre = torch.compiler.assume_constant_result(_nodes)
    found: Any = torch.compile(model, dynamic=False)
    return found


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
    patience: Patience,
) -> dict[str, Any]:
    """What a step in this form takes, or why it cannot be taken."""
    free_memory()
    reset_peak_memory()
    found: dict[str, Any] = {"held_gib": peak_memory_gib(device)}
    try:
        with time_limit(patience.limit_s):
            step = make_step(form, size, training, device)
            found |= _measured(step, batches, device, patience.seconds)
        found |= {"peak_gib": peak_memory_gib(device), "reserved_gib": _reserved_gib(device)}
    except Exception as error:  # whatever it is, it is told, and the other forms are measured
        lines = str(error).strip().splitlines() or ["no reason given"]
        found["missing"] = f"{type(error).__name__}: {lines[0]}"
    return found


def _measured(step: Step, batches: Batches, device: torch.device, seconds: float) -> dict[str, Any]:
    """The first loss, the seconds of the first steps, and the milliseconds of those after them."""
    numbers, began = count(), perf_counter()
    loss = float(step(*batches[next(numbers)])["loss"])
    if not isfinite(loss):
        raise ArithmeticError(f"the loss of the first step is {loss}")
    for _ in range(WARM_UP[device.type] - 1):
        step(*batches[next(numbers)])
    wait_for(device)
    warm_up_s = perf_counter() - began
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
    """Milliseconds from the end of one call to the end of the next, as calls follow in a training.

    The host may be two calls ahead of the device: more would run on long after the time is over.
    """
    marks, began = [mark(device)], perf_counter()
    while len(marks) <= FEWEST[device.type] or perf_counter() - began < seconds:
        call()
        marks.append(mark(device))
        if device.type == "cuda" and len(marks) > 2:
            marks[-3].synchronize()
    wait_for(device)
    return milliseconds(marks)


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory() -> None:
    """Give back what earlier forms took, compiled code included."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc: then it keeps what it likes
            ctypes.CDLL(None).malloc_trim(0)


def _reserved_gib(device: torch.device) -> float | None:
    """What the allocator took from the GPU at most, gaps and captured graphs included."""
    return torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop what takes longer, as soon as Python has a say."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
