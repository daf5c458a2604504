"""Time of `pp.generate` and of a plain pandapower loop on the same steps.

The time of `pp.generate` includes everything but reading the grid and the signals: set-up,
injections, power flow, rescue, checksums and files, averaged over `--blocks` blocks of ten days.
The reference is the shortest loop with pandapower: put P and Q into the load table, call `runpp`,
store nothing, with injections computed beforehand. It solves a sample of the steps, and the median
counts. Both may use all cores; pandapower uses one. Kernels that are compiled at their first use
are compiled before the measurement.

    python benchmarks/generation.py activsg500 pegase1354 ...
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandapower
from pandapower.converter.pypower.from_ppc import from_ppc

from powerphase.dataset import (
    Recipe,
    RecipeOptions,
    StepSolver,
    generate,
    make_recipe,
    setpoints_pu,
)
from powerphase.grid import PAPER_GRIDS, bus_level_case, load_grid
from powerphase.synthesis import load_signals


def main() -> None:
    """Measure each grid in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", default=PAPER_GRIDS)
    parser.add_argument("--signals", default="synthetic")
    parser.add_argument("--seed", type=int, default=RecipeOptions.seed)
    parser.add_argument(
        "--blocks", type=int, default=6, help="blocks of ten days that powerphase makes"
    )
    parser.add_argument("--steps", type=int, default=24, help="steps that pandapower solves")
    options = parser.parse_args()
    signals = load_signals(options.signals)
    with tempfile.TemporaryDirectory() as folder:
        generate("ieee14", Path(folder) / "warm", signals=signals, end="2015-01-01")
    print("| grid | pandapower [ms/step] | powerphase [ms/step] | ratio | rescued |")
    print("|---|---|---|---|---|")
    for name in options.grids:
        end = str(np.datetime64("2015-01-01") + 10 * options.blocks - 1)
        grid = load_grid(name)
        recipe = make_recipe(grid, signals, RecipeOptions(seed=options.seed, end=end))
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            store = generate(grid, Path(folder) / name, signals=signals, seed=options.seed, end=end)
            ours = (time.perf_counter() - start) / store.manifest.n_steps
            rescued = sum(store.manifest.provenance[1:]) / store.manifest.n_steps
        solver = StepSolver(grid, signals, recipe)
        theirs = pandapower_seconds(solver, recipe, options.steps, 960 * options.blocks)
        print(
            f"| {name} | {1e3 * theirs:.1f} | {1e3 * ours:.3f} | {theirs / ours:.0f}x "
            f"| {rescued:.1%} |",
            flush=True,
        )


def pandapower_seconds(solver: StepSolver, recipe: Recipe, n_sample: int, n_steps: int) -> float:
    """Median seconds of one `runpp` over a sample of steps across the record."""
    grid = solver.grid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = bus_level_case(grid, setpoints_pu(recipe, grid))
        net = from_ppc(case | {"version": "2"}, f_hz=50)
    seconds = []
    for step in np.linspace(0, n_steps - 1, n_sample + 1, dtype=int):
        p_mw, q_mvar = solver.injections.steps(int(step), int(step) + 1)
        start = time.perf_counter()
        net.load["p_mw"] = p_mw[0]
        net.load["q_mvar"] = q_mvar[0]
        try:
            pandapower.runpp(net)
        except pandapower.LoadflowNotConverged:
            continue
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))  # the first call compiles


if __name__ == "__main__":
    main()
