"""The look of each model on all pages: that of the figures, adapted to both themes.

Figures are printed on white alone. Pages have a dark theme too, for which the lightness of a colour
is inverted, which keeps the colours of models as distinct as before.
"""

from collections.abc import Iterable
from colorsys import hls_to_rgb, rgb_to_hls
from typing import Any

from powerphase.report.figure_style import looks_of

LIGHT, DARK = "#ffffff", "#191f24"
"""The panels of the two themes, as in the style sheet."""

MIN_CONTRAST = 3.0
"""Of a line or marker with its panel, as WCAG 2.2 requires (1.4.11)."""

INVERSION = 0.85
STEP = 0.005


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
