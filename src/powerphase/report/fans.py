"""Voltage forecasts drawn beside what happened. Imported only where matplotlib is installed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from powerphase.axes import V
from powerphase.errors import ResultError
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.registry import Look
from powerphase.report.exhibits import Exhibit
from powerphase.report.figure_style import (
    HOURS_PER_STEP,
    LIMIT,
    PAGE_IN,
    TRUTH,
    day_name,
    looks_of,
)
from powerphase.report.weighted import LEVELS, first_bus, weighted_quantiles

INSIDE = (0.005, 0.995)
"""The share of all forecast voltages that an axis makes room for; a stray one would flatten all."""

SCENARIO: Mapping[str, Any] = {"linewidth": 0.5}
MEDIAN: Mapping[str, Any] = {"linewidth": 1.3}
LIMITS: Mapping[str, Any] = {"linewidth": 0.7, "dashes": (4, 2), "color": LIMIT}
HAPPENED: Mapping[str, Any] = {"linewidth": 1.0, "dashes": (2, 0.8), "color": TRUTH}

Fan = tuple[Float[np.ndarray, "M H"], Float[np.ndarray, " M"], Float[np.ndarray, " H"]]
"""Scenarios of a voltage [p.u.], their weights, and what happened."""
AnyFan = tuple[Float[np.ndarray, "_ H"], Float[np.ndarray, " _"], Float[np.ndarray, " H"]]
"""The same where several models meet, each with a number of scenarios of its own."""


def voltages(exhibits: Mapping[str, Exhibit | None], bus: int | None) -> tuple[Figure, int]:
    """A row for each model, a column for each window: scenarios, their median, what happened."""
    found = [one for one in exhibits.values() if one is not None]
    k = bus_to_show(found[0], bus)
    shown = found[0].array("shown/bus_id")[k]
    windows = [found[0].row.windows[w] for w in found[0].array("shown/window")]
    figure = Figure(figsize=(PAGE_IN, 0.45 + 1.25 * len(exhibits)))
    grid = figure.subplots(len(exhibits), len(windows), sharex=True, sharey=True, squeeze=False)
    looks = looks_of(exhibits)
    for (name, one), row in zip(exhibits.items(), grid, strict=True):
        row[0].set_ylabel(f"{looks[name].title}\nvoltage [p.u.]")
        for axes, window in zip(row, range(len(windows)), strict=True):
            if one is None:
                axes.text(0.5, 0.5, "no row", transform=axes.transAxes, ha="center", va="center")
            else:
                _draw_fan(axes, looks[name], scenarios_of(one, window, k))
    for axes, start in zip(grid[0], windows, strict=True):
        axes.set_title(f"{day_name(np.datetime64(start[:10]))} {start[:4]}")
    for axes in grid[-1]:
        axes.set_xlabel("hour ahead")
    grid[0, 0].set(xlim=(0, 24), ylim=_limits([scenarios_of(one, w, k) for one in found
                                               for w in range(len(windows))]))  # fmt: skip
    grid[0, 0].xaxis.set_major_locator(MultipleLocator(6))
    _fan_legend(figure)
    return figure, int(shown)


def bus_to_show(one: Exhibit, bus: int | None) -> int:
    """Which of the kept buses: the given one, or the one that a site shows first."""
    ids: Int[np.ndarray, " buses"] = one.array("shown/bus_id")
    if bus is not None:
        if bus not in ids:
            kept = ", ".join(map(str, sorted(ids.tolist())))
            raise ResultError(f"no scenarios of bus {bus} are kept beside rows; choose of {kept}")
        return int(np.flatnonzero(ids == bus)[0])
    return first_bus(one.array("shown/target")[..., V])


def scenarios_of(one: Exhibit, window: int, k: int) -> Fan:
    """The kept scenarios of a voltage [p.u.], their weights, and what happened."""
    truth = one.array("shown/target")[window, :, k, V]
    values = one.array("shown/scenario")[window, :, :, k, V]
    return values, one.array("shown/weight")[window, :, k, V], truth


def _draw_fan(axes: Axes, look: Look, fan: Fan) -> None:
    values, weights, truth = fan
    hour = np.arange(1, len(truth) + 1) * HOURS_PER_STEP
    for limit in NORMAL_BAND_PU:
        axes.axhline(limit, zorder=1, **LIMITS)
    for values_of_one, weight in zip(values, weights / weights.max(), strict=True):
        axes.plot(hour, values_of_one, color=look.colour, alpha=0.2 + 0.5 * weight, **SCENARIO)
    median = weighted_quantiles(values[..., None], weights[:, None])[LEVELS.index(0.5), :, 0]
    axes.plot(hour, median, color=look.colour, **MEDIAN)
    axes.plot(hour, truth, **HAPPENED)


def _limits(fans: Sequence[AnyFan]) -> tuple[float, float]:
    """Room for what happened and for nearly all that was forecast."""
    forecast = np.quantile(np.concatenate([values.ravel() for values, _, _ in fans]), INSIDE)
    truth = np.concatenate([truth for _, _, truth in fans])
    low, high = min(forecast[0], truth.min()), max(forecast[1], truth.max())
    margin = 0.05 * (high - low) + 1e-4
    return float(low - margin), float(high + margin)


def _fan_legend(figure: Figure) -> None:
    lines = {
        "what happened": HAPPENED,
        "median": {**MEDIAN, "color": "0.3"},
        "scenarios": {**SCENARIO, "color": "0.3"},
        "limits of the band": LIMITS,
    }
    handles = [Line2D([], [], label=label, **style) for label, style in lines.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
