"""Draws the figures; `figures` imports it only if matplotlib is installed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MultipleLocator, NullFormatter, StrMethodFormatter

from powerphase.axes import STEPS_PER_DAY, V
from powerphase.errors import ResultError
from powerphase.records.scores import SCORES
from powerphase.registry import MODELS, Look
from powerphase.report.boards import Board
from powerphase.report.entries import Entry
from powerphase.report.figure_rows import FigureRow
from powerphase.report.quantiles import LEVELS, first_bus, weighted_quantiles
from powerphase.report.safety_tables import NEGLIGIBLE, survival, worst
from powerphase.report.style import (
    COLUMN_IN,
    LIMIT,
    PAGE_IN,
    TRUTH,
    day_name,
    looks_of,
)
from powerphase.synthesis.injections import ARCHETYPES, load_shapes
from powerphase.synthesis.signals import Signals
from powerphase.task.protocol import band_of, step_hours_of

FIRST_DAY, N_DAYS = np.datetime64("2015-04-14"), 3
"""A Tuesday in April: the paper shows three days of that month without naming them."""
SHAPE_LOOKS = {
    "baseline": Look("baseline", "#000000", ""),
    "industrial": Look("industrial", "#0072B2", "", (6, 2)),
    "pv": Look("PV", "#E69F00", "", (4, 1, 1, 1)),
    "wind": Look("wind", "#009E73", "", (2, 1)),
    "ev": Look("EV", "#D55E00", "", (1, 1)),
}
SCORES_OF_LINES = ("loading_crps", "overload_brier")
"""What the figure of lines shows, in the order of the first."""

LOSS: Mapping[str, Any] = {"linewidth": 1.1}
VALIDATION: Mapping[str, Any] = {"linewidth": 1.1, "dashes": (3, 1.5)}
BEST: Mapping[str, Any] = {"linewidth": 0.7, "dashes": (1, 1)}

STROKES = "+1234x|_"
"""Markers made of strokes, which a rim would hide."""

Points = Sequence[tuple[int, float, float]]
"""Number, mean forecast and mean outcome of each bin of a reliability diagram."""
Diagrams = tuple[Points, Points]
"""The points for the chance of a violation, and for its hours."""


def archetypes(signals: Signals) -> Figure:
    """The five load shapes over three days, with unit mean over the whole record."""
    first = int(np.searchsorted(signals.time, FIRST_DAY.astype("datetime64[s]")))
    steps = slice(first, first + N_DAYS * STEPS_PER_DAY)
    figure = Figure(figsize=(COLUMN_IN, 2.0))
    axes = figure.subplots()
    hour = np.arange(steps.stop - steps.start) * 24 / STEPS_PER_DAY
    for name, shape in zip(ARCHETYPES, load_shapes(signals)[steps].T, strict=True):
        look = SHAPE_LOOKS[name]
        axes.plot(hour, shape, color=look.colour, dashes=look.dashes, label=look.title)
    axes.axhline(0, color=LIMIT, linewidth=0.5)
    for midnight in range(24, 24 * N_DAYS, 24):
        axes.axvline(midnight, color=LIMIT, linewidth=0.5, dashes=(2, 2))
    axes.set(xlim=(0, 24 * N_DAYS), ylabel="load / its mean")
    names = [day_name(FIRST_DAY + day) for day in range(N_DAYS)]
    axes.set_xticks([24 * day + 12 for day in range(N_DAYS)], names)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    figure.legend(loc="outside upper center", ncols=5, columnspacing=1.0, handlelength=1.8)
    return figure


def bus_safety(rows: Mapping[str, FigureRow]) -> Figure:
    """The share of buses above each Safety_mBrier, and the worst buses."""
    figure = Figure(figsize=(PAGE_IN, 2.5))
    left, right = figure.subplots(1, 2)
    for name, look in looks_of(rows).items():
        per_bus = rows[name].array("by_bus/safety_mbrier")
        line: dict[str, Any] = {"color": look.colour, "dashes": look.dashes, "label": look.title}
        thresholds = np.array([NEGLIGIBLE, *np.unique(per_bus[per_bus > NEGLIGIBLE])])
        left.step(*survival(per_bus, thresholds), where="post", **line)
        _, highest = worst(per_bus)
        right.plot(np.arange(1, len(highest) + 1), highest, **line)
    n_buses, n_worst = len(per_bus), len(highest)
    left.set(xscale="log", yscale="log", xlim=(NEGLIGIBLE, 1))
    left.set_ylim(bottom=0.7 / n_buses)
    left.set(xlabel="Safety_mBrier x of a bus", ylabel="share of buses above x")
    left.set_title("(a) how many buses", loc="left")
    right.set(xscale="log", xlim=(1, n_worst), xlabel="rank of the bus", ylabel="Safety_mBrier")
    right.set_ylim(bottom=0)
    ranks = [rank for rank in (1, 10, 100) if rank <= n_worst]
    right.set_xticks(ranks, [str(rank) for rank in ranks])
    right.set_title(f"(b) the worst {n_worst} of {n_buses:,} buses", loc="left")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(6, len(labels)))
    return figure


def safety_fidelity(board: Board, score: str) -> Figure:
    """Each model by its CRPS and another score; the paper's rows in a second panel."""
    titles = (f"our rows, edition {board.edition}", "the paper's rows, on its own data")
    groups = [group for group in zip(titles, (board.entries, board.paper), strict=True) if group[1]]
    entries = (*board.entries, *board.paper)
    looks = looks_of([*MODELS, *(entry.name for entry in entries)])
    figure = Figure(figsize=(PAGE_IN if len(groups) > 1 else COLUMN_IN, 3.0))
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (title, group) in zip(panels, groups, strict=True):
        for entry in group:
            _draw_point(axes, looks[entry.name], entry, score)
        axes.set_title(title, loc="left")
        axes.set_xlabel("CRPS (lower is better)")
    _set_log_scale(panels[0], [entry.mean[score] or 0.0 for entry in entries])
    panels[0].set(xscale="log", ylabel=f"{SCORES[score].title} [{SCORES[score].unit}]")
    _label_sparsely(panels[0])
    shown = {entry.name for entry in entries}
    handles = [_marker(look) for name, look in looks.items() if name in shown]
    columns = 7 if len(groups) > 1 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=1)
    return figure


