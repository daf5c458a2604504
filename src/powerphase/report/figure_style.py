"""The style of figures: print sizes, and one colour, marker and dash pattern for each model.

The colours are those of Okabe and Ito and of Tol's muted scheme, which remain distinct with the
common forms of colour blindness. Markers and dashes distinguish models in grey.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from powerphase.registry import MODELS, Look

COLUMN_IN, PAGE_IN = 3.3, 7.0
"""The widths of a column and of a page."""

STYLE: Mapping[str, Any] = MappingProxyType(
    {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
        "font.size": 7,
        "axes.titlesize": 7,
        "axes.labelsize": 7,
        "legend.fontsize": 6.5,
        "xtick.labelsize": 6.5,
        "ytick.labelsize": 6.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "lines.linewidth": 1.1,
        "lines.markersize": 4.5,
        "legend.frameon": False,
        "legend.handlelength": 2.4,
        "figure.constrained_layout.use": True,
        "savefig.dpi": 300,
        "pdf.fonttype": 42,  # embeds fonts, as publishers require
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "powerphase",  # equal figures give equal files
    }
)

TRUTH, LIMIT = "#000000", "#8c8c8c"
"""The colours of the truth and of the limits of the band."""

SPARE = (
    Look("", "#AA4499", "8", (2, 2)),
    Look("", "#44AA99", "H", (6, 1, 2, 1)),
    Look("", "#DDCC77", "1", (3, 3)),
    Look("", "#CC6677", "2", (8, 2)),
)


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name; variants and models outside the registry share the spare looks."""
    looks: dict[str, Look] = {}
    n_spare = 0
    for name in names:
        if name in MODELS:
            looks[name] = MODELS[name].look
        else:
            model, *variant = name.split("+")
            title = MODELS[model].title if model in MODELS else model
            looks[name] = replace(SPARE[n_spare % len(SPARE)], title="+".join([title, *variant]))
            n_spare += 1
    return looks


def day_name(day: np.datetime64) -> str:
    """A day without its year, in English regardless of the locale."""
    date = day.astype("datetime64[D]").item()
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    return f"{weekdays[date.weekday()]} {date.day} {months[date.month - 1]}"
