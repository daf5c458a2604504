"""What each part of FactorForge's ranked scenarios does, before and after the power flow is solved.

    python -m benchmarks.ranked data/activsg500 data/pegase1354 data/polish2383

With `--out` it writes the numbers to a file. All days are validation days.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.both_readings import both_readings
from powerphase import Task
from powerphase.evaluation import AcSolver
from powerphase.models import FactorForge
from powerphase.models.factorforge import FittedFactorForge, fitted, independent_normals

SCORES = (
    *("crps", "energy", "distortion", "loading_crps", "overload_brier"),
    *("any_violation_brier", "variogram_theta", "variogram_v", "balance_rms_mva"),
)


@dataclass(frozen=True)
class Form:
    """One way to make joint scenarios of the same fitted model."""

    coupling: str
    count: int = 16
    stratified: bool = True
    keeps_power: bool = True

    @property
    def name(self) -> str:
        """Its name in the table."""
        left_out = [
            text
            for text, is_left_out in (
                ("draws not stratified", not self.stratified),
                ("total P not kept", not self.keeps_power),
            )
            if is_left_out
        ]
        return ", ".join([f"{self.coupling}, {self.count}", *left_out])


FORMS = (
    Form("fan"),
    Form("draws"),
    Form("ranked", stratified=False, keeps_power=False),
    Form("ranked", stratified=False),
    Form("ranked", keeps_power=False),
    Form("ranked"),
    Form("draws", 100),
    Form("ranked", 100),
)


def main() -> None:
    """Fit FactorForge to each data set and compare the forms of its scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [row for data in options.data for row in compare(Task(data))]
    if options.out:
        options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def compare(task: Task) -> Iterator[dict[str, Any]]:
    """A row for each form; rows are also printed."""
    solver = AcSolver(task)
    with TemporaryDirectory() as run:
        FactorForge(run=run).fit(task.training)
        model = FactorForge.load(run)
    for form in FORMS:
        with ExitStack() as stack:
            for patched in patches(form):
                stack.enter_context(patched)
            row = {"grid": task.layout.grid, "form": form.name, **score(model, form, task, solver)}
        print(json.dumps(row), flush=True)
        yield row


def patches(form: Form) -> Iterator[Any]:
    """What switches the parts off that a form does without."""
    if not form.keeps_power:
        yield patch.object(fitted, "keep_total_power", lambda *arguments: None)
    if not form.stratified:
        yield patch.object(fitted, "stratified_normals", independent_normals)
        yield patch.object(FittedFactorForge, "_stratify", lambda state, errors: errors)


def score(model: FactorForge, form: Form, task: Task, solver: AcSolver) -> dict[str, Any]:
    """The scores of a form as forecast and after solving, and the seconds for a day."""
    made = copy(model)
    made.config = replace(model.config, coupling=form.coupling, scenarios=form.count)
    readings = both_readings(made, task, solver, SCORES)
    return {
        **readings.scores,
        "predict_s": readings.predict_s,
        "solve_s": readings.solve_s,
        "backed_off_or_unsolved": readings.n_rescued,
    }


if __name__ == "__main__":
    main()
