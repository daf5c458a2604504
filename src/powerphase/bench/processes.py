"""The local engine: one process for each job, so that no model can harm the rest of a bench."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any, NamedTuple

import torch

from powerphase.bench.job import Job
from powerphase.cost import free_memory_gib
from powerphase.models.framework.device import choose_device

LAST_LINES = 20
LAST_BYTES = 10_000

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """How a job ended: with an answer, or with the reason why there is none."""

    seconds: float
    hardware: str | None = None
    answer: Mapping[str, Any] | None = None
    kind: str = ""
    """The exception's name; or `limit`, `signal` or `exit` without an exception."""
    sentence: str = ""
    last_lines: tuple[str, ...] = ()
    """What the process printed last."""


class Memory(NamedTuple):
    """The memory that one or more workers use."""

    name: str
    free_gib: float | None
    """Before any job started; None if unknown."""


class JobProcess:
    """A process that does one job.

    Args:
        job: what to do.
        limit: seconds after which it is stopped.
        environment: variables in addition to those of this process.
        kept_open: file descriptors that it keeps open, such as that of a lock.
    """

    def __init__(
        self,
        job: Job,
        limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        kept_open: tuple[int, ...] = (),
    ) -> None:
        self.progress: Mapping[str, Any] = {}
        self._limit, self._start, self._hardware = limit, perf_counter(), None
        self._printed = TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._unread = b""
        # It finds the packages that this process finds, installed or not. With -P it finds nothing
        # else: otherwise a file random.py in the current folder would replace Python's.
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerphase.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            pass_fds=kept_open,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with suppress(BrokenPipeError):  # it died already, which `poll` will find
            self._process.stdin.write(job.to_json().encode() + b"\n")
            self._process.stdin.flush()

    def poll(self) -> Outcome | None:
        """The outcome, once it is known; the process and its children are then ended."""
        code = self._process.poll()  # before reading, so that its last message is not missed
        outcome = self._read_messages()
        if outcome is None and code is None and not self._is_late():
            return None
        if outcome is None:
            outcome = self.outcome_of_death(code)
        self.stop()
        return outcome

    def stop(self) -> None:
        """End it and all processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._printed):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return perf_counter() - self._start

    def outcome_of_death(self, code: int | None) -> Outcome:
        """The outcome of a process that ended with that status and no message; None is too late."""
        if code is None:
            return self._failure(
                "limit",
                f"took longer than the {self._limit:g} s of --limit and was stopped; raise the "
                "limit, or lower the budget with --seconds",
            )
        if code >= 0:
            return self._failure(
                "exit", f"its process exited with status {code} and no message; fix the model"
            )
        name = signal.Signals(-code).name
        advice = "fix the model"
        if name == "SIGKILL":
            advice = "if the system ran out of memory, give it more or reduce the model's needs"
        return self._failure("signal", f"its process was killed by {name}; {advice}")

    def _is_late(self) -> bool:
        return self._limit is not None and self.seconds > self._limit

    def _read_messages(self) -> Outcome | None:
        """Read new messages; returns the outcome if it is among them."""
        assert self._process.stdout is not None
        self._unread += self._process.stdout.read() or b""
        *lines, self._unread = self._unread.split(b"\n")
        for message in map(json.loads, lines):
            self._hardware = message.get("hardware", self._hardware)
            if "phase" in message:
                self.progress = message
            if "done" in message:
                return Outcome(self.seconds, self._hardware, message["done"])
            if "failed" in message:
                return self._failure(**message["failed"])
        return None

    def _failure(self, kind: str, sentence: str) -> Outcome:
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - LAST_BYTES))
        lines = self._printed.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        return Outcome(self.seconds, self._hardware, None, kind, sentence, tuple(lines))


class LocalEngine:
    """Processes on this machine.

    Args:
        device: cpu, cuda, or auto for GPUs if there are any.
        workers: how many processes at a time; by default one for each GPU, or a single one.
        limit: seconds after which a job is stopped.
        kept_open: file descriptors that its processes keep open.
    """

    def __init__(
        self,
        device: str = "auto",
        workers: int | None = None,
        limit: float | None = None,
        kept_open: tuple[int, ...] = (),
    ) -> None:
        self._gpus = visible_gpus() if choose_device(device).type == "cuda" else []
        self.workers = workers or max(1, len(self._gpus))
        self.on_gpu = bool(self._gpus)
        self._limit, self._kept_open = limit, kept_open
        self._memory = self._memories()

    def start(self, job: Job, worker: int, memory_gib: float | None) -> JobProcess:
        """Start a job in a new process."""
        return JobProcess(job, self._limit, self.environment(worker), self._kept_open)

    def memory(self, worker: int) -> Memory | None:
        """That of the worker's GPU, or of the machine if there is no GPU."""
        return self._memory[worker % len(self._memory)]

    def environment(self, worker: int) -> dict[str, str]:
        """The variables that give the worker its GPU, or its share of the cores."""
        if len(self._gpus) > 1:
            return {"CUDA_VISIBLE_DEVICES": self._gpus[worker % len(self._gpus)]}
        if self._gpus or self.workers == 1:
            return {}
        # Processes that each use all cores would mostly wait for one another.
        share = str(max(1, (os.cpu_count() or 1) // self.workers))
        return {name: share for name in THREADS if name not in os.environ}

    def _memories(self) -> list[Memory | None]:
        if not self._gpus:
            return [Memory("this machine", free_memory_gib(torch.device("cpu")))]
        # Asking a GPU takes some of its memory, so only GPUs with several workers are asked.
        n_shared = max(0, self.workers - len(self._gpus))
        return [
            Memory(f"GPU {name}", free_memory_gib(torch.device("cuda", k)))
            if k < n_shared
            else None
            for k, name in enumerate(self._gpus)
        ]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by CUDA's names."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    return numbers if names is None else names.split(",")[: len(numbers)]
