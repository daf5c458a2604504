"""How much each forecast helps FactorForge's factors, and which one limits them.

    python -m benchmarks.known_forecasts data/activsg500 data/polish2383 --out report.json

The error of the factors on held-out days of the training record, each weighted by the variance that
it explains, in standard deviations: without forecasts, with made ones, with perfect ones, with
perfect ones of all signals but one, and with those of other days, which are pure noise.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerphase import Task
from powerphase.axes import STEPS_PER_DAY
from powerphase.models.factorforge import FactorForgeConfig, find_factors, fit_factor_forecaster
from powerphase.scenarios import Known, Training

SEED = 42


def main() -> None:
    """Measure each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    grids = {}
    for data in options.data:
        task = Task(data, known="made")
        grids[task.layout.grid] = dict(errors(task))
    if options.out:
        options.out.write_text(json.dumps({"grids": grids}, indent=1) + "\n")


def errors(task: Task) -> Iterator[tuple[str, float]]:
    """The error with each set of forecasts, which is also printed."""
    train, config = task.training, FactorForgeConfig()
    factors, series = find_factors(train, config, SEED)
    size = (train.validation.context_steps, train.validation.horizon)
    share = factors.share.numpy()
    for name, known in forecasts(train, task.store.signals_mw[: len(series)]):
        fitted = fit_factor_forecaster(
            series, train.time, *size, config, train.origin_s, train.layout.calendar, known
        )
        square = (fitted.errors**2).mean((0, 1))
        error = float(np.sqrt((share * square).sum() / share.sum()))
        print(f"{task.layout.grid} {name}: {error:.4f}", flush=True)
        yield name, error


def forecasts(train: Training, truth: Any) -> Iterator[tuple[str, Known | None]]:
    """What is compared, by name."""
    made = train.known
    assert made is not None
    yield "none", None
    yield "made", made
    true = torch.from_numpy(np.asarray(truth)).to(made.values)
    yield "perfect", replace(made, values=true)
    for column, name in enumerate(made.names):
        values = true.clone()
        values[:, column] = made.values[:, column]
        yield f"perfect but {name}", replace(made, values=values)
    days = torch.randperm(len(true) // STEPS_PER_DAY, generator=torch.Generator().manual_seed(SEED))
    yield "noise", replace(made, values=true.unflatten(0, (-1, STEPS_PER_DAY))[days].flatten(0, 1))


if __name__ == "__main__":
    main()
