"""What coupling changes: marginal forecasts, coupled ones and draws, as forecast and solved.

    python -m benchmarks.coupling data/activsg500

With `--out` it writes the numbers to a file. All days are validation days.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.both_readings import both_readings
from powerphase import Task, couple
from powerphase.evaluation import AcSolver
from powerphase.models import Climatology, FactorForge
from powerphase.models.framework import describe

SCORES = ("crps", "energy", "distortion", "loading_crps", "overload_brier", "variogram_theta")
SCENARIOS = 16


def main() -> None:
    """Compare marginal, coupled and drawn scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    task = Task(options.data)
    with TemporaryDirectory() as folder:
        rows = [row(name, model, task) for name, model in models(task, Path(folder))]
    if options.out:
        facts = {"grid": task.layout.grid, "edition": task.store.manifest.edition}
        days = len(task.training.validation)
        result = {**facts, "scenarios": SCENARIOS, "days": days, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def models(task: Task, folder: Path) -> Iterator[tuple[str, Any]]:
    """The forecasters, in the order of the table; FactorForge is fitted once."""
    FactorForge(run=folder / "factorforge").fit(task.training)
    fan = FactorForge.load(folder / "factorforge")
    yield "climatology", Climatology()
    yield "climatology+ranked", couple(Climatology(), "ranked", template=fan)
    plain = FactorForge.load(folder / "factorforge")
    plain.config = replace(fan.config, coupling="draws", scenarios=SCENARIOS)
    yield "climatology, ranked by plain draws", couple(Climatology(), "ranked", template=plain)
    yield "climatology+schaake", couple(Climatology(), "schaake")
    yield "factorforge", fan
    yield "factorforge+schaake", couple(fan, "schaake")
    yield "factorforge+ranked", couple(fan, "ranked")
    yield "factorforge+draws", plain


def row(name: str, model: Any, task: Task) -> dict[str, Any]:
    """The scores of one forecaster, which are also printed."""
    model.fit(task.training)
    readings = both_readings(model, task, AcSolver(task), SCORES)
    result = {"forecaster": name, "joint": describe(model).joint, **readings.scores}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
