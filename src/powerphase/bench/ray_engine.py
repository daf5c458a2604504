"""The engine of a Ray cluster: cells wherever there is room. Only the driver writes rows."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from powerphase.bench.processes import Child, Memory, Outcome
from powerphase.dataset.store import read_manifest
from powerphase.errors import ResultError, TaskError
from powerphase.files import disk_errors, replace_file
from powerphase.records.result import read_result, read_sidecar, write_result

TRIES = 3
"""How often a cell is begun whose worker dies."""

POLL_S = 0.1

Answer = tuple[Outcome, dict[str, bytes]]
"""What came of a job, and the files of its row."""


def _do(job: dict[str, Any], limit: float | None, paths: list[str]) -> Answer:
    """Do the job on a node; its row goes into a folder that is not kept, and back as bytes."""
    if read_manifest(job["data"]) is None:
        sentence = (
            f"{job['data']}: no data set here on the node {socket.gethostname()}; --data must be "
            "a folder that all nodes of the cluster reach by the same path"
        )
        return Outcome(0.0, kind="StoreError", sentence=sentence), {}
    known = os.pathsep.join(path for path in paths if Path(path).exists())
    with TemporaryDirectory(prefix="powerphase-") as place:
        child = Child({**job, "out": place}, limit, {"PYTHONPATH": known})
        try:
            while (outcome := child.poll()) is None:
                sleep(POLL_S)
        finally:
            child.stop()
        files = [file for file in Path(place).rglob("*") if file.is_file()]
        content = {str(file.relative_to(place)): file.read_bytes() for file in files}
        return outcome, content


class Remote:
    """A job on the cluster, begun anew when its worker dies."""

    progress: Mapping[str, Any]

    def __init__(self, ray: Any, task: Any, arguments: tuple[Any, ...], out: Path) -> None:
        self.progress = {}
        self._ray, self._task, self._arguments, self._out = ray, task, arguments, out
        self._begun, self._tries = perf_counter(), 1
        self._answer = task.remote(*arguments)

    def poll(self) -> Outcome | None:
        """What came of it, once that is known; then its row is here."""
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return None
        try:
            outcome, files = self._ray.get(self._answer)
        except self._ray.exceptions.RayTaskError as error:
            # Its worker lives: another one would find the same.
            kind, seconds = type(error.cause).__name__, perf_counter() - self._begun
            return Outcome(seconds, kind=kind, sentence=f"{kind} on its node: {error.cause}")
        except self._ray.exceptions.RayError as error:
            return self._again(type(error).__name__)
        return self._kept(outcome, files)

    def stop(self) -> None:
        """End it, wherever it is."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.cancel(self._answer, force=True)

    def _again(self, kind: str) -> Outcome | None:
        if self._tries < TRIES:
            self._tries += 1
            self._answer = self._task.remote(*self._arguments)
            return None
        sentence = f"its worker on the Ray cluster died {TRIES} times ({kind}); look at its memory"
        return Outcome(perf_counter() - self._begun, kind=kind, sentence=sentence)

    def _kept(self, outcome: Outcome, files: dict[str, bytes]) -> Outcome:
        """Write the row as any other is written: checked, and not over one that is not the same."""
        if not any(name.endswith(".json") for name in files):
            return outcome
        try:
            with disk_errors(self._out, ResultError):
                answer = {"row": str(_written(files, self._out))}
        except ResultError as error:
            sentence = f"the row that came from its node is not kept: {error}"
            return Outcome(outcome.seconds, kind="ResultError", sentence=sentence)
        return Outcome(outcome.seconds, outcome.hardware, answer)


def _written(files: Mapping[str, bytes], out: Path) -> Path:
    """Where the row in these files, which lay in a tree of results, is now."""
    with TemporaryDirectory(prefix="powerphase-") as place:
        for name, content in files.items():
            replace_file(Path(place) / name, content)
        row = next(Path(place).rglob("*.json"))
        return write_result(read_result(row), read_sidecar(row), out)


class RayEngine:
    """Workers of a Ray cluster: the one that this machine belongs to, or one started here.

    Args:
        out: the tree of results, which only this process writes.
        device: cpu, cuda, or auto for GPUs where the cluster has some.
        workers: how many cells at a time; by default, one for each GPU or processor.
        limit: seconds after which a cell is stopped.
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
        # Not above, since it brings the power flow, which every worker would load.
        from powerphase.dataset.solving import connect_ray

        self._ray, self._out, self._limit = connect_ray(), out, limit
        there = self._ray.cluster_resources()
        n_gpus = 0 if device == "cpu" else int(there.get("GPU", 0))
        if device == "cuda" and not n_gpus:
            raise TaskError("the Ray cluster has no GPU; choose the device cpu")
        self._needs = {"num_cpus": 1, "num_gpus": min(n_gpus, 1)}
        self.workers = workers or max(1, n_gpus or int(there.get("CPU", 1)))
        self.on_gpu = n_gpus > 0
        nodes = [node["Resources"].get("memory", 0.0) for node in self._ray.nodes()]
        self._largest = max(nodes, default=0.0)

    def start(self, job: Mapping[str, Any], worker: int, memory_gib: float | None) -> Remote:
        """Begin a job wherever there is room for it."""
        memory = 0.0 if self._needs["num_gpus"] else (memory_gib or 0.0) * 2**30
        memory = min(memory, self._largest)  # what no node has would be waited for in vain
        needs = {**self._needs, "memory": memory, "max_retries": 0}
        paths = [path or str(Path.cwd()) for path in sys.path]
        arguments = (dict(job), self._limit, paths)
        return Remote(self._ray, self._ray.remote(**needs)(_do), arguments, self._out)

    def memory(self, worker: int) -> Memory | None:
        """The cluster sees to it that there is enough."""
        return None