def lines(board: Board) -> Figure:
    """Each entry by two scores of lines; hollow markers have marginal scenarios."""
    entries = sorted(board.entries, key=lambda entry: -(entry.mean[SCORES_OF_LINES[0]] or 0.0))
    looks = looks_of(entry.name for entry in entries)
    figure = Figure(figsize=(PAGE_IN, 0.8 + 0.18 * len(entries)))
    panels = figure.subplots(1, len(SCORES_OF_LINES), sharey=True)
    for axes, score in zip(panels, SCORES_OF_LINES, strict=True):
        for height, entry in enumerate(entries):
            _draw_dot(axes, entry, score, height)
        known = [mean for entry in entries if (mean := entry.mean[score]) is not None]
        if min(known) > 0:
            axes.set_xscale("log")
            _label_sparsely(axes)
        axes.set_xlabel(f"{SCORES[score].title} [{SCORES[score].unit}]")
        axes.grid(axis="x", color="0.9", linewidth=0.5)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(entries)), [looks[entry.name].title for entry in entries])
    figure.legend(
        handles=[_fill_marker(True), _fill_marker(False)], loc="outside upper center", ncols=2
    )
    return figure


def curves(rows: Mapping[str, FigureRow]) -> Figure:
    """The loss and the criterion on validation windows by step, a panel for each network."""
    n_columns = min(4, len(rows))
    n_lines = -(-len(rows) // n_columns)
    figure = Figure(figsize=(PAGE_IN * n_columns / 4 + 0.3, 0.3 + 1.5 * n_lines))
    panels = figure.subplots(n_lines, n_columns, squeeze=False).ravel()
    for axes, (name, look) in zip(panels, looks_of(rows).items(), strict=False):
        _draw_curve(axes, _model_colour(name), rows[name].row.training or {})
        axes.set_title(look.title, loc="left")
    for axes in panels[len(rows) :]:
        axes.set_axis_off()
    for axes in panels[::n_columns]:
        axes.set_ylabel("loss")
    figure.supxlabel("training step", fontsize=7)
    styles = {"loss": LOSS, "on validation windows": VALIDATION, "step that was kept": BEST}
    handles = [Line2D([], [], label=text, color="0.3", **style) for text, style in styles.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _draw_curve(axes: Axes, colour: str, training: Mapping[str, Any]) -> None:
    """Draw a training; validation by CRPS has an axis of its own, on the right."""
    curve, by_crps = training["curve"], training["criterion"] == "crps"
    step, loss, validation = (
        np.array(curve[name], dtype=float) for name in ("step", "loss", "validation")
    )
    other = axes.twinx() if by_crps else axes
    axes.plot(step, loss, color=colour, **LOSS)
    other.plot(step, validation, color="0.3" if by_crps else colour, **VALIDATION)
    best = step[training["best_epoch"] - 1]
    axes.axvline(best, color="0.3", zorder=1, **BEST)
    _show_late_values(axes, loss if by_crps else np.append(loss, validation))
    if by_crps:
        _show_late_values(other, validation)
        other.spines["right"].set_visible(True)
        other.set_ylabel("validation CRPS")


def _show_late_values(axes: Axes, values: Float[np.ndarray, " P"]) -> None:
    """Fit the vertical axis to most values: a loss begins far above where it ends."""
    known = values[np.isfinite(values)]
    if not known.size:
        return
    low, high = known.min(), np.quantile(known, 0.9)
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def reliability(rows: Mapping[str, FigureRow]) -> Figure:
    """How often voltages left the band, by the forecast probability."""
    figure = Figure(figsize=(COLUMN_IN, 3.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=2.5, zorder=1)
    for name, look in looks_of(rows).items():
        points, probability, violated = rows[name].array("reliability").T
        filled = points > 0
        axes.plot(
            probability[filled], violated[filled], color=look.colour, dashes=look.dashes,
            marker=look.marker, markersize=3, label=look.title,
        )  # fmt: skip
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.set(xlabel="forecast probability of leaving the band", ylabel="share that left it")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def calibration(curves: Mapping[str, Diagrams]) -> Figure:
    """How often limits were violated on a day, and for how long, by what was forecast."""
    figure = Figure(figsize=(PAGE_IN, 3.2))
    chance, hours = figure.subplots(1, 2)
    looks = looks_of(curves)
    for axes, part, top in ((chance, 0, 1.0), (hours, 1, 24.0)):
        axes.plot([0, top], [0, top], color="0.8", linewidth=2.5, zorder=1)
        for name, diagrams in curves.items():
            look = looks[name]
            count, said, happened = np.array(diagrams[part], dtype=float).reshape(-1, 3).T
            axes.plot(said, happened, color=look.colour, dashes=look.dashes, label=look.title)
            axes.scatter(
                said, happened, s=8 + 60 * np.sqrt(count / count.sum()), color=look.colour,
                marker=look.marker, linewidths=0.4, edgecolors="white", zorder=3,
            )  # fmt: skip
        edge = 0.02 * top
        axes.set(xlim=(-edge, top + edge), ylim=(-edge, top + edge), aspect="equal")
    chance.set(xlabel="forecast chance of a violation", ylabel="share of days with one")
    hours.set(xlabel="forecast hours of violation", ylabel="mean hours of violation")
    lines, titles = chance.get_legend_handles_labels()
    figure.legend(lines, titles, loc="outside upper center", ncols=3)
    return figure


def _marker(look: Look) -> Line2D:
    """The marker of a model, with a white rim to separate overlapping markers."""
    rim = (look.colour, 1.0) if look.marker in STROKES else ("white", 0.4)
    return Line2D(
        [], [], color=look.colour, marker=look.marker, linestyle="none", label=look.title,
        markersize=9 if look.marker == "*" else 6, markeredgecolor=rim[0], markeredgewidth=rim[1],
    )  # fmt: skip


def _draw_point(axes: Axes, look: Look, entry: Entry, score: str) -> None:
    """Draw a model, with the deviations over its seeds if it has several."""
    x, y = (np.array([entry.mean[name]], dtype=float) for name in ("crps", score))
    bars: dict[str, Any] = {"color": look.colour, "linestyle": "none", "elinewidth": 0.6}
    axes.errorbar(x, y, xerr=entry.std["crps"], yerr=entry.std[score], **bars)
    marker = _marker(look)
    marker.set_data(x, y)
    axes.add_line(marker)


def _model_colour(name: str) -> str:
    """The colour of a model, also for its variants, where other text names them."""
    model = name.partition("+")[0]
    return looks_of([model])[model].colour


def _draw_dot(axes: Axes, entry: Entry, score: str, height: int) -> None:
    """Draw a score of an entry in its line, with the deviation over its seeds."""
    mean, colour = entry.mean[score], _model_colour(entry.name)
    if mean is None:
        return
    axes.errorbar(
        [mean], [height], xerr=entry.std[score], color=colour, marker="o", markersize=4.5,
        linestyle="none", elinewidth=0.8, markerfacecolor=_face(colour, entry.joint),
    )  # fmt: skip


def _face(colour: str, joint: bool | None) -> str:
    return "white" if joint is False else colour


def _fill_marker(joint: bool) -> Line2D:
    """The entry of a legend for joint or marginal scenarios."""
    return Line2D(
        [], [], color="0.3", marker="o", markersize=4.5, linestyle="none",
        markerfacecolor=_face("0.3", joint),
        label=f"{'joint' if joint else 'marginal'} scenarios",
    )  # fmt: skip


def _label_sparsely(axes: Axes) -> None:
    """Label a logarithmic horizontal axis with a few plain numbers.

    By default, an axis of less than a decade has a number at every minor tick, and they overlap.
    """
    low, high = axes.get_xlim()
    wide = np.log10(high / low)
    steps = (1, 1.5, 2, 3, 5) if wide < 0.7 else (1, 2, 5) if wide < 1.5 else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _set_log_scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the vertical axis logarithmic, and linear near zero if a value is zero."""
    if min(values) > 0:
        axes.set_yscale("log")
        return
    smallest = min((value for value in values if value > 0), default=1.0)
    decade = 10.0 ** np.floor(np.log10(smallest))
    axes.set_yscale("symlog", linthresh=decade)
    axes.set_ylim(bottom=-0.3 * decade)


INSIDE = (0.005, 0.995)
"""The quantiles of a model's voltages that its part of the axis includes."""

ROOM = 1.0
"""The axis ends this many ranges of the truth, or of the usual model, beyond the truth, lest one
bad model flatten the rest."""

SCENARIO: Mapping[str, Any] = {"linewidth": 0.5}
MEDIAN: Mapping[str, Any] = {"linewidth": 1.3}
LIMITS: Mapping[str, Any] = {"linewidth": 0.7, "dashes": (4, 2), "color": LIMIT}
ACTUAL: Mapping[str, Any] = {"linewidth": 1.0, "dashes": (2, 0.8), "color": TRUTH}

Fan = tuple[Float[np.ndarray, "M H"], Float[np.ndarray, " M"], Float[np.ndarray, " H"]]
"""Scenarios of a voltage [p.u.], their weights, and the truth."""
AnyFan = tuple[Float[np.ndarray, "_ H"], Float[np.ndarray, " _"], Float[np.ndarray, " H"]]
"""The same for several models, whose numbers of scenarios differ."""


def voltages(rows: Mapping[str, FigureRow | None], bus: int | None) -> tuple[Figure, int]:
    """A row for each model, a column for each window: scenarios, their median, the truth."""
    available = [row for row in rows.values() if row is not None]
    k = bus_to_show(available[0], bus)
    shown = available[0].array("shown/bus_id")[k]
    windows = [available[0].row.windows[w] for w in available[0].array("shown/window")]
    figure = Figure(figsize=(PAGE_IN, 0.45 + 1.25 * len(rows)))
    grid = figure.subplots(len(rows), len(windows), sharex=True, sharey=True, squeeze=False)
    looks = looks_of(rows)
    fans = {
        name: [scenarios_of(row, window, k) for window in range(len(windows))]
        for name, row in rows.items()
        if row is not None
    }
    limits, band = voltage_limits(list(fans.values())), band_of(available[0].row.task) or ()
    step_hours = step_hours_of(available[0].row.task)
    for (name, row), panels in zip(rows.items(), grid, strict=True):
        panels[0].set_ylabel(f"{looks[name].title}\nvoltage [p.u.]")
        for axes, window in zip(panels, range(len(windows)), strict=True):
            if row is None:
                axes.text(0.5, 0.5, "no row", transform=axes.transAxes, ha="center", va="center")
            else:
                _draw_fan(axes, looks[name], fans[name][window], band, step_hours)
    for axes, start in zip(grid[0], windows, strict=True):
        axes.set_title(f"{day_name(np.datetime64(start[:10]))} {start[:4]}")
    for axes in grid[-1]:
        axes.set_xlabel("hour ahead")
    grid[0, 0].set(xlim=(0, 24), ylim=limits)
    for name, panels in zip(rows, grid, strict=True):
        if name in fans and (share := _share_beyond(fans[name], limits)) > 0:
            _say_cut(panels[-1], share)
    grid[0, 0].xaxis.set_major_locator(MultipleLocator(6))
    _fan_legend(figure, bool(band))
    return figure, int(shown)


def bus_to_show(row: FigureRow, bus: int | None) -> int:
    """The index of the bus among those shown: the chosen bus, or the one that the site shows."""
    ids: Int[np.ndarray, " buses"] = row.array("shown/bus_id")
    if bus is not None:
        if bus not in ids:
            choices = ", ".join(map(str, sorted(ids.tolist())))
            raise ResultError(f"rows have no scenarios of bus {bus}; choose one of {choices}")
        return int(np.flatnonzero(ids == bus)[0])
    return first_bus(row.array("shown/target")[..., V])


def scenarios_of(row: FigureRow, window: int, k: int) -> Fan:
    """The stored scenarios of a voltage [p.u.], their weights, and the truth."""
    truth = row.array("shown/target")[window, :, k, V]
    values = row.array("shown/scenario")[window, :, :, k, V]
    return values, row.array("shown/weight")[window, :, k, V], truth


def _draw_fan(axes: Axes, look: Look, fan: Fan, band: Sequence[float], step_hours: float) -> None:
    values, weights, truth = fan
    hour = np.arange(1, len(truth) + 1) * step_hours
    for limit in band:
        axes.axhline(limit, zorder=1, **LIMITS)
    for scenario, weight in zip(values, weights / weights.max(), strict=True):
        axes.plot(hour, scenario, color=look.colour, alpha=0.2 + 0.5 * weight, **SCENARIO)
    median = weighted_quantiles(values[..., None], weights[:, None])[LEVELS.index(0.5), :, 0]
    axes.plot(hour, median, color=look.colour, **MEDIAN)
    axes.plot(hour, truth, **ACTUAL)


def voltage_limits(models: Sequence[Sequence[AnyFan]]) -> tuple[float, float]:
    """The limits of a voltage axis for the fans of several models [p.u.].

    They include the truth, and nearly all of a model's forecasts as long as these stay near it.
    """
    truth = np.concatenate([truth for fans in models for _, _, truth in fans])
    spans = [np.quantile(_all_values(fans), INSIDE) for fans in models]
    usual = float(np.median([high - low for low, high in spans]))
    room = ROOM * max(float(np.ptp(truth)), usual)
    low = max(min(low for low, _ in spans), truth.min() - room)
    high = min(max(high for _, high in spans), truth.max() + room)
    low, high = min(low, truth.min()), max(high, truth.max())
    margin = 0.05 * (high - low) + 1e-4
    return float(low - margin), float(high + margin)


def _all_values(fans: Sequence[AnyFan]) -> Float[np.ndarray, " P"]:
    return np.concatenate([values.ravel() for values, _, _ in fans])


def _share_beyond(fans: Sequence[AnyFan], limits: tuple[float, float]) -> float:
    """The share of a model's voltages that the axis does not show."""
    values = _all_values(fans)
    return float(((values < limits[0]) | (values > limits[1])).mean())


def _say_cut(axes: Axes, share: float) -> None:
    text = "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"
    axes.annotate(
        f"{text} of the scenarios are beyond the axis", (1, 0), xytext=(-2, 2), ha="right",
        va="bottom", xycoords="axes fraction", textcoords="offset points", fontsize=6, color="0.2",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def _fan_legend(figure: Figure, has_band: bool) -> None:
    lines = {
        "actual": ACTUAL,
        "median": {**MEDIAN, "color": "0.3"},
        "scenarios": {**SCENARIO, "color": "0.3"},
        **({"limits of the band": LIMITS} if has_band else {}),
    }
    handles = [Line2D([], [], label=label, **style) for label, style in lines.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
