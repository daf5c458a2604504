"""How often voltages leave the band on small grids, by set-point: which grid suits a first look.

    python benchmarks/first_look.py --out benchmarks/measured/first_look.json

Every eighth day of 2015, which belongs to the training split, is solved with synthetic signals. A
violation comes and goes if the bus is outside the band for a part of the day only.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from powerphase.axes import KINDS, STEPS_PER_DAY, V
from powerphase.dataset import RecipeOptions, StepSolver, make_recipe
from powerphase.grid import CATALOG, load_grid
from powerphase.records import NORMAL_BAND_PU
from powerphase.synthesis import Signals, load_signals

SMALL = ("ieee14", "ieee24", "ieee30", "newengland39", "ieee57", "nordic60", "pegase89", "ieee118")
MEDIUM = ("activsg200", "ieee300", "activsg500")
SETPOINTS = ("case", 1.0, 1.02, 1.04)
DAYS = range(0, 365, 8)


def main() -> None:
    """Measure every grid with every set-point; print a table and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", default=[*SMALL, *MEDIUM])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    signals, rows = load_signals("synthetic"), []
    print("| grid | set-point | outside | come and go | buses that do | out all year | V |")
    print("|---|---|--:|--:|--:|--:|---|")
    for grid in options.grids:
        for setpoint in SETPOINTS:
            row = measure(grid, setpoint, signals)
            rows.append(row)
            print(
                f"| {CATALOG[grid].title} | {setpoint} | {row['outside']:.2%} "
                f"| {row['come_and_go']:.2%} | {row['buses_come_and_go']} "
                f"| {row['buses_always']} | {row['lowest_pu']:.3f} to {row['highest_pu']:.3f} |",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps({"days": len(DAYS), "rows": rows}, indent=1) + "\n")


def measure(name: str, setpoint: Any, signals: Signals) -> dict[str, Any]:
    """The shares of one grid with one set-point."""
    grid = load_grid(name)
    solver = StepSolver(grid, signals, make_recipe(grid, signals, RecipeOptions(setpoint=setpoint)))
    days = [solver.solve(slice(STEPS_PER_DAY * d, STEPS_PER_DAY * (d + 1))) for d in DAYS]
    voltage = np.stack([day.state[:, V::KINDS] for day in days])  # (days, steps, buses)
    low, high = NORMAL_BAND_PU
    outside = (voltage < low) | (voltage > high)
    passing: np.ndarray = np.any(outside, axis=1) & ~np.all(outside, axis=1)
    return {
        "grid": name,
        "setpoint": setpoint,
        "n_buses": grid.n_buses,
        "outside": float(outside.mean()),
        "come_and_go": float((outside & passing[:, None]).mean()),
        "days_that_come_and_go": float(passing.mean()),
        "buses_come_and_go": int(passing.any(0).sum()),
        "buses_always": int(outside.all((0, 1)).sum()),
        "rescued": int(sum((day.provenance > 0).sum() for day in days)),
        "lowest_pu": float(voltage.min()),
        "highest_pu": float(voltage.max()),
    }


if __name__ == "__main__":
    main()
