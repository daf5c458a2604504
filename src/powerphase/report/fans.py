"""Voltage forecasts drawn beside what happened. Imported only where matplotlib is installed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from powerphase.axes import STEP_S, V
from powerphase.errors import ResultError
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.report.exhibits import Exhibit
from powerphase.report.figure_style import LIMIT, PAGE_IN, TRUTH, Look, day_name, looks_of

INSIDE = (0.005, 0.995)
"""The share of all forecast voltages that an axis makes room for; a stray one would flatten all."""
HOURS_PER_STEP = STEP_S / 3600

SCENARIO: Mapping[str, Any] = {"linewidth": 0.5}
MEDIAN: Mapping[str, Any] = {"linewidth": 1.3}
LIMITS: Mapping[str, Any] = {"linewidth": 0.7, "dashes": (4, 2), "color": LIMIT}
HAPPENED: Mapping[str, Any] = {"linewidth": 1.0, "dashes": (2, 0.8), "color": TRUTH}

Fan = tuple[Float[np.ndarray, "M H"], Float[np.ndarray, " M"], Float[np.ndarray, " H"]]
"""Scenarios of a voltage [p.u.], their weights, and what happened."""


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
    """Which of the kept buses: the given one, or the one most evenly inside and outside the band.

    Where no voltage crosses a limit, the one that moves most.
    """
    ids: Int[np.ndarray, " buses"] = one.array("shown/bus_id")
    if bus is not None:
        if bus not in ids:
            kept = ", ".join(map(str, sorted(ids.tolist())))
            raise ResultError(f"no scenarios of bus {bus} are kept beside rows; choose of {kept}")
        return int(np.flatnonzero(ids == bus)[0])
    truth = one.array("shown/target")[..., V].reshape(-1, len(ids))
    lowest, highest = NORMAL_BAND_PU
    outside = ((truth < lowest) | (truth > highest)).mean(axis=0)
    return int(np.lexsort((np.ptp(truth, axis=0), np.minimum(outside, 1 - outside)))[-1])


def scenarios_of(one: Exhibit, window: int, k: int) -> Fan:
    """The kept scenarios of a voltage [p.u.], their weights, and what happened."""
    truth = one.array("shown/target")[window, :, k, V]
    error = one.array("shown/error")[window, :, :, k, V].astype(np.float32)
    return truth + error, one.array("shown/weight")[window, :, k, V], truth


def weighted_median(
    values: Float[np.ndarray, "M H"], weights: Float[np.ndarray, " M"]
) -> Float[np.ndarray, " H"]:
    """The lowest value at each step that half of the weight does not exceed."""
    order = np.argsort(values, axis=0)
    reached = np.cumsum(weights[order], axis=0) >= weights.sum() / 2 - 1e-6
    return np.take_along_axis(values, order, axis=0)[reached.argmax(axis=0), np.arange(
        values.shape[1])]  # fmt: skip


def _draw_fan(axes: Axes, look: Look, fan: Fan) -> None:
    values, weights, truth = fan
    hour = np.arange(1, len(truth) + 1) * HOURS_PER_STEP
    for limit in NORMAL_BAND_PU:
        axes.axhline(limit, zorder=1, **LIMITS)
    for values_of_one, weight in zip(values, weights / weights.max(), strict=True):
        axes.plot(hour, values_of_one, color=look.colour, alpha=0.2 + 0.5 * weight, **SCENARIO)
    axes.plot(hour, weighted_median(values, weights), color=look.colour, **MEDIAN)
    axes.plot(hour, truth, **HAPPENED)


def _limits(fans: Sequence[Fan]) -> tuple[float, float]:
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
