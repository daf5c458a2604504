"""Time and memory of all scores of a forecast, with and without those of lines.

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
from powerphase.grid import limits_of, load_grid
from powerphase.metrics import Scorecard, Scorer
from powerphase.scenarios import Layout, Scenarios
from powerphase.task import layout_of

HORIZON, N_WINDOWS = 96, 10
PART = 1000
"""Channels on which scoringrules is timed."""


def layout(name: str) -> Layout:
    """The channels and lines of a grid."""
    grid = load_grid(name)
    return layout_of(grid, limits_of(grid), 1.0, 1.0)


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


def measure(
    layout: Layout, n_scenarios: int, weighted: bool, device: str, lines: bool = True
) -> tuple[Scorecard, float]:
    """The scores of ten windows, and their time [s]."""
    seconds = 0.0
    scorer = Scorer(layout, HORIZON, N_WINDOWS, device)
    if not lines:
        scorer._lines.add = lambda *_: None  # type: ignore[method-assign]
    scenarios, target = window(layout.n_buses, n_scenarios, weighted, device)
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
    parser.add_argument("--grid", default="pegase9241")
    parser.add_argument("--scenarios", type=int, nargs="+", default=[16, 100])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device, grid = torch.device(options.device), layout(options.grid)
    print(f"{hardware(device)}, {torch.get_num_threads()} threads")
    print(
        f"{N_WINDOWS} windows of {grid.n_channels:,} channels x {HORIZON} steps, "
        f"{grid.circuit.n_branches:,} branches"
    )
    row = "{:>10}{:>10}{:>12}{:>15}{:>7}{:>10}{:>26}{:>7}"
    print(
        row.format(
            *("scenarios", "weights", "all scores", "without lines", "ratio", "memory"),
            *("scoringrules, only CRPS", "ratio"),
        )
    )
    for weighted in (True, False):
        measure(layout("activsg200"), 2, weighted, options.device)  # compiles the kernels
    for n_scenarios in options.scenarios:
        reference = scoringrules_crps(grid.n_buses, n_scenarios)
        for weighted in (False, True):
            inputs = (grid, n_scenarios, weighted, options.device)
            _, marginal = measure(*inputs, lines=False)
            reset_peak_memory()
            _, seconds = measure(*inputs)
            memory = peak_memory_gib(device)
            cells = (n_scenarios, "unequal" if weighted else "equal", f"{seconds:.1f} s")
            shown = (f"{marginal:.1f} s", f"{seconds / marginal:.2f}", f"{memory:.1f} GiB")
            rules = (f"{reference:.1f} s", f"{reference / seconds:.1f}x")
            print(row.format(*cells, *shown, *rules), flush=True)


if __name__ == "__main__":
    main()
