"""From a forecast to a scored row: the one place where scenarios meet what happened."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import zip_longest
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np

from powerphase.axes import VARIABLES
from powerphase.cost import Stopwatch, commit
from powerphase.errors import ForecastError
from powerphase.evaluation.forecasting import Forecast, Progress, load_forecast, task_facts
from powerphase.evaluation.sidecar import Display, sidecar_of
from powerphase.metrics.streaming import Scorecard, Scorer
from powerphase.models.framework.device import choose_device
from powerphase.records.result import Result, write_result
from powerphase.records.scores import SCORES, score_format
from powerphase.task.windows import Task


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A scored forecast: the row for the leaderboard, and the arrays that go beside it."""

    row: Result
    sidecar: Mapping[str, np.ndarray]
    balance: Mapping[str, Any] | None = None
    """Of scenarios that were made physical, what `bench.physical.Balance` tells of them."""

    @property
    def scores(self) -> dict[str, float | None]:
        """All scores by name, as means over windows; None where one does not exist."""
        return self.row.scores

    def __str__(self) -> str:
        lines = [f"{self.row.name} on {self.row.grid} ({self.row.edition}), {self.row.task}"]
        for name, value in self.scores.items():
            shown = "–" if value is None else f"{value:{score_format(value)}}"
            lines.append(f"  {SCORES[name].title:<16} {shown:>10}  {SCORES[name].question}")
        return "\n".join(lines)

    def save(self, results: str | Path) -> Path:
        """Write row and sidecar to their place in a tree of results."""
        return write_result(self.row, self.sidecar, results)


def score(
    forecast: Forecast | str | Path,
    task: Task,
    *,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Evaluation:
    """Score a forecast, or the forecast in a directory, against what happened.

    Args:
        forecast: of the same task on the same data set; anything else is refused.
        task: holds what happened.
        device: cpu, cuda, or auto for a GPU where there is one.
        on_progress: called with the number of windows scored, and of all.
    """
    given = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    check_same(given, task)
    place = choose_device(device)
    scorer = Scorer(task.layout, task.protocol.horizon, len(task.test), place)
    display, watch, reading = Display(task), Stopwatch(), None
    for window, channels, scenarios in given.pieces(()):
        if window != reading:
            target, reading = task.test.target(window), window
            if on_progress:
                on_progress(window, len(task.test))
        with watch.running():
            scorer.add(window, scenarios, target[..., channels], channels)
            display.add(window, channels, scenarios)
        del scenarios  # or a window and the next one would be in memory together
    card = scorer.result()
    _check_finite(card)
    if on_progress:
        on_progress(len(task.test), len(task.test))
    cost = {**given.cost, "score_s": watch.seconds}
    balance = None if given.balance is None else dict(given.balance)
    arrays = sidecar_of(card, display) | _balance_arrays(balance or {})
    return Evaluation(_row(given, card, cost), arrays, balance)


def _check_finite(card: Scorecard) -> None:
    """Refuse a forecast that is beyond all measure, as that of a training that went astray."""
    lost = [name for name, one in SCORES.items() if not (one.needs_samples or isfinite(card[name]))]
    if lost:
        raise ForecastError(
            f"some values are so large that {', '.join(lost)} cannot be computed; normalised "
            "values are about as large as 1, so look for what made the model go astray"
        )


def _balance_arrays(balance: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The numbers of a balance as they lie beside a row; NaN where one does not exist."""
    return {f"physical/{name}": np.array(value, dtype=float) for name, value in balance.items()}


def check_same(forecast: Forecast, task: Task) -> None:
    """Refuse to score a forecast by another task, or against other data, than it was made for."""
    for name, wanted in task_facts(task).items():
        found = forecast.facts[name]
        if found == wanted:
            continue
        if name == "windows":
            both = enumerate(zip_longest(found, wanted, fillvalue="nothing"))
            window, (ours, theirs) = next((k, pair) for k, pair in both if pair[0] != pair[1])
            problem = f"forecast for {ours}, the task asks for {theirs}"
            raise ForecastError(problem, window=window)
        raise ForecastError(
            f"the forecast of {forecast.description.model} was made for {name} {found!r}, and is "
            f"to be scored by {wanted!r}; score it with the data set and task that it was made for"
        )


def _row(forecast: Forecast, card: Scorecard, cost: dict[str, Any]) -> Result:
    facts, description = forecast.facts, forecast.description
    names = ("task", "task_version", "grid", "edition", "fingerprint", "windows")
    return Result(
        **{name: facts[name] for name in names},
        model=description.model,
        variant=description.variant,
        config=description.config,
        parameters=description.parameters,
        seed=description.seed,
        scenarios=card.n_scenarios,
        truth={"necv": card["excursion"], "violations": card["violation"]},
        scores={name: _number(card[name]) for name in SCORES},
        by_type={variable: _of_type(card, k) for k, variable in enumerate(VARIABLES)},
        by_window={name: _numbers(card.by_window[name]) for name in SCORES},
        cost=cost,
        version=version("powerphase"),
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
    )


def _of_type(card: Scorecard, kind: int) -> dict[str, float | None]:
    """The scores of one variable; those of voltages are told of voltages alone."""
    shown = [n for n, s in SCORES.items() if VARIABLES[kind] == "V" or not s.voltage_only]
    return {name: _number(card.by_type[name][kind]) for name in shown}


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)


def _numbers(values: np.ndarray) -> list[float] | None:
    return None if np.isnan(values).any() else [float(value) for value in values]
