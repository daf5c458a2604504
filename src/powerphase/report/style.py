"""The style of figures and pages: print sizes, and colour, marker and dashes of each model.

The colours are those of Okabe and Ito and of Tol's muted scheme, which remain distinct with the
common forms of colour blindness. Markers and dashes distinguish models in grey.

Figures are printed on white alone. Pages have a dark theme too, for which the lightness of a colour
is inverted, which keeps the colours of models as distinct as before.
"""

from collections.abc import Iterable, Mapping
from colorsys import hls_to_rgb, rgb_to_hls
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

LIGHT, DARK = "#ffffff", "#191f24"
"""The panels of the two themes, as in the style sheet."""

MIN_CONTRAST = 3.0
"""Of a line or marker with its panel, as WCAG 2.2 requires (1.4.11)."""

INVERSION = 0.85
STEP = 0.005

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


def page_looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Marker, dashes and colours of each model that is named, alone or with a variant."""
    models = sorted({name.partition("+")[0] for name in names})
    return {
        model: {
            "color": f"--look-{number}",
            "marker": look.marker,
            "dashes": look.dashes,
            "light": _adjust_contrast(look.colour, LIGHT),
            "dark": _adjust_contrast(_invert_lightness(look.colour), DARK),
        }
        for number, (model, look) in enumerate(looks_of(models).items())
    }


def _adjust_contrast(colour: str, panel: str) -> str:
    """The colour, darker or lighter by as much as the least contrast with the panel takes."""
    hue, lightness, saturation = rgb_to_hls(*_rgb(colour))
    step = -STEP if _luminance(panel) > 0.5 else STEP
    while contrast(colour, panel) < MIN_CONTRAST:
        lightness += step
        colour = _hexadecimal(hls_to_rgb(hue, lightness, saturation))
    return colour


def _invert_lightness(colour: str) -> str:
    """A light colour for a dark one and the reverse, of the same hue."""
    hue, lightness, saturation = rgb_to_hls(*_rgb(colour))
    return _hexadecimal(hls_to_rgb(hue, 1 - INVERSION * lightness, saturation))


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in _rgb(colour)
    ]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _hexadecimal(rgb: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
