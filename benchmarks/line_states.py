"""From which states the loading of lines is read: as forecast, or after the power flow was solved.

    python -m benchmarks.line_states data/activsg500

With `--out` it writes the numbers to a file. All days are validation days.
"""

import json
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.both_readings import both_readings, measure_models
from powerphase import Task, calibrate
from powerphase.evaluation import AcSolver
from powerphase.models import ETS, Climatology, FactorForge, LastSevenDays
from powerphase.models.framework import describe

SCORES = ("loading_crps", "overload_brier", "balance_rms_mva")
COUNTS = (16, 100)


def main() -> None:
    """Compare both readings of every model."""
    measure_models(__doc__, models, row)


def models(task: Task, folder: Path) -> Iterator[tuple[str, Any]]:
    """The fitted models, which are not fitted again, and the forms of FactorForge."""
    yield "last-7-days", LastSevenDays()
    yield "climatology", Climatology()
    ETS(run=folder / "ets").fit(task.training)
    yield "ets", ETS.load(folder / "ets")
    FactorForge(run=folder / "factorforge").fit(task.training)
    model = FactorForge.load(folder / "factorforge")
    yield "factorforge", model
    for coupling, count in product(("draws", "ranked"), COUNTS):
        form = copy(model)
        form.config = replace(model.config, coupling=coupling, scenarios=count)
        yield f"factorforge, {count} {coupling}", form


def row(name: str, model: Any, task: Task) -> dict[str, Any]:
    """The scores of one model, which are also printed."""
    model.fit(task.training)
    readings = both_readings(model, task, AcSolver(task), SCORES)
    done = calibrate(model, task, subject="lines", split="validation", joint=False, device="cpu")
    facts = {"form": name, "joint": describe(model).joint, "scenarios": done.n_scenarios}
    day = {"brier": done.brier.score, "said": done.chance.mean(), "happened": done.violated.mean()}
    result = {**facts, **readings.scores, "lines": int(done.counts.sum()), "day": day}
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
