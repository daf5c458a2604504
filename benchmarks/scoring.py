"""Time and memory of all scores of a forecast, and the time of scoringrules for CRPS only.

    python benchmarks/scoring.py                    PEGASE 9241, 10 windows, 16 and 100 scenarios
    python benchmarks/scoring.py --device cuda

Scenarios are random and generated before the measurement, one window at a time, as from a model.
scoringrules computes only CRPS, for a part of the channels of one window; its time is scaled to the
whole forecast.
"""

import argparse
import time

import numpy as np
import scoringrules
import torch

from powerphase.cost import hardware, peak_memory_gib, reset_peak_memory
from powerphase.metrics import Scorecard, Scorer
from powerphase.scenarios import Layout, Scenarios

HORIZON, N_WINDOWS = 96, 10
PART = 1000
"""Channels on which scoringrules is timed."""


def layout_of(n_buses: int) -> Layout:
    """A layout without branches, which scores do not use."""
    rows = np.arange(n_buses)
    branch = np.zeros((0, 2), dtype=np.int64)
    return Layout("none", rows, np.full(n_buses, 3), np.full(n_buses, 110.0), branch, 1.0, 1.0)


def window(
    n_buses: int, n_scenarios: int, weighted: bool, device: str
) -> tuple[Scenarios, torch.Tensor]:
    """A target near 1, and scenarios around it, some of which leave the voltage band."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (1, n_scenarios, HORIZON, 4 * n_buses)
    values = torch.randn(shape, generator=generator, device=device).mul_(0.03).add_(1)
    target = torch.randn((1, *shape[2:]), generator=generator, device=device).mul_(0.03).add_(1)
    if not weighted:
        return Scenarios.equal(values), target
    weights = torch.rand((1, n_scenarios, 4 * n_buses), generator=generator, device=device) + 0.1
    return Scenarios(values, weights / weights.sum(1, keepdim=True)), target


def measure(n_buses: int, n_scenarios: int, weighted: bool, device: str) -> tuple[Scorecard, float]:
    """The scores of ten windows, and their time [s]."""
    layout, seconds = layout_of(n_buses), 0.0
    scorer = Scorer(layout, HORIZON, N_WINDOWS, device)
    scenarios, target = window(n_buses, n_scenarios, weighted, device)
    for number in range(N_WINDOWS):
        start = time.perf_counter()
        scorer.add(number, scenarios, target)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    card = scorer.result()
    return card, seconds + time.perf_counter() - start


def scoringrules_crps(n_buses: int, n_scenarios: int) -> float:
    """Estimated seconds of scoringrules' fastest exact estimator for CRPS of ten windows."""
    scenarios, target = window(PART // 4, n_scenarios, False, "cpu")
    last = np.ascontiguousarray(scenarios.values[0].movedim(0, -1).numpy())
    for _ in range(2):  # the first call compiles
        start = time.perf_counter()
        scoringrules.crps_ensemble(target[0].numpy(), last, estimator="qd", backend="numba")
        seconds = time.perf_counter() - start
    return N_WINDOWS * seconds * 4 * n_buses / PART


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--buses", type=int, default=9241)
    parser.add_argument("--scenarios", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(f"{hardware(device)}, {torch.get_num_threads()} threads")
    print(f"{N_WINDOWS} windows of {4 * options.buses:,} channels x {HORIZON} steps, all scores")
    row = "{:>10}{:>10}{:>10}{:>12}{:>26}{:>9}"
    print(
        row.format("scenarios", "weights", "seconds", "memory", "scoringrules, only CRPS", "ratio")
    )
    for weighted in (True, False):
        measure(64, 2, weighted, options.device)  # compiles the kernels
    for n_scenarios in options.scenarios:
        reference = scoringrules_crps(options.buses, n_scenarios)
        for weighted in (False, True):
            reset_peak_memory()
            _, seconds = measure(options.buses, n_scenarios, weighted, options.device)
            memory = peak_memory_gib(device)
            cells = (n_scenarios, "unequal" if weighted else "equal", f"{seconds:.1f}")
            shown = (f"{memory:.1f} GiB", f"{reference:.1f} s", f"{reference / seconds:.1f}x")
            print(row.format(*cells, *shown), flush=True)


if __name__ == "__main__":
    main()
