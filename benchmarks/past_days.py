"""Noise that is drawn or that happened: joint scenarios as forecast, and after solving.

    python -m benchmarks.past_days data/activsg500

With `--out` it writes the numbers to a file. All days are validation days.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

from benchmarks.both_readings import both_readings, measure_models
from powerphase import Task, couple
from powerphase.evaluation import AcSolver
from powerphase.models import Climatology, FactorForge

SCORES = (
    *("crps", "energy", "distortion", "coverage_80", "loading_crps", "overload_brier"),
    *("variogram_theta", "variogram_v", "balance_rms_mva"),
)
FEW, MANY = 16, 100


def main() -> None:
    """Compare the forms of FactorForge's scenarios, and coupling by them."""
    measure_models(__doc__, models, row, lambda task: {"days": len(task.training.validation)})


def models(task: Task, folder: Path) -> Iterator[tuple[str, Any]]:
    """The forms, in the order of the table; FactorForge is fitted once."""
    FactorForge(run=folder / "run").fit(task.training)

    def form(coupling: str, count: int) -> FactorForge:
        model = FactorForge.load(folder / "run")
        model.config = replace(model.config, coupling=coupling, scenarios=count)
        model.fit(task.training)
        return model

    for coupling, count in (("fan", FEW), ("draws", FEW), ("ranked", FEW), ("days", FEW)):
        yield f"{coupling}, {count}", form(coupling, count)
    for coupling in ("draws", "ranked", "days"):
        yield f"{coupling}, {MANY}", form(coupling, MANY)
    by_days = couple(form("fan", MANY), "ranked", template=form("days", MANY))
    yield f"fan in the rank order of days, {MANY}", by_days
    for template in ("ranked", "days"):
        coupled = couple(Climatology(), "ranked", template=form(template, FEW))
        yield f"climatology in the rank order of {template}, {FEW}", coupled


def row(name: str, model: Any, task: Task) -> dict[str, Any]:
    """The scores of one form, which are also printed."""
    model.fit(task.training)
    readings = both_readings(model, task, AcSolver(task), SCORES)
    scores = {
        reading: {score: None if isnan(value) else value for score, value in values.items()}
        for reading, values in readings.scores.items()  # a grid without ratings has no loadings
    }
    result = {"form": name, **scores, "predict_s": readings.predict_s}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
