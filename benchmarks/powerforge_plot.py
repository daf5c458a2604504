"""The figure of cost against size: milliseconds of a step and gibibytes by number of buses."""

from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from docs.figures.scores import BLUE, GREY, STYLE, write_svg

Row = dict[str, Any]


def draw(report: dict[str, Any], out: Path) -> None:
    """Draw the report of `powerforge.py scaling`, 640 x 300 pixels in a browser."""
    rows = sorted((row for row in report["rows"] if "ms" in row), key=lambda row: row["n_buses"])
    with style.context(["default", STYLE]):
        figure = Figure((640 / 96, 300 / 96), layout="constrained")
        left, right = figure.subplots(1, 2)
        panel(left, rows, [row["ms"] for row in rows], "ms")
        left.set_title("a training step takes [ms]")
        panel(right, rows, [row["peak_gib"] - row["held_gib"] for row in rows], "GiB")
        right.set_title("memory, less the record [GiB]")
        label = f"batch {rows[0]['batch']}, {report['hardware']}"
        figure.supxlabel(f"buses ({label})", fontsize=9)
        write_svg(figure, out)


def panel(axes: Axes, rows: list[Row], costs: list[float], unit: str) -> None:
    """The costs, and a line of costs proportional to size through the largest grid."""
    buses = [row["n_buses"] for row in rows]
    proportional = [costs[-1] * n / buses[-1] for n in buses]
    axes.loglog(buses, proportional, color=GREY, linestyle="--", linewidth=1)
    axes.loglog(buses, costs, "o", color=BLUE, markersize=5, clip_on=False)
    middle = len(buses) // 2
    style_: Row = {"textcoords": "offset points", "color": GREY, "va": "top"}
    label = "in proportion to size"
    axes.annotate(label, (buses[middle], proportional[middle]), (6, -6), **style_)
    for number in (0, -1):
        label = f"{costs[number]:.3g} {unit}"
        style_ = {"textcoords": "offset points", "color": BLUE, "ha": "right"}
        axes.annotate(label, (buses[number], costs[number]), (4, 7), **style_)
    axes.set_xlim(buses[0] / 4, buses[-1] * 1.3)  # with room for the first label
    axes.xaxis.set_major_locator(FixedLocator(spaced_labels(buses)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def spaced_labels(sizes: list[int]) -> list[int]:
    """The sizes to label: the largest, and others whose labels do not overlap."""
    labels: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not labels or 3 * size <= labels[-1]:
            labels.append(size)
    return labels
