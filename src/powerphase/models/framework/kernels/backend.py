"""The choice between Triton's kernels and plain PyTorch."""

import torch

from powerphase.errors import TaskError, UnknownName
from powerphase.models.framework.kernels.toolkit import HAS_TRITON, IS_INTERPRETED

BACKENDS = ("auto", "triton", "torch")


def known_backend(backend: str) -> str:
    """The same, if there is one of that name and Triton is there for it."""
    if backend not in BACKENDS:
        raise UnknownName.among("backend", backend, BACKENDS)
    if backend == "triton" and not HAS_TRITON:
        raise TaskError("Triton is not installed here; install it, or choose the backend torch")
    return backend


def uses_triton(backend: str, device: torch.device) -> bool:
    """Whether this choice means Triton's kernels on this device."""
    on_nvidia = device.type == "cuda" and torch.version.hip is None
    runs = HAS_TRITON and (on_nvidia or IS_INTERPRETED)
    if backend == "triton" and not runs:
        raise TaskError(
            "Triton's kernels need a GPU of NVIDIA's; choose the backend torch, or auto"
        )
    return backend == "triton" or (backend == "auto" and runs and not IS_INTERPRETED)
