"""What each choice in FactorForge does, on days of the training record that were left out.

    python benchmarks/factorforge.py outlook data/activsg500 data/polish2383
    python benchmarks/factorforge.py scenarios data/activsg500 --every 11
    python benchmarks/factorforge.py christmas data/activsg500

`outlook` changes one choice at a time in how factors are forecast. It prints the root mean square
error of the factors on windows that were left out, each factor weighed by the variance that follows
it, as a share of these factors' standard deviation. `scenarios` scores, with the benchmark's own
scores, what different scenarios make of the same forecasts of left-out windows. `christmas` leaves
out single days from 20 December 2015 to 7 January 2016 and forecasts the first factor, with what is
special about these weeks counted on days of work alone, as it is, and on every day. No test window
is read, and the loadings alone were fitted on what is scored.
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
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import Factors, find_factors
from powerphase.models.factorforge.forge import Forge, time_of_day
from powerphase.models.factorforge.outlook import Lessons, Outlook, learn_outlook
from powerphase.scenarios import Scenarios
from powerphase.task.windows import Task

DEFAULT = FactorForgeConfig()

CHOICES: dict[str, dict[str, Any]] = {
    "the default": {},
    "Christmas special on days off too": {"festive_weekends": True},
    "calendar hardly held back": {"calendar_strength": 0.001},
    "calendar held back strongly": {"calendar_strength": 1.0},
    "yesterday alone": {"lag_days": (1,)},
    "the day before it too": {"lag_days": (1, 2, 7)},
    "all seven days": {"lag_days": (1, 2, 3, 4, 5, 6, 7)},
    "last hour alone": {"recent_steps": (4,)},
    "last steps not favoured": {"recent_favour": 1.0},
    "one strength, 0.05": {"strengths": (0.05,)},
    "one strength, 1.5": {"strengths": (1.5,)},
}

CHRISTMAS = np.datetime64("2015-12-20"), np.datetime64("2016-01-07")

SHOWN = (
    *("crps", "distortion", "brier", "twcrps", "safety_mbrier", "cvar_0.1", "energy"),
    *("coverage_80", "mse"),
)


def main() -> None:
    """Do what is asked."""
    options = arguments()
    for data in options.data:
        task = Task(data)
        factors, series = find_factors(task.training, DEFAULT, seed=42)
        print(f"\n{task.layout.grid}: {len(factors)} factors", flush=True)
        if options.mode == "outlook":
            outlooks(task, factors, series)
        elif options.mode == "scenarios":
            scenarios(task, factors, series, options.every)
        else:
            christmas(task, series)


def outlooks(task: Task, factors: Factors, series: Float64[np.ndarray, "S K"]) -> None:
    """The error of each choice, and what it is against the default's."""
    reference = None
    for name, changes in CHOICES.items():
        error = weighed_error(learned(task, series, replace(DEFAULT, **changes)), factors)
        reference = reference or error
        print(f"| {name} | {error:.4f} | {error / reference - 1:+.1%} |", flush=True)


def learned(task: Task, series: Float64[np.ndarray, "S K"], config: FactorForgeConfig) -> Outlook:
    """The outlook on a task's windows."""
    windows = task.training.validation
    size = (windows.context_steps, windows.horizon)
    return learn_outlook(series, task.training.time, *size, config)


def weighed_error(outlook: Outlook, factors: Factors) -> float:
    """The factors' error, weighed by the variance that follows each."""
    share = factors.share.numpy()
    return float(np.sqrt((share * (outlook.errors**2).mean((0, 1))).sum() / share.sum()))


def scenarios(task: Task, factors: Factors, series: Float64[np.ndarray, "S K"], every: int) -> None:
    """The scores of different scenarios for the same forecasts."""
    training, windows = task.training, task.training.validation
    outlook = learned(task, series, DEFAULT)
    forge = Forge(factors, outlook, time_of_day(training.time[windows.context_steps]))
    chosen = np.arange(0, len(outlook.errors), every)
    first = windows.context_steps + chosen * STEPS_PER_DAY
    print(f"{len(chosen)} windows, {training.time[first[0]]} to {training.time[first[-1]]}")
    print(f"| scenarios | {' | '.join(SHOWN)} |")
    makers: dict[str, Callable[[Tensor, np.ndarray], Scenarios]] = {
        "fan of 16": lambda future, start: forge.fan(future, 16),
        "fan of 100": lambda future, start: forge.fan(future, 100),
        "fan, all channels up together": lambda future, start: unsigned(forge, future, 16),
        "16 draws": lambda future, start: forge.draws(future, start, 16, 42),
        "100 draws": lambda future, start: forge.draws(future, start, 100, 42),
        "the middle alone": lambda future, start: forge.fan(future, 1),
    }
    for name, make in makers.items():
        scorer = Scorer(task.layout, windows.horizon, len(chosen))
        for k, (number, origin) in enumerate(zip(chosen, first, strict=True)):
            steps = slice(int(origin), int(origin) + windows.horizon)
            future = torch.from_numpy(series[steps] - outlook.errors[number]).float()[None]
            made = make(future, training.time[origin][None])
            scorer.add(k, made, training.read(steps)[None])
        card = scorer.result()
        print(f"| {name} | {' | '.join(f'{card[score]:.4g}' for score in SHOWN)} |", flush=True)


def unsigned(forge: Forge, future: Tensor, count: int) -> Scenarios:
    """The fan in which no channel falls as others rise."""
    made, signs = forge.fan(future, count), forge.sign
    turned = torch.where(signs < 0, made.values.flip(1), made.values)
    return Scenarios.equal(turned)


def christmas(task: Task, series: Float64[np.ndarray, "S K"]) -> None:
    """The first factor's error on the days around Christmas, each of which is left out alone."""
    windows, time = task.training.validation, task.training.time
    size = (windows.context_steps, windows.horizon)
    for weekends in (False, True):
        config = replace(DEFAULT, festive_weekends=weekends)
        lessons = Lessons(series, time, *size, config)
        days = time[lessons.origins].astype("datetime64[D]")
        chosen = np.flatnonzero((days >= CHRISTMAS[0]) & (days <= CHRISTMAS[1]))
        strength = np.array(config.strengths[1:2])
        errors = [lessons.errors(chosen[[k]], 0, strength)[0, 0] for k in range(len(chosen))]
        error = np.sqrt(np.square([error[:, 0] for error in errors]).mean())
        name = "on every day" if weekends else "on days of work"
        print(f"| {name} | {error:.3f} |", flush=True)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("outlook", "scenarios", "christmas"))
    parser.add_argument("data", nargs="+", help="data sets")
    parser.add_argument("--every", type=int, default=11, help="score every so many days")
    return parser.parse_args()


if __name__ == "__main__":
    main()
