"""CRPS of one window compared with scoringrules, on the same numbers in the same run.

    python benchmarks/crps.py                       a window of Polish 2383 in 100 scenarios
    python benchmarks/crps.py --buses 500 --scenarios 16

scoringrules gets its preferred input: contiguous float32 scenarios on the last axis. Each of its
estimators of the same quantity is measured, with NumPy and with numba. powerphase takes scenarios
as a model returns them; its time includes sorting. Memory is allocated beyond the input.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import scoringrules
import torch

from powerphase.cost import hardware, peak_memory_gib, reset_peak_memory
from powerphase.metrics import BLOCK_BYTES, channel_points, channels_at_once
from powerphase.scenarios import Scenarios

HORIZON = 96
ESTIMATORS = (("qd", "numpy"), ("qd", "numba"), ("pwm", "numba"))
PAIRWISE = ("nrg", "fair")
LIMIT_GIB = 16
"""The memory limit of an estimator that compares all pairs."""


def window(n_buses: int, n_scenarios: int, weighted: bool) -> tuple[Scenarios, torch.Tensor]:
    """Random scenarios around a random target."""
    rng = np.random.default_rng(0)
    n_channels = 4 * n_buses
    target = torch.from_numpy(rng.random((1, HORIZON, n_channels), dtype=np.float32))
    shape = (1, n_scenarios, HORIZON, n_channels)
    values = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    values.mul_(0.01).add_(target)
    if not weighted:
        return Scenarios.equal(values), target
    weights = torch.from_numpy(rng.random((1, n_scenarios, n_channels), dtype=np.float32) + 0.1)
    return Scenarios(values, weights / weights.sum(1, keepdim=True)), target


def crps(scenarios: Scenarios, target: torch.Tensor) -> np.ndarray:
    """CRPS of every point, in the scorer's blocks of channels."""
    n_channels = target.shape[-1]
    width = channels_at_once(BLOCK_BYTES["cpu"], scenarios)
    parts = [
        channel_points(scenarios.of_channels(block), target[..., block])["crps"]
        for block in (slice(k, k + width) for k in range(0, n_channels, width))
    ]
    return torch.cat(parts, dim=-1)[0].numpy()


def measure(call: Callable[[], np.ndarray], repeats: int) -> tuple[np.ndarray, float, float]:
    """The result, the best time [s], and the memory beyond the input [GiB]."""
    best = float("inf")
    cpu = torch.device("cpu")
    for _ in range(repeats):
        reset_peak_memory()
        before = peak_memory_gib(cpu) or 0.0
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
        memory = (peak_memory_gib(cpu) or 0.0) - before
    return result, best, memory


def compare(n_buses: int, n_scenarios: int, weighted: bool) -> None:
    """Print one table: powerphase on one thread and on all, and each estimator of scoringrules."""
    scenarios, target = window(n_buses, n_scenarios, weighted)
    kind = "weighted" if weighted else "equally weighted"
    print(f"\n{n_scenarios} {kind} scenarios of {4 * n_buses:,} channels x {HORIZON} steps")
    crps(*window(16, n_scenarios, weighted))  # compiles
    threads = torch.get_num_threads()
    reference, fastest, memory = measure(lambda: crps(scenarios, target), 3)
    row = "{:<34}{:>9}{:>9}{:>12}{:>14}"
    print(row.format("", "seconds", "ratio", "memory", "difference"))
    name = f"powerphase, {threads} threads"
    print(row.format(name, f"{fastest:.2f}", "1", f"{memory:.2f} GiB", ""))
    torch.set_num_threads(1)
    _, alone, memory = measure(lambda: crps(scenarios, target), 2)
    torch.set_num_threads(threads)
    print(row.format("powerphase, 1 thread", f"{alone:.2f}", "", f"{memory:.2f} GiB", ""))

    observed = target[0].numpy()
    last = np.ascontiguousarray(scenarios.values[0].movedim(0, -1).numpy())
    weights = None
    if weighted:
        expanded = scenarios.weights[0].T[None].expand(HORIZON, -1, -1)
        weights = np.ascontiguousarray(expanded.numpy())
    for estimator, backend in ESTIMATORS:

        def call(estimator: str = estimator, backend: str = backend) -> np.ndarray:
            return scoringrules.crps_ensemble(
                observed, last, ens_w=weights, estimator=estimator, backend=backend
            )

        result, seconds, memory = measure(call, 2)
        difference = abs(result - reference).max()
        name, ratio = f"scoringrules {estimator}, {backend}", f"{seconds / fastest:.1f}x"
        print(row.format(name, f"{seconds:.2f}", ratio, f"{memory:.2f} GiB", f"{difference:.1e}"))


def check_memory(n_buses: int, n_scenarios: int, estimator: str) -> None:
    """Print whether an estimator over all pairs fits the memory limit, in a separate process."""
    code = (
        "import numpy as np, scoringrules as sr\n"
        f"fct = np.zeros(({HORIZON}, {4 * n_buses}, {n_scenarios}), dtype=np.float32)\n"
        f"sr.crps_ensemble(fct[..., 0], fct, estimator={estimator!r}, backend='numpy')\n"
    )

    def set_limit() -> None:
        limit = LIMIT_GIB * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-c", code]
    process = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=set_limit, check=False
    )
    error = process.stderr.strip().splitlines()
    outcome = "fits" if process.returncode == 0 else error[-1]
    print(f"scoringrules {estimator}, numpy, with {LIMIT_GIB} GiB: {outcome}")


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--buses", type=int, default=2383)
    parser.add_argument("--scenarios", type=int, default=100)
    options = parser.parse_args()
    print(f"{hardware(torch.device('cpu'))}; scoringrules {scoringrules.__version__}")
    for weighted in (False, True):
        compare(options.buses, options.scenarios, weighted)
    print()
    for estimator in PAIRWISE:
        check_memory(options.buses, options.scenarios, estimator)


if __name__ == "__main__":
    main()
