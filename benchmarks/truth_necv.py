"""How far the true voltages leave the band, by set-points and by form of the network.

    python benchmarks/truth_necv.py --out benchmarks/measured/truth_necv.json

The paper leaves open at which voltages generators are held. The ten test days are solved with
synthetic signals, at 1.02 p.u. and at the set-points of the case file, for the network of the case
file and for what pandapower's importer makes of it.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from pandapower.converter.pypower.from_ppc import from_ppc
from pandapower.converter.pypower.to_ppc import to_ppc

from powerphase.axes import KINDS, STEPS_PER_DAY, V
from powerphase.dataset import RecipeOptions, StepSolver, make_recipe
from powerphase.grid import RATE_A, RATE_C, Grid, load_grid
from powerphase.records import NORMAL_BAND_PU
from powerphase.synthesis import Signals, load_signals
from powerphase.task import Protocol

GRIDS = ("pegase1354", "polish2383", "pegase2869", "polish3120")
"""The grids for which the paper prints an NECV above 0."""
SETPOINTS = (1.02, "case")


def main() -> None:
    """Measure every grid; print the numbers and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", default=GRIDS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    signals, rows = load_signals("synthetic"), []
    for name in options.grids:
        grid = load_grid(name)
        for network, form in {"case file": grid, "pandapower": by_pandapower(grid)}.items():
            for setpoint in SETPOINTS:
                facts = {"grid": name, "network": network, "setpoint": setpoint}
                rows.append({**facts, **measure(form, setpoint, signals)})
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def by_pandapower(grid: Grid) -> Grid:
    """The grid after pandapower's importer, which alters some transformers."""
    more = {"gen": np.zeros((len(grid.gen), 11)), "branch": np.zeros((len(grid.branch), 2))}
    wide = {name: np.hstack([getattr(grid, name), columns]) for name, columns in more.items()}
    with warnings.catch_warnings(action="ignore"):
        case = {"baseMVA": grid.base_mva, "bus": grid.bus.copy(), "version": "2", **wide}
        case = to_ppc(from_ppc(case, validate_conversion=False), init="flat")
    bus, gen, branch = case["bus"][:, :13], case["gen"][:, :10], case["branch"][:, :11].real
    for numbers in (bus[:, 0], gen[:, 0], branch[:, :2]):
        numbers += 1  # pandapower counts buses from 0
    branch[:, RATE_A : RATE_C + 1] = 0  # pandapower writes a huge number for a missing rating
    return Grid(f"{grid.name}-pandapower", float(case["baseMVA"]), bus, gen, branch)


def measure(grid: Grid, setpoint: Any, signals: Signals) -> dict[str, Any]:
    """The mean distance from the band [p.u.], and the share of voltages outside."""
    solver = StepSolver(grid, signals, make_recipe(grid, signals, RecipeOptions(setpoint=setpoint)))
    protocol = Protocol()
    days = [
        solver.solve(slice(first, first + STEPS_PER_DAY))
        for first in protocol.test_origins(protocol.splits(signals.time)).tolist()
    ]
    voltage = np.concatenate([day.state[:, V::KINDS] for day in days]).astype(np.float64)
    low, high = NORMAL_BAND_PU
    beyond = np.maximum(low - voltage, 0) + np.maximum(voltage - high, 0)
    return {
        "necv": float(beyond.mean()),
        "outside": float((beyond > 0).mean()),
        "rescued": int(sum((day.provenance > 0).sum() for day in days)),
    }


if __name__ == "__main__":
    main()
