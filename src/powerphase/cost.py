"""The cost of a row: time, memory, hardware and the commit of the code."""

import ctypes
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import distribution
from pathlib import Path
from time import perf_counter

import torch

UNKNOWN = "unknown"
"""The hardware of a forecast that was made elsewhere."""


class Stopwatch:
    """Total seconds spent in `with watch.running():` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time that the block takes."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - start


def reuse_memory() -> None:
    """Keep freed memory in this process, where the C library is glibc.

    By default every large array is returned to the system, which clears it for the next one. That
    takes a fifth of the time of a large day's run, and its peak memory is the same without.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        mallopt(mmap_threshold, 2**30)
        mallopt(trim_threshold, 2**31 - 1)


def reset_peak_memory() -> None:
    """Reset the peak memory, as far as the system allows."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # not Linux, or not allowed: then the peak is unknown
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_gib(device: torch.device) -> float | None:
    """Peak memory since the last reset, on the GPU or of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return None


def free_memory_gib(device: torch.device) -> float | None:
    """Memory that is available now, on the GPU or on this machine; None if unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (torch.cuda.mem_get_info(device)[0] + cached) / 2**30
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return None


def hardware(device: torch.device) -> str:
    """The name of the GPU, or of the processor and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def is_gpu(name: str) -> bool | None:
    """Whether a name that `hardware` returned is that of a GPU; None if it is unknown.

    Only the names of processors end in a number of cores.
    """
    return None if name == UNKNOWN else not name.partition(";")[0].endswith(" cores")


def commit() -> str | None:
    """The commit of the running code, with a + if files have changed since; None if unknown."""
    folder = Path(__file__).parent
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return _installed_commit()
    changed = "+" if _git(folder, "status", "--porcelain", "--", ".") else ""
    head = _git(folder, "rev-parse", "HEAD")
    return None if head is None else head + changed


def _installed_commit() -> str | None:
    """The commit that pip recorded if it installed the package from a repository."""
    origin = json.loads(distribution("powerphase").read_text("direct_url.json") or "{}")
    commit_id = origin.get("vcs_info", {}).get("commit_id")
    return commit_id if isinstance(commit_id, str) else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return process.stdout.strip()
