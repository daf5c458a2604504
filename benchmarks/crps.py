"""CRPS of one window: ours against scoringrules, on the same numbers, in the same run.

    python benchmarks/crps.py                       a window of Polish 2383 in 100 scenarios
    python benchmarks/crps.py --buses 500 --scenarios 16

scoringrules is given what suits it: scenarios on the last axis, contiguous, float32; each of its
estimators of the same quantity, with NumPy and with numba. Ours takes scenarios as a model returns
them, and sorting them counts. Memory is what a call holds beyond its input.
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
HUNGRY = ("nrg", "fair")
LIMIT_GIB = 16
"""What an estimator that compares all pairs may have before it is stopped."""


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


def ours(scenarios: Scenarios, target: torch.Tensor) -> np.ndarray:
    """CRPS of every point, in blocks of channels as the scorer takes them."""
    n_channels = target.shape[-1]
    at_once = channels_at_once(BLOCK_BYTES["cpu"], scenarios)
    parts = [
        channel_points(scenarios.of_channels(here), target[..., here])["crps"]
        for here in (slice(k, k + at_once) for k in range(0, n_channels, at_once))
    ]
    return torch.cat(parts, dim=-1)[0].numpy()


def measured(call: Callable[[], np.ndarray], repeats: int) -> tuple[np.ndarray, float, float]:
    """The result, the best time [s], and the memory that it took beyond its input [GiB]."""
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
    """Print one table: ours on one thread and on all, and each of theirs."""
    scenarios, target = window(n_buses, n_scenarios, weighted)
    kind = "weighted" if weighted else "equally weighted"
    print(f"\n{n_scenarios} {kind} scenarios of {4 * n_buses:,} channels x {HORIZON} steps")
    ours(*window(16, n_scenarios, weighted))  # compiles
    threads = torch.get_num_threads()
    wanted, fastest, memory = measured(lambda: ours(scenarios, target), 3)
    row = "{:<34}{:>9}{:>9}{:>12}{:>14}"
    print(row.format("", "seconds", "ratio", "memory", "difference"))
    name = f"powerphase, {threads} threads"
    print(row.format(name, f"{fastest:.2f}", "1", f"{memory:.2f} GiB", ""))
    torch.set_num_threads(1)
    _, alone, memory = measured(lambda: ours(scenarios, target), 2)
    torch.set_num_threads(threads)
    print(row.format("powerphase, 1 thread", f"{alone:.2f}", "", f"{memory:.2f} GiB", ""))

    observed = target[0].numpy()
    last = np.ascontiguousarray(scenarios.values[0].movedim(0, -1).numpy())
    weights = None
    if weighted:
        expanded = scenarios.weights[0].T[None].expand(HORIZON, -1, -1)
        weights = np.ascontiguousarray(expanded.numpy())
    for estimator, backend in ESTIMATORS:

        def theirs(estimator: str = estimator, backend: str = backend) -> np.ndarray:
            return scoringrules.crps_ensemble(
                observed, last, ens_w=weights, estimator=estimator, backend=backend
            )

        theirs_found, seconds, memory = measured(theirs, 2)
        off = abs(theirs_found - wanted).max()
        name, ratio = f"scoringrules {estimator}, {backend}", f"{seconds / fastest:.1f}x"
        print(row.format(name, f"{seconds:.2f}", ratio, f"{memory:.2f} GiB", f"{off:.1e}"))


def demand(n_buses: int, n_scenarios: int, estimator: str) -> None:
    """Print how an estimator over all pairs fares under a limit of memory, in its own process."""
    code = (
        "import numpy as np, scoringrules as sr\n"
        f"fct = np.zeros(({HORIZON}, {4 * n_buses}, {n_scenarios}), dtype=np.float32)\n"
        f"sr.crps_ensemble(fct[..., 0], fct, estimator={estimator!r}, backend='numpy')\n"
    )

    def limited() -> None:
        limit = LIMIT_GIB * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limited, check=False)
    said = "enough memory" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    print(f"scoringrules {estimator}, numpy, given {LIMIT_GIB} GiB: {said}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--buses", type=int, default=2383)
    parser.add_argument("--scenarios", type=int, default=100)
    options = parser.parse_args()
    print(f"{hardware(torch.device('cpu'))}; scoringrules {scoringrules.__version__}")
    for weighted in (False, True):
        compare(options.buses, options.scenarios, weighted)
    print()
    for estimator in HUNGRY:
        demand(options.buses, options.scenarios, estimator)


if __name__ == "__main__":
    main()
