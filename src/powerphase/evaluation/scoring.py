"""Scoring: from a forecast to a row. Only this module compares scenarios with the targets."""

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
from powerphase.evaluation.sidecar import ShownForecasts, make_sidecar
from powerphase.metrics.streaming import Scorecard, Scorer
from powerphase.models.framework.device import choose_device
from powerphase.records.result import Result, write_result
from powerphase.records.scores import SCORES, score_format
from powerphase.records.sidecar import NOT_DRAWN_SEEDS
from powerphase.resolution import steps_per_day
from powerphase.task.windows import Task


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A scored forecast: the row for the leaderboard, and the arrays of its sidecar.

    `print` shows all scores; `scores["crps"]` is one of them, and `save` writes row and sidecar.
    """

    row: Result
    sidecar: Mapping[str, np.ndarray]
    balance: Mapping[str, Any] | None = None
    """The fields of `evaluation.physical.Balance`, if the scenarios were made physical."""

    @property
    def scores(self) -> dict[str, float | None]:
        """All scores by name, as means over windows; None if a score is undefined."""
        return self.row.scores

    def __repr__(self) -> str:
        row = self.row
        crps = f"CRPS {row.scores['crps']:.4g}"
        return f"<powerphase.Evaluation {row.name} on {row.grid} {row.edition}, {row.task}, {crps}>"

    def __str__(self) -> str:
        lines = [f"{self.row.name} on {self.row.grid} ({self.row.edition}), {self.row.task}"]
        for name, value in self.scores.items():
            shown = "–" if value is None else f"{value:{score_format(value)}}"
            lines.append(f"  {SCORES[name].title:<16} {shown:>10}  {SCORES[name].question}")
        return "\n".join(lines)

    def save(self, results: str | Path) -> Path:
        """Write row and sidecar into a tree of results; returns the row's path."""
        return write_result(self.row, self.sidecar, results)


def score(
    forecast: Forecast | str | Path,
    task: Task,
    *,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Evaluation:
    """Score a forecast, or the forecast in a directory.

    Args:
        forecast: must be for the same task on the same data set.
        task: has the targets.
        device: cpu, cuda, or auto for a GPU if there is one.
        on_progress: called with the number of windows scored, and the number of all.
    """
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    check_task(source, task)
    is_drawn = source.description.seed not in NOT_DRAWN_SEEDS
    shown = ShownForecasts(task) if is_drawn else None
    scorer = Scorer(
        *(task.layout, task.protocol.horizon, len(task.test), choose_device(device)),
        shown=shown.windows.tolist() if shown else (),
        day_steps=steps_per_day(task.protocol.step_s),
    )
    watch, current = Stopwatch(), None
    for window, channels, scenarios in source.pieces(()):
        if window != current:
            target, current = task.test.target(window), window
            observed = task.test.observed(window)
            if on_progress:
                on_progress(window, len(task.test))
        with watch.running():
            seen = None if observed is None else observed[..., channels]
            scorer.add(window, scenarios, target[..., channels], channels, seen)
            if shown:
                shown.add(window, channels, scenarios)
        del scenarios  # or two windows would be in memory at the same time
    card = scorer.result()
    _check_finite(card)
    if on_progress:
        on_progress(len(task.test), len(task.test))
    cost = {**source.cost, "score_s": watch.seconds}
    balance = None if source.balance is None else dict(source.balance)
    arrays = make_sidecar(card, task, shown, _balance_arrays(balance or {}))
    return Evaluation(_make_row(source, task, card, cost), arrays, balance)


def _check_finite(card: Scorecard) -> None:
    """Raise if a score overflowed, as after a training that diverged."""
    infinite = [
        name
        for name, score in SCORES.items()
        if not isfinite(card[name])
        and not ((score.nullable or score.needs_v) and isnan(card[name]))
    ]
    if infinite:
        raise ForecastError(
            f"some values are so large that {', '.join(infinite)} cannot be computed; normalised "
            "values are of the order of 1, so check whether the training diverged"
        )


def _balance_arrays(balance: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The numbers of a balance as arrays of the sidecar; NaN if undefined."""
    return {f"physical/{name}": np.array(value, dtype=float) for name, value in balance.items()}


def check_task(forecast: Forecast, task: Task) -> None:
    """Raise if the forecast was made for another task or other data."""
    for name, expected in task_facts(task).items():
        actual = forecast.facts[name]
        if actual == expected:
            continue
        if name == "windows":
            pairs = enumerate(zip_longest(actual, expected, fillvalue="nothing"))
            window, (start, needed) = next((k, pair) for k, pair in pairs if pair[0] != pair[1])
            raise ForecastError(f"forecast for {start}, the task has {needed}", window=window)
        raise ForecastError(
            f"the forecast of {forecast.description.model} was made for {name} {actual!r}, but the "
            f"task has {expected!r}; score it with the data set and task that it was made for"
        )


def _make_row(forecast: Forecast, task: Task, card: Scorecard, cost: dict[str, Any]) -> Result:
    facts, description = forecast.facts, forecast.description
    names = ("task_version", "grid", "edition", "fingerprint", "windows")
    return Result(
        task=task.name,  # with its limits, which the forecast does not depend on
        **{name: facts[name] for name in names},
        model=description.model,
        variant=description.variant,
        config=description.config,
        model_version=description.version,
        parameters=description.parameters,
        seed=description.seed,
        scenarios=card.n_scenarios,
        joint=description.joint,
        truth={
            "necv": _number(card["excursion"]),
            "violations": _number(card["violation"]),
            "overloads": _number(card["overload"]),
        },
        scores={name: _number(card[name]) for name in SCORES},
        by_type={variable: _type_scores(card, k) for k, variable in enumerate(VARIABLES)},
        by_window={name: _numbers(card.by_window[name]) for name in SCORES},
        cost=cost,
        version=version("powerphase"),
        commit=commit(),
        date=datetime.now(UTC).date().isoformat(),
        data_verified=task.targets_verified,
        daily_slope=dict(zip(VARIABLES, map(_number, card.daily_slope), strict=True)),
        training=forecast.training,
        failed=_failures(forecast),
    )


def _failures(forecast: Forecast) -> dict[str, Any] | None:
    """What a row says about series that failed; None if there are none."""
    if forecast.failed is None or not forecast.failed["series"]:
        return None
    return forecast.failed


def _type_scores(card: Scorecard, kind: int) -> dict[str, float | None]:
    """The scores of one variable; safety scores exist for voltages only."""
    is_voltage = VARIABLES[kind] == "V"
    typed = {name: score for name, score in SCORES.items() if score.has_types}
    names = [name for name, score in typed.items() if is_voltage or not score.voltage_only]
    return {name: _number(card.by_type[name][kind]) for name in names}


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)


def _numbers(values: np.ndarray) -> list[float] | None:
    return None if np.isnan(values).any() else [float(value) for value in values]
