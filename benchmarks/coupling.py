"""What coupling changes: marginal forecasts, coupled ones and draws, as forecast and solved.

    python benchmarks/coupling.py data/activsg500

With `--out` it writes the numbers to a file. All days are validation days.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from powerphase import Task, couple
from powerphase.evaluation import AcSolver, predict_states
from powerphase.metrics import Scorer
from powerphase.models import Climatology, FactorForge
from powerphase.models.framework import describe
from powerphase.scenarios import Scenarios

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
    windows, solver = task.training.validation, AcSolver(task)
    forecast, solved = (Scorer(task.layout, windows.horizon, len(windows)) for _ in range(2))
    for window in range(len(windows)):
        values, weights = predict_states(model, windows.context(window), window)
        forecast.add(window, scenarios(values, weights), windows.target(window))
        solver.solve(values)  # in place
        solved.add(window, scenarios(values, weights), windows.target(window))
    result = {
        **{"forecaster": name, "joint": describe(model).joint},
        **{"forecast": numbers(forecast), "solved": numbers(solved)},
    }
    print(json.dumps(result), flush=True)
    return result


def scenarios(values: np.ndarray, weights: np.ndarray) -> Scenarios:
    """One window's scenarios, without a copy."""
    return Scenarios(torch.from_numpy(values)[None], torch.from_numpy(weights)[None])


def numbers(scorer: Scorer) -> dict[str, float]:
    """The scores that are compared."""
    card = scorer.result()
    return {score: card[score] for score in SCORES}


if __name__ == "__main__":
    main()
