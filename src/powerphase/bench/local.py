"""The engine of one machine: a process for each cell, a GPU for each process."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from powerphase.bench.processes import Child, Memory
from powerphase.cost import free_memory_gib
from powerphase.errors import TaskError
from powerphase.models.framework.device import choose_device

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


class Local:
    """Processes of this machine.

    Args:
        device: cpu, cuda, or auto for GPUs where there are some.
        workers: how many at a time; by default one for each GPU, or one.
        limit: seconds after which a cell is stopped.
        kept_open: what they hold as long as they live.
    """

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        limit: float | None = None,
        kept_open: tuple[int, ...] = (),
    ) -> None:
        if workers is not None and workers < 1:
            raise TaskError(f"--workers {workers} make nothing; give 1 or more")
        self._gpus = gpus() if choose_device(device).type == "cuda" else []
        self.workers = workers or max(1, len(self._gpus))
        self.on_gpu = bool(self._gpus)
        self._limit, self._kept_open = limit, kept_open
        self._memory = self._memories()

    def start(self, job: Mapping[str, Any], worker: int, memory_gib: float | None) -> Child:
        """Begin a job in a process of its own."""
        return Child(job, self._limit, self._environment(worker), self._kept_open)

    def memory(self, worker: int) -> Memory | None:
        """That of its GPU, or of the machine where there is none."""
        return self._memory[worker % len(self._memory)]

    def _memories(self) -> list[Memory | None]:
        if not self._gpus:
            return [Memory("this machine", free_memory_gib(torch.device("cpu")))]
        # To ask a GPU takes some of its memory, so one that nobody shares is not asked.
        n_shared = max(0, self.workers - len(self._gpus))
        return [
            Memory(f"GPU {name}", free_memory_gib(torch.device("cuda", k)))
            if k < n_shared
            else None
            for k, name in enumerate(self._gpus)
        ]

    def _environment(self, worker: int) -> dict[str, str]:
        if len(self._gpus) > 1:
            return {"CUDA_VISIBLE_DEVICES": self._gpus[worker % len(self._gpus)]}
        if self._gpus or self.workers == 1:
            return {}
        # Processes that each take all cores wait for each other most of the time.
        share = str(max(1, (os.cpu_count() or 1) // self.workers))
        return {name: share for name in THREADS if name not in os.environ}


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    return numbers if named is None else named.split(",")[: len(numbers)]
