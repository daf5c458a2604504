"""Processes in which cells are made, so that whatever a model does takes nothing else with it."""

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

LAST_LINES = 20
LAST_BYTES = 10_000


@dataclass(frozen=True)
class Outcome:
    """What came of a job: an answer, or why there is none."""

    seconds: float
    hardware: str | None = None
    answer: Mapping[str, Any] | None = None
    kind: str = ""
    sentence: str = ""
    last_lines: tuple[str, ...] = ()


class Memory(NamedTuple):
    """Where processes take their memory from."""

    where: str
    """In words."""
    free_gib: float | None
    """Before any of them was begun; None where nobody says."""


class Child:
    """A process that does one job.

    Args:
        job: for `bench.cell`.
        limit: seconds after which it is stopped.
        environment: besides this process's own.
        kept_open: what it holds as long as it lives, such as a lock.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        limit: float | None = None,
        environment: Mapping[str, str] | None = None,
        kept_open: tuple[int, ...] = (),
    ) -> None:
        self.progress: Mapping[str, Any] = {}
        self._limit, self._begun, self._hardware = limit, perf_counter(), None
        self._said = TemporaryFile()  # noqa: SIM115 - closed when the child is
        self._unread = b""
        # It finds what this process finds, installed or not, and with -P nothing else: a file
        # random.py in the current folder would pass for Python's.
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerphase.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            pass_fds=kept_open,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        with suppress(BrokenPipeError):  # it is dead already, which `poll` will find
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self) -> Outcome | None:
        """What came of it, once that is known; whatever is left of it is ended then."""
        code = self._process.poll()  # before reading: what it said last must not be missed
        found = self._heard()
        if found is None and code is None and not self._is_late():
            return None
        if found is None:
            found = self._death(code)
        self.stop()
        return found

    def stop(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    @property
    def seconds(self) -> float:
        """Since it was begun."""
        return perf_counter() - self._begun

    def _is_late(self) -> bool:
        return self._limit is not None and self.seconds > self._limit

    def _heard(self) -> Outcome | None:
        """Take in what it says; its outcome, if that is among it."""
        assert self._process.stdout is not None
        self._unread += self._process.stdout.read() or b""
        *lines, self._unread = self._unread.split(b"\n")
        for message in map(json.loads, lines):
            self._hardware = message.get("hardware", self._hardware)
            if "at" in message:
                self.progress = message
            if "done" in message:
                return Outcome(self.seconds, self._hardware, message["done"])
            if "failed" in message:
                return self._failure(**message["failed"])
        return None

    def _death(self, code: int | None) -> Outcome:
        if code is None:
            text = f"took longer than the {self._limit:g} s of --limit and was stopped; give it "
            return self._failure("limit", text + "more, or a smaller budget with --seconds")
        if code < 0:
            name = signal.Signals(-code).name
            text = f"its process was killed by {name}"
            if name == "SIGKILL":
                text += ", as the system does when memory runs out; give it more memory, or mend it"
            else:
                text += "; mend the model"
            return self._failure("signal", text)
        text = f"its process ended with status {code} without a word; mend the model"
        return self._failure("exit", text)

    def _failure(self, kind: str, sentence: str) -> Outcome:
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - LAST_BYTES))
        lines = self._said.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        facts = (self.seconds, self._hardware, None)
        return Outcome(*facts, kind, sentence, tuple(lines))
