"""How long a day of scenarios takes, forecast and solved, against full Newton from a flat start.

    python benchmarks/physical.py data/activsg500 data/pegase9241

FactorForge's ranked scenarios of the first validation day are solved as `--physical` does. The
reference solves some of the same steps one by one: Newton from a flat start with a new Jacobian in
every iteration, by the same library. Its time for all steps is extrapolated. Fitting and compiling
are not counted. With `--out` it writes the numbers to a file.
"""

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from lightsim2grid.injectionSweep import InjectionSweepCPP
from lightsim2grid.network import init_from_matpower

from powerphase import Task
from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.dataset import Recipe, setpoints_pu
from powerphase.evaluation import AcSolver, predict_states
from powerphase.grid import PQ, TOLERANCE_MVA, bus_level_case
from powerphase.models import FactorForge

MAX_ITERATIONS = 20


@dataclass
class Clock:
    """Wall and processor seconds since the last reading."""

    wall: float = 0.0
    cpu: float = 0.0

    def read(self) -> dict[str, float]:
        """The seconds since the last reading."""
        before, self.wall, self.cpu = (self.wall, self.cpu), perf_counter(), process_time()
        return {"wall_s": self.wall - before[0], "cpu_s": self.cpu - before[1]}


def main() -> None:
    """Measure a day on each grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--scenarios", type=int, default=16)
    parser.add_argument("--reference-steps", type=int, default=48)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for data in options.data:
        rows.append(day(Task(data, windows=1), options.scenarios, options.reference_steps))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        result = {"scenarios": options.scenarios, "cores": os.cpu_count(), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def day(task: Task, scenarios: int, reference_steps: int) -> dict[str, Any]:
    """The seconds of each part of a day, and those of the reference."""
    plain = FactorForge()
    plain.fit(task.training)
    model, context = plain.ranked_form(scenarios), task.training.validation.context(0)
    solver = AcSolver(task)
    warm = predict_states(model, context)[0][:1].copy()
    solver.solve(warm)  # compiles the kernels
    clock = Clock()
    clock.read()
    values, _ = predict_states(model, context)
    forecast = clock.read()
    solver = AcSolver(task)
    setup = clock.read()
    solved = solver.solve(values)
    solution = clock.read()
    states = values.reshape(-1, task.layout.n_channels)
    chosen = np.linspace(0, len(states) - 1, reference_steps).astype(int)
    reference = solve_flat(task, states[chosen])
    parts = {"forecast": forecast, "setup": setup, "solution": solution}
    return {
        **{"grid": task.layout.grid, "steps": len(states)},
        **parts,
        "total": {name: sum(part[name] for part in parts.values()) for name in forecast},
        "provenance": np.bincount(solved.provenance, minlength=4).tolist(),
        "reference": {**reference, "steps": len(chosen)},
        "ratio": reference["cpu_s"] / len(chosen) * len(states) / solution["cpu_s"],
    }


def solve_flat(task: Task, states: np.ndarray) -> dict[str, Any]:
    """Solve these steps by full Newton from a flat start, and compare the voltages."""
    grid, manifest = task.store.grid, task.store.manifest
    setpoint_pu = setpoints_pu(Recipe(**manifest.recipe), grid)
    scaled = states * task.layout.scale.astype(np.float64)
    flat = np.where(grid.bus_type == PQ, 1.0, setpoint_pu).astype(np.complex128)
    network = init_from_matpower(bus_level_case(grid, setpoint_pu))
    clock = Clock()
    clock.read()
    sweep = InjectionSweepCPP(network)
    sweep.modify_load_p(np.ascontiguousarray(scaled[:, P::KINDS]))
    sweep.modify_load_q(np.ascontiguousarray(scaled[:, Q::KINDS]))
    sweep.reuse_base_case = False
    sweep.compute(flat, MAX_ITERATIONS, TOLERANCE_MVA)
    seconds = clock.read()
    voltage, converged = np.array(sweep.get_voltages()), np.array(sweep.converged_mask(), bool)
    ours = scaled[:, V::KINDS] * np.exp(1j * scaled[:, THETA::KINDS])
    difference = abs(voltage - ours)[converged].max() if converged.any() else None
    return {
        **seconds,
        "converged": int(converged.sum()),
        "iterations": float(np.array(sweep.get_row_nb_iter())[converged].mean()),
        "largest_difference_pu": None if difference is None else float(difference),
    }


if __name__ == "__main__":
    main()
