"""Scores of validation days by scenarios as forecast, and after their power flow was solved."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from powerphase import Task
from powerphase.evaluation import AcSolver, predict_states
from powerphase.metrics import Scorer
from powerphase.scenarios import Scenarios


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


def both_readings(model: Any, task: Task, solver: AcSolver, scores: Sequence[str]) -> Readings:
    """The scores of a fitted model on the validation days."""
    windows = task.training.validation
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


def _scenarios(values: np.ndarray, weights: np.ndarray) -> Scenarios:
    """One window's scenarios, without a copy."""
    return Scenarios(torch.from_numpy(values)[None], torch.from_numpy(weights)[None])


def _numbers(scorer: Scorer, scores: Sequence[str]) -> dict[str, float]:
    card = scorer.result()
    return {score: card[score] for score in scores}
