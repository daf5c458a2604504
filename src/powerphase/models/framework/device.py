"""Where a model computes: the device, and the processes that train one model together."""

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
    """The device of that name; `auto` is a GPU if there is one, under torchrun one per process."""
    if name not in DEVICES:
        raise UnknownName.among("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise TaskError("torch finds no GPU; choose the device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if not distributed.is_torchelastic_launched():
        return torch.device("cuda")
    number = int(os.environ["LOCAL_RANK"])
    if number >= torch.cuda.device_count():
        raise TaskError(
            f"local rank {number} has no GPU: this machine has {torch.cuda.device_count()}; start "
            "as many processes as there are GPUs"
        )
    return torch.device("cuda", number)


def world_size() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if distributed.is_torchelastic_launched() else 1


def is_rank_zero() -> bool:
    """Whether this is the process that writes files and prints, of all that torchrun started."""
    return not distributed.is_torchelastic_launched() or os.environ["RANK"] == "0"


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together, seen from one of them."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def shard(self) -> slice:
        """The part of a sequence of equal pieces of work that this process does."""
        return slice(self.rank, None, self.size)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def check_epoch(self, epoch: int) -> None:
        """Raise if the processes would start at different epochs."""
        if int(self.total(torch.tensor(epoch, device=self.device))) != self.size * epoch:
            raise TrainingError(
                f"rank {self.rank} has the training at epoch {epoch}, and other ranks do not; make "
                "the same folder visible to all of them"
            )

    def wait(self) -> None:
        """Wait until all processes get here."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this process alone."""
    if not distributed.is_torchelastic_launched():
        yield ProcessGroup()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        # Once for all trainings of a script: a group cannot be formed twice at one address.
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_destroy_group)
    yield ProcessGroup(distributed.get_rank(), distributed.get_world_size(), str(device))


def _destroy_group() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def process_mean(value: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over all processes of a training, with gradients to all of them."""
    if world_size() == 1:
        return value
    apply: Any = _ProcessMean.apply
    mean: torch.Tensor = apply(value)
    return mean


class _ProcessMean(torch.autograd.Function):
    """The mean over processes; its gradient is the mean of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total / distributed.get_world_size()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _ProcessMean.forward(ctx, gradient)
