"""Where a model computes, alone or together with its likes in other processes."""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from powerphase.errors import TaskError, TrainingError, UnknownName

DEVICES = ("auto", "cpu", "cuda")


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU where there is one, and under torchrun one's own."""
    if name not in DEVICES:
        raise UnknownName.among("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise TaskError("torch finds no GPU here; choose the device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if not distributed.is_torchelastic_launched():
        return torch.device("cuda")
    number = int(os.environ["LOCAL_RANK"])
    if number >= torch.cuda.device_count():
        raise TaskError(
            f"process {number} of this machine has no GPU of its own among "
            f"{torch.cuda.device_count()}; start as many processes as there are GPUs"
        )
    return torch.device("cuda", number)


def world_size() -> int:
    """How many processes were started together."""
    return int(os.environ["WORLD_SIZE"]) if distributed.is_torchelastic_launched() else 1


def is_rank_zero() -> bool:
    """Whether this process writes and speaks for all that were started together."""
    return not distributed.is_torchelastic_launched() or os.environ["RANK"] == "0"


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together, and which of them this is."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes and speaks for all."""
        return self.rank == 0

    @property
    def share(self) -> slice:
        """Which of many equal pieces of work are this process's."""
        return slice(self.rank, None, self.size)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a number over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def agree(self, epoch: int) -> None:
        """Refuse to go on where the processes would begin at different epochs."""
        if int(self.total(torch.tensor(epoch, device=self.device))) != self.size * epoch:
            raise TrainingError(
                f"process {self.rank} finds the training at epoch {epoch}, others do not; let all "
                "of them see the same folder"
            )

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            distributed.barrier()


def process_mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over all processes that train together, with gradients to all."""
    if world_size() == 1:
        return value
    apply: Any = _ProcessMean.apply
    found: torch.Tensor = apply(value)
    return found


class _ProcessMean(torch.autograd.Function):
    """Each process has a share in the mean of all, and so in the slope of each: a mean as well."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total / distributed.get_world_size()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        return _ProcessMean.forward(ctx, slope)


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextmanager
def process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this process alone."""
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        # Once for all trainings of a script: a group cannot be formed twice in the same place.
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), str(device))
