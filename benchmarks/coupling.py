"""What coupling changes: marginal forecasts, coupled ones and draws, as forecast and solved.

    python -m benchmarks.coupling data/activsg500

With `--out` it writes the numbers to a file. All days are validation days.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.both_readings import both_readings, measure_models
from powerphase import Task, couple
from powerphase.evaluation import AcSolver
from powerphase.models import Climatology, FactorForge
from powerphase.models.framework import describe

SCORES = ("crps", "energy", "distortion", "loading_crps", "overload_brier", "variogram_theta")
SCENARIOS = 16


def main() -> None:
    """Compare marginal, coupled and drawn scenarios."""
    measure_models(__doc__, models, row, facts)


def facts(task: Task) -> dict[str, int]:
    """What the file says besides the grid."""
    return {"scenarios": SCENARIOS, "days": len(task.training.validation)}


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
