"""The picture of cost against size: milliseconds of a step and gibibytes, from grid to grid."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from docs.figures.scores import BLUE, GREY, STYLE

Row = dict[str, Any]


def draw(report: dict[str, Any], out: Path) -> None:
    """Draw what `powerforge.py scaling` wrote, of 640 x 300 pixels in a browser."""
    rows = sorted((row for row in report["rows"] if "ms" in row), key=lambda row: row["n_buses"])
    with style.context(["default", STYLE]):
        figure, drawn = Figure((640 / 96, 300 / 96), layout="constrained"), StringIO()
        left, right = figure.subplots(1, 2)
        panel(left, rows, [row["ms"] for row in rows], "ms")
        left.set_title("a training step takes [ms]")
        panel(right, rows, [row["peak_gib"] - row["held_gib"] for row in rows], "GiB")
        right.set_title("memory, less the record [GiB]")
        words = f"batch {rows[0]['batch']}, {report['hardware']}"
        figure.supxlabel(f"buses ({words})", fontsize=9)
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    # Within tags, where no text is, hundredths of a point are enough.
    text = re.sub(r"(\.\d\d)\d+(?=[^<>]*>)", r"\1", drawn.getvalue())
    out.write_text(text, encoding="utf-8")


def panel(axes: Axes, rows: list[Row], costs: list[float], unit: str) -> None:
    """Points, and where they would lie if the largest grid's cost were spread over all channels."""
    buses = [row["n_buses"] for row in rows]
    proportional = [costs[-1] * n / buses[-1] for n in buses]
    axes.loglog(buses, proportional, color=GREY, linestyle="--", linewidth=1)
    axes.loglog(buses, costs, "o", color=BLUE, markersize=5, clip_on=False)
    middle = len(buses) // 2
    place: Row = {"textcoords": "offset points", "color": GREY, "va": "top"}
    words = "in proportion to size"
    axes.annotate(words, (buses[middle], proportional[middle]), (6, -6), **place)
    for number in (0, -1):
        words = f"{costs[number]:.3g} {unit}"
        place = {"textcoords": "offset points", "color": BLUE, "ha": "right"}
        axes.annotate(words, (buses[number], costs[number]), (4, 7), **place)
    axes.set_xlim(buses[0] / 4, buses[-1] * 1.3)  # with room for the first label
    axes.xaxis.set_major_locator(FixedLocator(apart(buses)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def apart(sizes: list[int]) -> list[int]:
    """The largest size, and of the others those whose labels do not run into each other."""
    kept: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not kept or 3 * size <= kept[-1]:
            kept.append(size)
    return kept
