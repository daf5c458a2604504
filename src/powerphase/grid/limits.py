"""The limits of a grid's states: the paper's voltage band or the case file's, and a rating."""

import re
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from powerphase.circuit import Limits
from powerphase.errors import CaseError, TaskError, UnknownName
from powerphase.grid.case import RATE_A, RATE_B, RATE_C, UNLIMITED_MVA, VMAX, VMIN, Grid
from powerphase.records.scores import NORMAL_BAND_PU

BANDS = ("normal", "case")
_BAND_PU = re.compile(r"(\d(?:\.\d{1,3})?)-(\d(?:\.\d{1,3})?)", re.ASCII)
RATING_COLUMNS = {"a": RATE_A, "b": RATE_B, "c": RATE_C}


def limits_of(grid: Grid, band: str = "normal", rating: str = "a") -> Limits:
    """The limits of a grid.

    Args:
        grid: has voltage limits and ratings, as in its case file.
        band: `normal` for 0.95 to 1.05 p.u. at every bus, as in the paper, `case` for each bus's
            `VMIN` and `VMAX`, or another band of all buses, such as `0.9-1.1`.
        rating: `a` (long-term), `b` (short-term) or `c` (emergency).
    """
    check_limits(band, rating)
    rating_mva = _rating_mva(grid, rating)
    band_pu = common_band(band)
    if band_pu is None:
        return Limits(*_case_band(grid), rating_mva)
    return replace(Limits.equal(grid.circuit, band_pu, np.inf), rating_mva=rating_mva)


def check_limits(band: str, rating: str) -> None:
    """Raise if there are no limits of these names."""
    band_name(band)
    if rating not in RATING_COLUMNS:
        raise UnknownName.among("rating", rating, RATING_COLUMNS)


def band_name(text: str) -> str:
    """The one name of these voltage limits: `normal`, `case`, or a band such as `0.9-1.1`."""
    if text in BANDS:
        return text
    low, high = _parse_band(text)
    return "normal" if (low, high) == NORMAL_BAND_PU else f"{low:g}-{high:g}"


def common_band(text: str) -> tuple[float, float] | None:
    """The band of all buses [p.u.] by these voltage limits; None if each bus has its own."""
    if text in BANDS:
        return NORMAL_BAND_PU if text == "normal" else None
    return _parse_band(text)


def _parse_band(text: str) -> tuple[float, float]:
    match = _BAND_PU.fullmatch(text)
    if match is None:
        raise UnknownName.among("voltage limits", text, (*BANDS, "LOW-HIGH"))
    low, high = float(match[1]), float(match[2])
    if not low < high:
        raise TaskError(f"the voltage limits {text} p.u. are no band; give the lower limit first")
    return low, high


def _case_band(grid: Grid) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    low, high = grid.bus[:, VMIN].copy(), grid.bus[:, VMAX].copy()
    invalid = np.flatnonzero(~((low > 0) & (low < high) & np.isfinite(high)))
    if invalid.size:
        bus = invalid[0]
        raise CaseError(
            f"grid {grid.name!r}: bus {grid.bus_id[bus]} has the voltage limits {low[bus]:g} to "
            f"{high[bus]:g} p.u., which are no band; use the normal limits"
        )
    return low, high


def _rating_mva(grid: Grid, rating: str) -> Float[np.ndarray, " L"]:
    """The rating of each branch in service; infinite if it has none."""
    mva = grid.branch[grid.branch_on, RATING_COLUMNS[rating]]
    is_rated = (mva > 0) & (mva < UNLIMITED_MVA)
    if rating != "a" and not is_rated.any():
        raise CaseError(
            f"grid {grid.name!r}: no branch in service has a rating {rating.upper()}; use rating A"
        )
    return np.where(is_rated, mva, np.inf)
