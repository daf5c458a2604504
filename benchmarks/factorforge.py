"""The effect of each option of FactorForge on held-out days of the training record.

    python benchmarks/factorforge.py factors data/activsg500 data/polish2383
    python benchmarks/factorforge.py scenarios data/activsg500 --every 11
    python benchmarks/factorforge.py christmas data/activsg500

`factors` changes one option of the factor forecast at a time. It prints the root mean square error
of the factors on held-out windows, each factor weighted by the variance that it explains, relative
to the standard deviation of these factors. `scenarios` scores different scenarios of the same
forecasts of held-out windows. `christmas` holds out single days from 20 December 2015 to 7 January
2016 and forecasts the first factor, with the features of Christmas on working days only (the
default) and on every day. No test window is read; only the loadings were fitted to the days that
are scored.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from powerphase.axes import STEPS_PER_DAY
from powerphase.metrics import Scorer
from powerphase.models.factorforge import (
    FactorForecaster,
    FactorForgeConfig,
    Factors,
    FittedFactorForge,
    TrainingWindows,
    find_factors,
    fit_factor_forecaster,
)
from powerphase.scenarios import Scenarios
from powerphase.task.windows import Task

DEFAULT = FactorForgeConfig()

CHOICES: dict[str, dict[str, Any]] = {
    "the default": {},
    "Christmas features on days off too": {"festive_weekends": True},
    "weak calendar ridge": {"calendar_strength": 0.001},
    "strong calendar ridge": {"calendar_strength": 1.0},
    "yesterday only": {"lag_days": (1,)},
    "two days back too": {"lag_days": (1, 2, 7)},
    "all seven days": {"lag_days": (1, 2, 3, 4, 5, 6, 7)},
    "last hour only": {"recent_steps": (4,)},
    "last steps penalised like the rest": {"recent_favour": 1.0},
    "one strength, 0.05": {"strengths": (0.05,)},
    "one strength, 1.5": {"strengths": (1.5,)},
}

CHRISTMAS = np.datetime64("2015-12-20"), np.datetime64("2016-01-07")

SHOWN = (
    *("crps", "distortion", "brier", "twcrps", "safety_mbrier", "cvar_0.1", "energy"),
    *("coverage_80", "mse"),
)


def main() -> None:
    """Run the chosen comparison on each data set."""
    options = arguments()
    for data in options.data:
        task = Task(data)
        factors, series = find_factors(task.training, DEFAULT, seed=42)
        print(f"\n{task.layout.grid}: {len(factors)} factors", flush=True)
        if options.mode == "factors":
            compare_options(task, factors, series)
        elif options.mode == "scenarios":
            compare_scenarios(task, factors, series, options.every)
        else:
            compare_christmas(task, series)


def compare_options(task: Task, factors: Factors, series: Float64[np.ndarray, "S K"]) -> None:
    """Print the error of each option, and its change from the default."""
    reference = None
    for name, changes in CHOICES.items():
        error = weighted_error(fit(task, series, replace(DEFAULT, **changes)), factors)
        reference = reference or error
        print(f"| {name} | {error:.4f} | {error / reference - 1:+.1%} |", flush=True)


def fit(
    task: Task, series: Float64[np.ndarray, "S K"], config: FactorForgeConfig
) -> FactorForecaster:
    """The factor forecaster for a task's windows."""
    windows = task.training.validation
    size = (windows.context_steps, windows.horizon)
    return fit_factor_forecaster(series, task.training.time, *size, config)


def weighted_error(forecaster: FactorForecaster, factors: Factors) -> float:
    """The error of the factors, weighted by the variance that each explains."""
    share = factors.share.numpy()
    return float(np.sqrt((share * (forecaster.errors**2).mean((0, 1))).sum() / share.sum()))


def compare_scenarios(
    task: Task, factors: Factors, series: Float64[np.ndarray, "S K"], every: int
) -> None:
    """Print the scores of different scenarios of the same forecasts."""
    training, windows = task.training, task.training.validation
    forecaster = fit(task, series, DEFAULT)
    start_s = training.origin_s
    state = FittedFactorForge(factors, forecaster, start_s)
    chosen = np.arange(0, len(forecaster.errors), every)
    first = windows.context_steps + chosen * STEPS_PER_DAY
    print(f"{len(chosen)} windows, {training.time[first[0]]} to {training.time[first[-1]]}")
    print(f"| scenarios | {' | '.join(SHOWN)} |")
    makers: dict[str, Callable[[Tensor, np.ndarray], Scenarios]] = {
        "fan of 16": lambda future, start: state.fan(future, 16),
        "fan of 100": lambda future, start: state.fan(future, 100),
        "fan, all channels up together": lambda future, start: fan_without_signs(state, future, 16),
        "16 draws": lambda future, start: state.draws(future, start, 16, 42),
        "100 draws": lambda future, start: state.draws(future, start, 100, 42),
        "mean only": lambda future, start: state.fan(future, 1),
    }
    for name, make in makers.items():
        scorer = Scorer(task.layout, windows.horizon, len(chosen))
        for k, (number, origin) in enumerate(zip(chosen, first, strict=True)):
            steps = slice(int(origin), int(origin) + windows.horizon)
            future = torch.from_numpy(series[steps] - forecaster.errors[number]).float()[None]
            scenarios = make(future, training.time[origin][None])
            scorer.add(k, scenarios, training.read(steps)[None])
        card = scorer.result()
        print(f"| {name} | {' | '.join(f'{card[score]:.4g}' for score in SHOWN)} |", flush=True)


def fan_without_signs(state: FittedFactorForge, future: Tensor, count: int) -> Scenarios:
    """The fan in which all channels rise together."""
    values = state.fan(future, count).values
    return Scenarios.equal(torch.where(state.sign < 0, values.flip(1), values))


def compare_christmas(task: Task, series: Float64[np.ndarray, "S K"]) -> None:
    """Print the first factor's error on the days around Christmas, each held out alone."""
    windows, time = task.training.validation, task.training.time
    size = (windows.context_steps, windows.horizon)
    for weekends in (False, True):
        config = replace(DEFAULT, festive_weekends=weekends)
        training = TrainingWindows(series, time, *size, config)
        days = time[training.origins].astype("datetime64[D]")
        chosen = np.flatnonzero((days >= CHRISTMAS[0]) & (days <= CHRISTMAS[1]))
        strength = np.array(config.strengths[1:2])
        errors = [training.errors(chosen[[k]], 0, strength)[0, 0] for k in range(len(chosen))]
        error = np.sqrt(np.square([error[:, 0] for error in errors]).mean())
        name = "on every day" if weekends else "on working days"
        print(f"| {name} | {error:.3f} |", flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("factors", "scenarios", "christmas"))
    parser.add_argument("data", nargs="+", help="data sets")
    parser.add_argument("--every", type=int, default=11, help="score every so many days")
    return parser.parse_args()


if __name__ == "__main__":
    main()
