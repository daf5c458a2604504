"""What scenarios are worth to a dispatch: the bills of examples/two_stage_dispatch.py.

    make readers
    python benchmarks/dispatch.py build/dispatch --out benchmarks/measured/dispatch.json

The first argument is a folder for data set, forecasts and networks; what it holds already is used
as it is. The days are the ten test windows of a record that ends with 2015.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from powerphase import Task, couple, export, forecast, generate, load_forecast, open, physical
from powerphase.models import Climatology, FactorForge

ROOT = Path(__file__).parents[1]
READERS = ROOT / ".venv-readers" / "bin" / "python"
EXAMPLE = ROOT / "examples" / "two_stage_dispatch.py"
GRID, END = "ieee118", "2015-12-31"
MODELS = {"climatology": Climatology, "factorforge": FactorForge}


def main() -> None:
    """Make what is missing, run the example and write all bills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = make_networks(options.folder)
    bills = options.folder / "bills.json"
    if not bills.exists():
        names = ("actual", *MODELS)
        folders = [str(options.folder / "networks" / name) for name in names]
        subprocess.run([str(READERS), str(EXAMPLE), *folders, "--out", str(bills)], check=True)
    result = {**facts, "bills": json.loads(bills.read_text(encoding="utf-8"))}
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def make_networks(folder: Path) -> dict[str, Any]:
    """The networks of what happened and of each model; returns what they are of."""
    data = folder / "data"
    store = open(data) if data.exists() else generate(GRID, data, end=END)
    task = Task(store)
    for name, model in MODELS.items():
        scenarios = folder / "forecasts" / name
        if not scenarios.exists():
            joint = forecast(couple(model(), "ranked"), task)
            physical(joint, task, out=scenarios)
        for network, actual in ((name, False), ("actual", True)):
            out = folder / "networks" / network
            if not out.exists():
                export(scenarios, store, to="pypsa", out=out, actual=actual)
    first = next(iter(load_forecast(scenarios).pieces(range(1, len(task.test)))))
    manifest = store.manifest
    return {
        "grid": manifest.grid,
        "edition": manifest.edition,
        "end": END,
        "scenarios": first[2].values.shape[1],
    }


if __name__ == "__main__":
    main()
