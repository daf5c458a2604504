"""One look for each model on all pages: that of the figures, in both themes.

Print has white paper alone. A page must also stand out from a dark panel, so that there the
lightness is turned round, which keeps colours as far from each other as they were.
"""

from collections.abc import Iterable
from colorsys import hls_to_rgb, rgb_to_hls
from typing import Any

from powerphase.report.figure_style import looks_of

LIGHT, DARK = "#ffffff", "#191f24"
"""The panels of the two themes, as in the style sheet."""

LEAST_CONTRAST = 3.0
"""Of a line or a marker beside its panel, as WCAG 2.2 asks (1.4.11)."""

TURNED = 0.85
STEP = 0.005


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Marker, dashes and colours of each model that is named, alone or with a variant."""
    models = sorted({name.partition("+")[0] for name in names})
    return {
        model: {
            "color": f"--look-{place}",
            "marker": look.marker,
            "dashes": look.dashes,
            "light": legible(look.colour, LIGHT),
            "dark": legible(turned(look.colour), DARK),
        }
        for place, (model, look) in enumerate(looks_of(models).items())
    }


def legible(colour: str, panel: str) -> str:
    """The colour, as much darker or lighter as it takes to stand out from the panel."""
    hue, lightness, saturation = rgb_to_hls(*_parts(colour))
    away = -STEP if _luminance(panel) > 0.5 else STEP
    while contrast(colour, panel) < LEAST_CONTRAST:
        lightness += away
        colour = _hexadecimal(hls_to_rgb(hue, lightness, saturation))
    return colour


def turned(colour: str) -> str:
    """A light colour where this one is dark, of the same hue."""
    hue, lightness, saturation = rgb_to_hls(*_parts(colour))
    return _hexadecimal(hls_to_rgb(hue, 1 - TURNED * lightness, saturation))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in _parts(colour)
    ]
    return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def _parts(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


def _hexadecimal(parts: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
