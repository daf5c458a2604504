"""Scores of days by scenarios as forecast, and after their power flow was solved."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from powerphase import Task
from powerphase.evaluation import AcSolver, predict_states
from powerphase.metrics import Scorer
from powerphase.scenarios import Scenarios, Windows


@dataclass(frozen=True)
class Readings:
    """The scores of one model in both forms, and what a day took."""

    forecast: dict[str, float]
    solved: dict[str, float]
    predict_s: float
    solve_s: float
    n_rescued: int
    """Steps that were backed off or not solved."""

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Both forms, as a file has them."""
        return {"forecast": self.forecast, "solved": self.solved}


def both_readings(
    model: Any,
    task: Task,
    solver: AcSolver,
    scores: Sequence[str],
    windows: Windows | None = None,
) -> Readings:
    """The scores of a fitted model on these windows, by default the validation days."""
    windows = windows or task.training.validation
    forecast, solved = (Scorer(task.layout, windows.horizon, len(windows)) for _ in range(2))
    predict_s = solve_s = 0.0
    n_rescued = 0
    for window in range(len(windows)):
        start = perf_counter()
        values, weights = predict_states(model, windows.context(window), window)
        predict_s += perf_counter() - start
        forecast.add(window, _scenarios(values, weights), windows.target(window))
        start = perf_counter()
        n_rescued += int((solver.solve(values).provenance > 1).sum())  # in place
        solve_s += perf_counter() - start
        solved.add(window, _scenarios(values, weights), windows.target(window))
    seconds = (predict_s / len(windows), solve_s / len(windows))
    return Readings(_numbers(forecast, scores), _numbers(solved, scores), *seconds, n_rescued)


def measure_models(
    description: str,
    models: Callable[[Task, Path], Iterable[tuple[str, Any]]],
    row: Callable[[str, Any, Task], dict[str, Any]],
    facts: Callable[[Task], Mapping[str, Any]] | None = None,
) -> None:
    """Measure all models on the data set that the command line names; write their rows to --out.

    Args:
        description: the first line explains the command.
        models: from the task and a folder for what is fitted to names and models.
        row: from name, model and task to what was measured.
        facts: what the file says of the task besides the grid and its edition.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    task = Task(options.data)
    with TemporaryDirectory() as folder:
        rows = [row(name, model, task) for name, model in models(task, Path(folder))]
    if options.out:
        data = {"grid": task.layout.grid, "edition": task.store.manifest.edition}
        result = {**data, **(facts(task) if facts else {}), "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _scenarios(values: np.ndarray, weights: np.ndarray) -> Scenarios:
    """One window's scenarios, without a copy."""
    return Scenarios(torch.from_numpy(values)[None], torch.from_numpy(weights)[None])


def _numbers(scorer: Scorer, scores: Sequence[str]) -> dict[str, float]:
    card = scorer.result()
    return {score: card[score] for score in scores}
