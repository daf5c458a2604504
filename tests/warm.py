"""Processes forked from a server that has imported what takes seconds to import.

What is forked is a process like any other: it can be killed, exits with a status, and has pipes and
an environment of its own. How one starts from nothing is tested with a few that do.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO, Any

import pytest

from powerphase.bench import processes, worker

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["powerphase.bench.job", "tests.dataset.test_generation"])


def warm_jobs(patch: pytest.MonkeyPatch) -> None:
    """Fork the jobs of benches until the patch is undone."""
    warm = SimpleNamespace(Popen=WarmWorker, PIPE=subprocess.PIPE)
    patch.setattr(processes, "subprocess", warm)


class WarmWorker:
    """The part of `subprocess.Popen` that a job of a bench uses, for its command."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stderr: IO[bytes],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        **options: Any,
    ) -> None:
        stdin, stdout = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(stdin[1], "wb"), os.fdopen(stdout[0], "rb")
        streams = [stdin[0], stdout[1], *map(os.dup, (stderr.fileno(), *pass_fds))]
        connections = [Connection(stream) for stream in streams]  # which can be sent
        self._process = FORKSERVER.Process(target=_work, args=(dict(env), connections))
        self._process.start()
        for connection in connections:
            connection.close()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


def _work(env: Mapping[str, str], connections: Sequence[Connection]) -> None:
    os.setsid()
    for number, connection in enumerate(connections[:3]):
        os.dup2(connection.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = env["PYTHONPATH"].split(os.pathsep)
    worker.main()
