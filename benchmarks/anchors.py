"""Trials of the anchors' settings on the validation windows of a training record.

    python benchmarks/anchors.py data/activsg500 data/pegase1354 --out measured/anchors.json
    python benchmarks/anchors.py data/activsg500 --models climatology --half-year --out all.json

Each trial fits a model with some options on the training record and scores its forecasts of the
ten validation windows. FactorForge and the climatology are listed for comparison. The factors of a
grid are found once for all trials of a model; only the first, which has the defaults, states times.
With `--half-year`, the record ends half a year earlier and ten windows are spread over the rest:
they are as far ahead as the test windows are of the whole record. Test windows are never read.
Lines of other models and grids stay in the file.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerphase.cost import Stopwatch, hardware
from powerphase.metrics import Scorer
from powerphase.models.anchors import factor_record, fit_factor_record
from powerphase.models.framework.base import Forecaster
from powerphase.registry import model_class
from powerphase.scenarios import Record, Scenarios, Training, Windows
from powerphase.task.windows import Task

HALF_YEAR_DAYS = 184
"""As long as the paper's test split."""

TRIALS: dict[str, list[dict[str, Any]]] = {
    "climatology": [{}],
    "factorforge": [{}, {"coupling": "ranked", "scenarios": 100}],
    "analogs": [
        {},
        {"analogs": 20},
        {"analogs": 40},
        {"sharpness": 0.0},
        {"sharpness": 4.0},
        {"lookback_hours": 6},
        {"lookback_hours": 168},
        {"past_weight": 0.3},
        {"past_weight": 3.0},
        {"analogs": 160},
    ],
    "dynamic-factors": [
        {},
        {"modes": 4},
        {"modes": 8},
        {"modes": 32},
        {"strength": 0.01},
        {"strength": 0.3},
    ],
    "boosting": [
        {},
        {"trees": 50},
        {"trees": 200},
        {"leaves": 4},
        {"leaves": 16},
        {"least_samples": 100},
    ],
    "conformal-climatology": [
        {},
        {"calibration_share": 0.1},
        {"calibration_share": 0.5},
        {"calibration": "last", "calibration_share": 0.1},
        {"calibration": "last"},
    ],
}

SHOWN = ("crps", "energy", "distortion", "coverage_80", "loading_crps", "overload_brier")


def main() -> None:
    """Run the trials and write each line as soon as it is there."""
    options = arguments()
    for data in options.data:
        task = Task(data, windows=1)
        for model in options.models or TRIALS:
            trials = [{}] if options.defaults else TRIALS[model]
            share_factors()
            train = half_year(task.training) if options.half_year else task.training
            windows = "half a year" if options.half_year else "validation"
            for changes in trials:
                line = {"windows": windows, **run_trial(train, model, changes)}
                save(options.out, line)
                shown = " ".join(f"{name} {line['scores'][name]:.6f}" for name in SHOWN)
                print(f"{line['grid']} {model} {line['options']}: {shown}; ", end="")
                print(f"{line['fit_s']} s and {line['predict_s']} s", flush=True)


def run_trial(train: Training, model: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Fit the model with these options and score its forecasts of the validation windows."""
    forecaster = make(model, changes)
    fit, predict = Stopwatch(), Stopwatch()
    with fit.running():
        forecaster.fit(train)
    windows = train.validation
    scorer = Scorer(train.layout, windows.horizon, len(windows))
    for number in range(len(windows)):
        target = windows.target(number)
        for channels, scenarios in blocks(forecaster, windows.context(number), predict):
            scorer.add(number, scenarios, target[..., channels], channels)
    card = scorer.result()
    return {
        "grid": train.layout.grid,
        "model": model,
        "options": changes,
        "scores": {name: float(f"{card[name]:.4g}") for name in SHOWN},
        "fit_s": None if changes else round(fit.seconds, 1),
        "predict_s": round(predict.seconds / len(windows), 2),
        "hardware": hardware(torch.device("cpu")),
    }


def half_year(train: Training) -> Training:
    """A training on the record up to half a year before its end, and windows in that half year."""
    record, windows = train.record, train.validation
    stop = len(record) - HALF_YEAR_DAYS * train.steps_per_day
    days = np.linspace(0, HALF_YEAR_DAYS - 1, len(windows)).round().astype(np.int64)
    size = (windows.context_steps, windows.horizon)

    def read(steps: slice, channels: slice) -> Any:
        return record.read(steps, channels).numpy() * record.layout.scale[channels]

    before = Record(record.layout, record.time[:stop], read)
    return Training(before, Windows(record, stop + days * train.steps_per_day, *size), train.data)


def share_factors() -> None:
    """Let all fits of an anchor use the factors that its first one finds."""
    factor_record.fit_factor_record = cache(fit_factor_record)


def make(model: str, changes: dict[str, Any]) -> Forecaster:
    """The model with these options instead of its defaults."""
    kind = model_class(model)
    config = replace(kind().config, **changes)
    forecaster: Forecaster = kind(config)
    return forecaster


def blocks(
    forecaster: Forecaster, context: Any, watch: Stopwatch
) -> Iterator[tuple[slice, Scenarios]]:
    """The forecast of a window in blocks of channels; the watch counts the model's time."""
    with watch.running():
        prediction = forecaster.predict(context)
    if isinstance(prediction, Scenarios):
        yield slice(None), prediction
        return
    while True:
        with watch.running():
            block = next(prediction, None)
        if block is None:
            return
        yield block


def save(out: Path, line: dict[str, Any]) -> None:
    """Put the line in the file, in the place of an older one of the same trial."""
    lines = json.loads(out.read_text()) if out.exists() else []
    identity = ("grid", "model", "options", "windows")
    kept = [old for old in lines if any(old[name] != line[name] for name in identity)]
    text = ",\n ".join(json.dumps(row) for row in [*kept, line])
    out.write_text(f"[\n {text}\n]\n")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="data sets")
    parser.add_argument("--models", nargs="+", choices=tuple(TRIALS), help="the default is all")
    parser.add_argument("--defaults", action="store_true", help="only the default settings")
    parser.add_argument("--half-year", action="store_true", help="windows up to half a year ahead")
    parser.add_argument("--out", type=Path, required=True, help="file of the lines")
    return parser.parse_args()


if __name__ == "__main__":
    main()
