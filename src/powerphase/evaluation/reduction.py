"""Scenario reduction: a few of a forecast's joint scenarios, with weights that stand for all.

A planner or an optimiser can use ten or twenty states of the whole grid, not a thousand. Every
window's scenarios are read twice, block by block of channels: first for the distances between them,
then for those that are kept. Which, and with what weights, the module `selection` says.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError, UnknownName
from powerphase.evaluation.forecasting import (
    Forecast,
    Piece,
    Progress,
    load_forecast,
    write_forecast,
)
from powerphase.evaluation.scoring import check_task
from powerphase.evaluation.selection import METHODS
from powerphase.evaluation.window_choice import Choice, KeptScenarios, WindowSums
from powerphase.files import disk_errors
from powerphase.models.factorforge.factors import Factors
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.base import Description, describe
from powerphase.task.windows import Task

VARIANT = "reduced"
"""Added to a forecaster's variant, with the number of scenarios."""

CONFIG_FIELD = "reduced"
"""The field of a reduced forecast's config that describes the reduction."""

DEFAULT_METHOD = "energy"
"""What costs least in energy score on validation days; docs/reduce.md has the numbers."""


def reduce(
    forecast: Forecast | str | Path,
    to: int,
    *,
    method: str = DEFAULT_METHOD,
    factors: FactorForge | None = None,
    task: Task | None = None,
    out: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Forecast:
    """The forecast with a few of its scenarios in each window, and new weights.

    The scenarios must be joint, and have one weight for all channels. Those that are kept stay as
    they are, in their order. The `reduction` of the result has the fields of `Reduction` once all
    scenarios have been iterated.

    Args:
        forecast: of any model, in a directory or live; a live one is made twice.
        to: how many scenarios to keep.
        method: `energy`, for the least energy distance between all scenarios and the kept ones,
            or `kmedoids` or `forward`, for the least Kantorovich distance.
        factors: a FactorForge that was fitted to the same record, to compare scenarios by its
            factors; None to compare them by all channels.
        task: has what happened, if the energy score shall be compared too.
        out: a directory that does not exist yet, which is written as a whole or not at all.
        on_progress: called with the number of windows written, and the number of all.
    """
    if method not in METHODS:
        raise UnknownName.among("method", method, METHODS)
    if isinstance(to, bool) or not isinstance(to, int) or to < 1:
        raise ForecastError(f"cannot keep {to!r} scenarios; ask for 1 or more")
    if "://" in str(out):
        raise ForecastError(f"{out}: a forecast is written to a local directory; give its path")
    if out is not None and Path(out).exists():
        raise ForecastError(f"{out}: exists already; choose another directory")
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    _check_source(source)
    if task is not None:
        check_task(source, task)
    choice = Choice(to, method, _factors_of(factors, source), task)
    cost, reduction = dict(source.cost), dict[str, Any]()
    live = Forecast(
        source.facts,
        _description(source.description, to, method, factors),
        cost,
        lambda skip: _reduce_windows(source, choice, cost, reduction, skip),
        training=source.training,
        failed=source.failed,
        reduction=reduction,
    )
    return live if out is None else _write_whole(live, Path(out), on_progress)


def is_reduced(variant: str | None) -> bool:
    """Whether a forecast of this variant has fewer scenarios than were forecast."""
    return VARIANT in (variant or "").split("-")


@dataclass(frozen=True)
class Reduction:
    """Which scenarios were kept, and what that costs, as means over windows.

    *Random* is the mean of 100 random choices of as many scenarios, whose weights stay in
    proportion. Their Kantorovich distance is that with the best weights.
    """

    scenarios: int
    """How many there were."""
    kept: list[list[int]]
    """The numbers of the kept scenarios of each window, counted from 0."""
    kantorovich: float
    """From all scenarios to the kept ones, in standard deviations among the scenarios."""
    random_kantorovich: float
    energy_distance: float
    """From all scenarios to the kept ones, in the unit of the energy score."""
    random_energy_distance: float
    full_energy_score: float | None
    """Of all scenarios; None without what happened."""
    energy_score: float | None
    random_energy_score: float | None
    seconds: float
    """For reading the scenarios twice, their distances and the choice."""

    def __str__(self) -> str:
        lines = [f"{'cost':<22} {'kept':>12} {'random':>12}"]
        for title, kept, random in (
            ("Kantorovich distance", self.kantorovich, self.random_kantorovich),
            ("energy distance", self.energy_distance, self.random_energy_distance),
            ("energy score", self.energy_score, self.random_energy_score),
        ):
            if kept is not None and random is not None:
                lines.append(f"{title:<22} {kept:>12.4g} {random:>12.4g}")
        if self.full_energy_score is not None:
            lines[-1] += f"   of all {self.scenarios:,}: {self.full_energy_score:.4g}"
        return "\n".join(lines)


def _reduce_windows(
    source: Forecast,
    choice: Choice,
    cost: dict[str, Any],
    reduction: dict[str, Any],
    skip: Collection[int],
) -> Iterator[Piece]:
    """Reduce one window after another, and update the cost and the reduction."""
    watch, done = Stopwatch(), list[KeptScenarios]()
    # Two readings of the same windows: what is kept is known only after all blocks of one.
    readings = [groupby(source.pieces(skip), key=itemgetter(0)) for _ in range(2)]
    for (window, pieces), (_, again) in zip(*readings, strict=True):
        scenarios = _sum_up(window, pieces, source.facts["n_channels"], choice, watch)
        with watch.running():
            kept = choice.of(scenarios)
        done.append(kept)
        n_scenarios = len(scenarios.weights)
        del scenarios
        for _, channels, block in again:
            cost.update(source.cost)
            if cost["predict_s"] is not None:
                cost["predict_s"] += watch.seconds
            reduction.update(asdict(_summary(n_scenarios, done, watch.seconds)))
            with watch.running():
                part = kept.of(block)
            yield window, channels, part
            del block, part


def _sum_up(
    number: int, pieces: Iterator[Piece], n_channels: int, choice: Choice, watch: Stopwatch
) -> WindowSums:
    """Read all scenarios of a window."""
    window: WindowSums | None = None
    for _, channels, scenarios in pieces:
        with watch.running():
            if window is None:
                _check_count(choice.count, scenarios.values.shape[1], number)
                window = WindowSums(number, scenarios, n_channels, choice)
            window.add(channels, scenarios)
        del scenarios
    assert window is not None, "a group has at least one piece"
    return window


def _summary(n_scenarios: int, done: list[KeptScenarios], seconds: float) -> Reduction:
    """The reduction of all windows so far."""
    everything, kept, random = np.mean([window.costs for window in done], axis=0).tolist()
    known = not np.isnan(kept[-1])
    return Reduction(
        scenarios=n_scenarios,
        kept=[window.numbers.tolist() for window in done],
        kantorovich=kept[0],
        random_kantorovich=random[0],
        energy_distance=kept[1],
        random_energy_distance=random[1],
        full_energy_score=everything[2] if known else None,
        energy_score=kept[2] if known else None,
        random_energy_score=random[2] if known else None,
        seconds=seconds,
    )


def _write_whole(live: Forecast, out: Path, on_progress: Progress | None) -> Forecast:
    """Write the forecast elsewhere, then move it: nothing is left of one that fails."""
    with disk_errors(out, ForecastError):
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            unfinished = Path(folder) / out.name
            write_forecast(live, unfinished, on_progress)
            unfinished.rename(out)
    return load_forecast(out)


def _description(
    source: Description, to: int, method: str, factors: FactorForge | None
) -> Description:
    """What rows say about the reduced forecast; only what is not the default is in its variant."""
    space: Any = "channels"
    words = [VARIANT, str(to)] if method == DEFAULT_METHOD else [VARIANT, str(to), method]
    if factors is not None:
        words.append("factors")
        made = describe(factors)
        facts = {"config": made.config, "seed": made.seed, "version": made.version}
        space = {"model": made.model, **facts}
    reduced = {"to": to, "method": method, "space": space}
    named = source.with_word("-".join(words))
    return replace(named, config={**source.config, CONFIG_FIELD: reduced})


def _check_count(count: int, n_scenarios: int, window: int) -> None:
    """Raise unless a window has as many scenarios as shall be kept, and more than one."""
    if n_scenarios == 1:
        raise ForecastError("the forecast has one scenario, which is all there is", window=window)
    if count > n_scenarios:
        raise ForecastError(
            f"cannot keep {count} of {n_scenarios} scenarios; ask for {n_scenarios} or fewer",
            window=window,
        )


def _check_source(source: Forecast) -> None:
    """Raise if scenarios of this forecast cannot be reduced."""
    description = source.description
    if is_reduced(description.variant):
        raise ForecastError(
            f"{source.name} is reduced already; reduce the forecast that it was made of"
        )
    if description.joint is not True:
        reason = "it is not known whether a scenario of it is"
        if description.joint is False:
            reason = "a scenario of it is a quantile of every channel, and not"
        raise ForecastError(
            f"{source.name} cannot be reduced: {reason} one future of the whole grid; couple the "
            "forecast first (`--couple`)"
        )


def _factors_of(model: FactorForge | None, source: Forecast) -> Factors | None:
    """The factors of a model, which must be fitted to the record of the forecast."""
    if model is None:
        return None
    if not isinstance(model, FactorForge):
        raise ForecastError(f"factors must be a FactorForge, not {type(model).__name__}")
    if model.fitted is None:
        raise ForecastError("the FactorForge for its factors is not fitted; call fit")
    for name in ("grid", "fingerprint"):
        stated, expected = model.data.get(name), source.facts[name]
        if stated != expected:
            raise ForecastError(
                f"the factors are of {name} {stated}, and the forecast of {expected}; give a "
                "FactorForge that was fitted to the same record"
            )
    return model.fitted.factors
