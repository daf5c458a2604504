"""Runs seeded cases of damage against a reader, within limits of time and memory.

The cases are seeded, so that a failing one is repeated by its number. `POWERPHASE_FUZZ_CASES` asks
for more of them than the suite runs.
"""

import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from powerphase.errors import PowerphaseError
from tests.fuzz.mutations import Mutation

CASES = int(os.environ.get("POWERPHASE_FUZZ_CASES", "64"))
"""Cases of each kind of file."""

LIMIT_S = 20
"""No read of a small file takes so long, even on a busy machine."""

LIMIT_BYTES = 2**30
"""No read of a small file needs so much memory beyond what the process has."""


class Hang(BaseException):
    """A read that did not end; no reader may take it for an error of the disk."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Interrupt a read that hangs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit() -> Iterator[None]:
    """Let large allocations fail."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def check_cases(
    sound: Path,
    victim: Path,
    mutations: Sequence[Mutation],
    read: Callable[[Path], None],
    cases: int = CASES,
) -> None:
    """Damage a copy of the folder `sound` in many ways; `read` gets the damaged file's path.

    It may read the file and assert what it read, or raise an error of powerphase of one line.
    """
    refused = 0
    for case in range(cases):
        rng = random.Random(case)
        copy = sound.with_name("damaged")
        shutil.copytree(sound, copy)
        target = copy / victim.relative_to(sound)
        rng.choice(mutations)(target, rng)
        try:
            with time_limit(), memory_limit():
                read(target)
        except PowerphaseError as error:
            refused += 1
            if "\n" in str(error):
                raise AssertionError(f"case {case}: several lines: {error}") from error
        except (Exception, Hang) as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(copy)
    assert refused, "no damage was noticed, so it is none"
