"""A recipe: everything that determines the values of a data set, and its fingerprint.

A recipe contains no names and no paths: the same case data, signals, seed and options have the same
fingerprint, whatever the files are called and wherever they are stored.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from powerphase.axes import STEPS_PER_DAY
from powerphase.dataset.options import Dispatch, RecipeOptions, Setpoint
from powerphase.errors import RecipeError
from powerphase.grid.case import Grid
from powerphase.synthesis.signals import Signals

RECIPE_VERSION = 1
"""Increased whenever the same options would give other values."""


@dataclass(frozen=True)
class Recipe:
    """The content and the options that determine a data set."""

    grid_sha256: str
    signals_sha256: str
    seed: int
    dispatch: Dispatch
    setpoint: Setpoint
    start: str
    """First day, ISO date (UTC)."""
    end: str
    """Last day, ISO date (UTC), included."""
    version: int = RECIPE_VERSION

    @property
    def fingerprint(self) -> str:
        """sha256 over the canonical form of all fields; it identifies the data set."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def edition(self, signals: str) -> str:
        """The edition of the data set: that of its signals, and what of the recipe has a name.

        So rows of `synthetic` and of `synthetic-case`, with the case's set-points, can be in one
        folder. Other options make no name, only another fingerprint.
        """
        named = [option for option in (self.dispatch, self.setpoint) if option in ("slack", "case")]
        return "-".join([signals, *map(str, named)])

    def as_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def make_recipe(grid: Grid, signals: Signals, options: RecipeOptions | None = None) -> Recipe:
    """The recipe for this grid and these signals; raise if the days leave the signals."""
    options = options or RecipeOptions()
    first, last = (str(signals.time[k].astype("datetime64[D]")) for k in (0, -1))
    start, end = options.start or first, options.end or last
    if not first <= start <= end <= last:
        raise RecipeError(
            f"the record from {start} to {end} is empty or leaves the signals, which cover "
            f"{first} to {last}; choose days within"
        )
    return Recipe(
        grid_sha256=grid.sha256,
        signals_sha256=signals.sha256,
        seed=options.seed,
        dispatch=options.dispatch,
        setpoint=options.setpoint,
        start=start,
        end=end,
    )


def setpoints_pu(recipe: Recipe, grid: Grid) -> Float[np.ndarray, " N"]:
    """Voltage [p.u.] of each slack and PV bus; the values at PQ buses have no meaning."""
    if recipe.setpoint == "case":
        return grid.setpoint_pu
    return np.full(grid.n_buses, recipe.setpoint)


def step_range(recipe: Recipe, signals: Signals) -> tuple[int, int]:
    """First and last (excluded) step of the recipe's record within the signal record."""
    origin = signals.time[0].astype("datetime64[D]")
    first = int((np.datetime64(recipe.start) - origin).astype(int))
    last = int((np.datetime64(recipe.end) - origin).astype(int)) + 1
    return first * STEPS_PER_DAY, last * STEPS_PER_DAY
