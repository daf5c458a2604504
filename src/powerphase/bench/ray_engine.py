"""The Ray engine: jobs run wherever the cluster has room. Only the driver writes rows."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from powerphase.bench.job import Job
from powerphase.bench.processes import JobProcess, Memory, Outcome
from powerphase.dataset.store import read_manifest
from powerphase.errors import ResultError, TaskError
from powerphase.files import disk_errors, replace_file
from powerphase.records.result import read_result, write_result
from powerphase.records.sidecar import read_sidecar

TRIES = 3
"""How often a job is started whose worker dies."""

POLL_S = 0.1

Answer = tuple[Outcome, dict[str, bytes]]
"""The outcome of a job, and the files of its row."""


def run_on_node(job: Job, limit: float | None, paths: list[str]) -> Answer:
    """Do the job on a node; the row is written to a temporary folder and returned as bytes."""
    if read_manifest(job.data) is None:
        sentence = (
            f"{job.data}: no data set on the node {socket.gethostname()}; --data must be "
            "a folder that all nodes of the cluster reach by the same path"
        )
        return Outcome(0.0, kind="StoreError", sentence=sentence), {}
    existing = os.pathsep.join(path for path in paths if Path(path).exists())
    with TemporaryDirectory(prefix="powerphase-") as folder:
        process = JobProcess(replace(job, out=folder), limit, {"PYTHONPATH": existing})
        try:
            while (outcome := process.poll()) is None:
                sleep(POLL_S)
        finally:
            process.stop()
        files = [file for file in Path(folder).rglob("*") if file.is_file()]
        content = {str(file.relative_to(folder)): file.read_bytes() for file in files}
        return outcome, content


class RemoteJob:
    """A job on the cluster, started again if its worker dies."""

    progress: Mapping[str, Any]

    def __init__(self, ray: Any, function: Any, arguments: tuple[Any, ...], out: Path) -> None:
        self.progress = {}
        self._ray, self._function, self._arguments, self._out = ray, function, arguments, out
        self._start, self._tries = perf_counter(), 1
        self._answer = function.remote(*arguments)

    def poll(self) -> Outcome | None:
        """The outcome, once it is known and its row is in the tree of results."""
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return None
        try:
            outcome, files = self._ray.get(self._answer)
        except self._ray.exceptions.RayTaskError as error:
            # Its worker is alive: another one would raise the same error.
            kind, seconds = type(error.cause).__name__, perf_counter() - self._start
            return Outcome(seconds, kind=kind, sentence=f"{kind} on its node: {error.cause}")
        except self._ray.exceptions.RayError as error:
            return self._retry(type(error).__name__)
        return self._write_row(outcome, files)

    def stop(self) -> None:
        """End it on whichever node it runs."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(self._answer, force=True)

    def _retry(self, kind: str) -> Outcome | None:
        if self._tries < TRIES:
            self._tries += 1
            self._answer = self._function.remote(*self._arguments)
            return None
        sentence = f"its worker on the Ray cluster died {TRIES} times ({kind}); check its memory"
        return Outcome(perf_counter() - self._start, kind=kind, sentence=sentence)

    def _write_row(self, outcome: Outcome, files: dict[str, bytes]) -> Outcome:
        """Write the row like any other: checked, and not over a different one."""
        if not any(name.endswith(".json") for name in files):
            return outcome
        try:
            with disk_errors(self._out, ResultError):
                answer = {"row": str(_write_files(files, self._out))}
        except ResultError as error:
            sentence = f"the row from its node was rejected: {error}"
            return Outcome(outcome.seconds, kind="ResultError", sentence=sentence)
        return Outcome(outcome.seconds, outcome.hardware, answer)


def _write_files(files: Mapping[str, bytes], out: Path) -> Path:
    """Write the row in these files of a tree of results to the tree `out`; returns its path."""
    with TemporaryDirectory(prefix="powerphase-") as folder:
        for name, content in files.items():
            replace_file(Path(folder) / name, content)
        row = next(Path(folder).rglob("*.json"))
        return write_result(read_result(row), read_sidecar(row), out)


class RayEngine:
    """Workers of a Ray cluster: the one that this machine belongs to, or one started here.

    Args:
        out: the tree of results, which only this process writes.
        device: cpu, cuda, or auto for GPUs if the cluster has any.
        workers: how many jobs at a time; by default one for each GPU or CPU core.
        limit: seconds after which a job is stopped.
    """

    def __init__(
        self,
        out: Path,
        device: str = "auto",
        workers: int | None = None,
        limit: float | None = None,
    ) -> None:
        if find_spec("ray") is None:
            raise TaskError("engine 'ray' needs Ray; pip install 'powerphase[cluster]'")
        # Not at the top: it imports the power flow, which every worker would load.
        from powerphase.dataset.solving import connect_ray

        self._ray, self._out, self._limit = connect_ray(), out, limit
        resources = self._ray.cluster_resources()
        n_gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device == "cuda" and not n_gpus:
            raise TaskError("the Ray cluster has no GPU; choose the device cpu")
        self._needs = {"num_cpus": 1, "num_gpus": min(n_gpus, 1)}
        self.workers = workers or max(1, n_gpus or int(resources.get("CPU", 1)))
        self.on_gpu = n_gpus > 0
        memory = [node["Resources"].get("memory", 0.0) for node in self._ray.nodes()]
        self._largest_memory = max(memory, default=0.0)

    def start(self, job: Job, worker: int, memory_gib: float | None) -> RemoteJob:
        """Start a job wherever there is room for it."""
        memory = 0.0 if self._needs["num_gpus"] else (memory_gib or 0.0) * 2**30
        memory = min(memory, self._largest_memory)  # more than any node has would wait forever
        needs = {**self._needs, "memory": memory, "max_retries": 0}
        paths = [path or str(Path.cwd()) for path in sys.path]
        function = self._ray.remote(**needs)(run_on_node)
        return RemoteJob(self._ray, function, (job, self._limit, paths), self._out)

    def memory(self, worker: int) -> Memory | None:
        """None: the cluster counts memory itself."""
        return None
