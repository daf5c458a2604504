"""What a better forecast of the wind is worth: FactorForge's scores by the error of that forecast.

    python -m benchmarks.value_of_forecast data/activsg500 data/polish2383 --out report.json
    python -m benchmarks.value_of_forecast --plot report.json docs/figures/value_of_forecast.svg

The first command measures, the second draws. Load and sun are forecast with their usual errors, the
wind with errors from none at all to so large ones that they say nothing. The factors of the grid
are the same throughout; only their regressions are fitted again. Days are spread over the
test split, and the scores of lines and of whole states are those of solved scenarios.
"""

import argparse
import json
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.both_readings import both_readings
from docs.figures.scores import BLUE, GREY, STYLE, write_svg
from powerphase import Task
from powerphase.evaluation import AcSolver
from powerphase.models import FactorForge, FactorForgeConfig
from powerphase.models.factorforge import fit_factor_forecaster

ERRORS = (0.0, 0.5, 1.0, 100.0)
"""Of the wind forecast, in usual ones; the last says nothing of the wind."""

WINDOWS = 30
"""Test days, evenly spread. Of ten, a single day around a holiday would decide the mean."""

SCORES = (
    *("crps", "energy", "brier", "loading_crps", "overload_brier"),
    *("any_violation_brier", "violation_count_crps"),
)


LINES = (
    ("crps", "forecast", "CRPS", "o"),
    ("overload_brier", "solved", "overload Brier", "s"),
    ("violation_count_crps", "solved", "violation-count CRPS", "^"),
)
"""What the figure shows: score, whether before or after solving, title and marker."""


def main() -> None:
    """Measure each data set, or draw a report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("REPORT", "SVG"))
    options = parser.parse_args()
    if options.plot:
        draw(json.loads(options.plot[0].read_text()), options.plot[1])
    grids = {}
    for data in options.data:
        task = Task(data, windows=WINDOWS)
        facts = {"edition": task.store.manifest.edition, "windows": len(task.test)}
        grids[task.layout.grid] = {**facts, "rows": list(compare(task))}
    if options.out:
        options.out.write_text(json.dumps({"grids": grids}, indent=1) + "\n")


def compare(task: Task) -> Iterator[dict[str, Any]]:
    """A row without forecasts, then one for each error of the wind; rows are also printed."""
    solver = AcSolver(task)
    model = FactorForge(FactorForgeConfig(coupling="ranked"))
    model.fit(task.training)
    for error in (None, *ERRORS):
        known = None if error is None else f"made:{error:g}"
        informed = Task(task.store, windows=WINDOWS, known=known)
        fitted = refitted(model, informed)
        scores = both_readings(fitted, informed, solver, SCORES, informed.test).scores
        row = {"error": error, "wind_rmse_mw": wind_rmse_mw(informed), **scores}
        print(json.dumps({"grid": task.layout.grid, **row}), flush=True)
        yield row


def refitted(model: FactorForge, task: Task) -> FactorForge:
    """The model with the regressions of a task that has the same states."""
    assert model.fitted is not None
    assert model.series is not None
    train, windows = task.training, task.training.validation
    forecaster = fit_factor_forecaster(
        model.series,
        train.time,
        windows.context_steps,
        windows.horizon,
        model.config,
        train.origin_s,
        train.layout.calendar,
        train.known,
    )
    other = copy(model)
    other.fitted = replace(model.fitted, forecaster=forecaster)
    return other


def wind_rmse_mw(task: Task) -> float | None:
    """The root mean square error of the wind forecasts of the test windows [MW]."""
    errors = []
    for window, origin in enumerate(task.test.origins):
        known = task.test.context(window).known
        if known is None:
            return None
        truth = task.store.signals_mw[origin : origin + task.protocol.horizon, 2]
        errors.append(known.future[0, :, known.column("wind")].numpy() - truth)
    return float(np.sqrt(np.square(errors).mean()))


def draw(report: dict[str, Any], out: Path) -> None:
    """Draw the scores of the grids on which wind is used, 640 x 300 pixels in a browser."""
    with style.context(["default", STYLE]):
        figure = Figure((640 / 96, 300 / 96), layout="constrained")
        grids = report["grids"]
        for axes, (name, grid) in zip(
            np.atleast_1d(figure.subplots(1, len(grids), sharey=True)), grids.items(), strict=True
        ):
            draw_grid(axes, grid["rows"])
            axes.set_title(name)
        axes.legend(frameon=False)
        figure.supxlabel("root mean square error of the wind forecast [GW]", fontsize=9)
        figure.supylabel("score, without forecasts = 1", fontsize=9)
        write_svg(figure, out)


def draw_grid(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Each score by the error of the wind, as a ratio to that without any forecast."""
    without, *informed = rows
    error = [row["wind_rmse_mw"] / 1e3 for row in informed]
    axes.axhline(1, color=GREY, linewidth=1, linestyle="--")
    for (score, form, title, marker), shade in zip(LINES, (BLUE, "black", GREY), strict=True):
        ratio = [row[form][score] / without[form][score] for row in informed]
        axes.plot(error, ratio, color=shade, marker=marker, markersize=4, label=title)
    axes.set_xlim(left=0)
    axes.set_ylim(0.6, 1.05)


if __name__ == "__main__":
    main()
